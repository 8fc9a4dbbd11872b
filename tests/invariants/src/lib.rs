//! What must hold of the rows of the tables, at every moment: each transaction leaves rows that
//! agree with each other. The behaviour tests check it at the end of each test, the simulator after
//! each write.
//!
//! Rows are plain JSON, as they are stored. A rule returns what does not hold, as sentences.

mod changes;
mod conversations;
mod downsells;
mod intents;
mod mailings;
mod messages;
mod rows;
mod transitions;

pub use changes::{Change, violations_of};
pub use conversations::numbers_have_no_gap;
pub use mailings::mailings_at_rest;
pub use rows::Rows;

use serde_json::Value;

/// Returns what does not hold of the rows of all tables.
pub fn violations(rows: &Rows, now_ms: i64) -> Vec<String> {
    let tables = rows.tables().flat_map(|table| rows.partitions(table).into_iter().map(move |pk| (table, pk)));
    // The entries of a mailing are checked with the mailing, and not once per shard.
    let wanted = tables.filter(|(table, pk)| *table != "Mailings" || pk.matches('#').count() == 1);
    wanted.flat_map(|(table, pk)| in_partition(rows, table, pk, now_ms)).collect()
}

/// Returns what does not hold of the rows of a partition, and of the rows that they name.
pub fn in_partition(rows: &Rows, table: &str, pk: &str, now_ms: i64) -> Vec<String> {
    let mut found = Violations::default();
    match table {
        "Intents" => intents::check(rows, pk, now_ms, &mut found),
        "Outbound" => messages::check(rows, pk, &mut found),
        "Conversations" => conversations::check(rows, pk, &mut found),
        "Downsells" => downsells::check(rows, pk, &mut found),
        "Mailings" => mailings::check(rows, pk, &mut found),
        "Config" => downsells::check_configuration(rows, pk, &mut found),
        _ => {}
    }
    found.0
}

/// What does not hold.
#[derive(Debug, Default)]
struct Violations(Vec<String>);

impl Violations {
    /// Records a violation, unless the sentence holds.
    fn unless(&mut self, holds: bool, sentence: &str, row: &Value) {
        if !holds {
            self.0.push(format!("{sentence}: {row}"));
        }
    }
}

fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or(0)
}

/// Returns what a row waits for in the index by time.
fn waits_for(row: &Value) -> Option<&str> {
    row["wake"].as_str().and_then(|wake| wake.split('#').next())
}

#[cfg(test)]
mod tests;
