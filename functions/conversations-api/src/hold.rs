//! `POST /conversations/{id}/hold` and `/release`: a person takes over a conversation, and gives it
//! back.

use serde_json::json;
use umavez_domain::conversations::ConversationRow;
use umavez_domain::conversations::requests::{read_hold, read_release};
use umavez_domain::conversations::views::status;
use umavez_domain::telemetry::Event;
use umavez_domain::time::Timestamp;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::{Deps, id, no_such_conversation};

pub async fn hold(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let until = read_hold(&request.object_or_nothing()?, invocation.now).map_err(Problem::invalid)?;
    let held = deps.conversations.hold(invocation, &id(request)?, until).await?.ok_or_else(no_such_conversation)?;
    log_change(invocation, &held.row, Event::ConversationHeld);
    let hold = held.row.course.hold;
    Answer::json(
        200,
        &json!({
            "conversation_id": held.row.id,
            "status": status(&held.row, invocation.now),
            "held": true,
            "until": hold.and_then(|hold| hold.until).map(Timestamp::from_millis),
            // Messages that left before the hold. No other message leaves from now on.
            "in_flight": held.in_flight,
            "already_sent": held.already_sent,
        }),
    )
}

pub async fn release(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let answer_pending = read_release(&request.object_or_nothing()?).map_err(Problem::invalid)?;
    let released = deps.conversations.release(invocation, &id(request)?, answer_pending).await?;
    let (row, changed) = released.ok_or_else(no_such_conversation)?;
    if changed {
        log_change(invocation, &row, Event::ConversationReleased);
    }
    Answer::json(200, &json!({"conversation_id": row.id, "status": status(&row, invocation.now), "held": false}))
}

fn log_change(invocation: &Invocation, row: &ConversationRow, event: Event) {
    tracing::info!(event = event.as_str(), conversation_id = row.id.as_str(), request_id = invocation.request_id);
}
