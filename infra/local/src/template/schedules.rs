//! Schedules. Their tests are with those of the other events.

use std::time::Duration;

use crate::model::Schedule;

use super::error::{Problem, TemplateError};
use super::events::enabled;
use super::node::Node;

type Result<T> = std::result::Result<T, TemplateError>;

pub(super) fn schedule(id: String, node: Node) -> Result<Option<Schedule>> {
    let node = node.only(&["Schedule", "Input", "Enabled", "State", "Name", "Description"])?;
    let tick = tick(id, &node.need("Schedule")?, &node)?;
    Ok((enabled(&node)? && state(&node)?).then_some(tick))
}

pub(super) fn schedule_v2(id: String, node: Node) -> Result<Option<Schedule>> {
    let node = node.only(&["ScheduleExpression", "Input", "State", "Name", "Description"])?;
    let tick = tick(id, &node.need("ScheduleExpression")?, &node)?;
    Ok(state(&node)?.then_some(tick))
}

fn tick(id: String, expression: &Node, node: &Node) -> Result<Schedule> {
    let every = rate(expression.str()?).ok_or_else(|| {
        expression.unsupported("the local stack only knows rate(1 minute), rate(2 hours) and the like")
    })?;
    Ok(Schedule { id, every, input: node.get("Input").map(|input| input.json()).transpose()? })
}

/// Parses a rate as strictly as AWS: `1 minute`, `2 minutes`, and nothing below a minute.
fn rate(expression: &str) -> Option<Duration> {
    let (count, unit) = expression.strip_prefix("rate(")?.strip_suffix(')')?.split_once(' ')?;
    let count: u32 = count.parse().ok().filter(|count| *count > 0)?;
    let singular = if count == 1 { unit } else { unit.strip_suffix('s')? };
    let seconds = match singular {
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(u64::from(count) * seconds))
}

pub(super) fn state(node: &Node) -> Result<bool> {
    match node.get("State") {
        None => Ok(true),
        Some(state) => match state.str()? {
            "ENABLED" => Ok(true),
            "DISABLED" => Ok(false),
            _ => Err(state.error(Problem::Expected("ENABLED or DISABLED"))),
        },
    }
}
