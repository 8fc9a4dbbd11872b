//! The invariants that are checked at the end of every test.

mod conversations;
mod mailings;

use std::collections::HashSet;

use serde_json::Value;
use umavez_invariants::Rows;
use umavez_local::beside::Beside;

use crate::World;
use crate::world::{Expected, KEY};

pub async fn audit(world: &World, expected: Expected) {
    let refusals = world.stack.permissions().refusals();
    let found = Expected {
        dead_letters: messages(world, false).await.0,
        waiting: messages(world, true).await.1,
        sent: world.stack.catcher().sent(None, None).len(),
        panics: world.events("FUNCTION_PANICKED").len(),
        server_errors: world
            .events("REQUEST_ANSWERED")
            .iter()
            .filter(|line| line["status"].as_u64() >= Some(500))
            .count(),
        refused: refusals.len(),
    };
    let refused: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(
        found, expected,
        "left happened, right is what the test expects; a test says so with \
         play_with(Setup::default().expecting(Expected {{ sent: 1, ..Expected::default() }}), …); refused calls: {refused:?}"
    );
    logs_contain_no_secret(world);
    the_second_dynamodb_agrees(world);
    let rows = rows(world).await;
    let mut violations = umavez_invariants::violations(&rows, world.now().millis());
    violations.extend(umavez_invariants::numbers_have_no_gap(&rows));
    violations.extend(umavez_invariants::mailings_at_rest(&rows));
    assert!(violations.is_empty(), "the rows break {} rules:\n{}", violations.len(), violations.join("\n"));
    conversations::batches_answer_their_questions(world, &rows);
    mailings::calls_are_attempts(world, &rows);
    calls_are_attempts(world, &rows);
}

/// Returns the rows of all tables of the stack.
async fn rows(world: &World) -> Rows {
    let mut rows = Rows::default();
    for table in &world.stack.model().tables {
        for row in world.rows_of(&table.name).await {
            rows.put(&table.logical_id, row);
        }
    }
    rows
}

/// Returns the visible and the waiting messages of the queues that functions read (`read`), or of
/// those that they do not read, which are the dead-letter queues.
async fn messages(world: &World, read: bool) -> (usize, usize) {
    let sources = world.stack.model().functions.iter().flat_map(|function| &function.queue_sources);
    let are_read: HashSet<_> = sources.map(|source| source.queue.clone()).collect();
    let (mut visible, mut waiting) = (0, 0);
    for queue in world.stack.model().queues.iter().filter(|queue| are_read.contains(&queue.name) == read) {
        let counts = world.stack.queues().counts(&queue.name).await.expect("counts");
        visible += counts.visible;
        waiting += counts.waiting;
    }
    (visible, waiting)
}

/// Checks that log lines contain only ids and codes: no canary and no key.
fn logs_contain_no_secret(world: &World) {
    let mut secrets = world.canaries();
    secrets.push(KEY.to_owned());
    for line in world.stack.logs().since(0) {
        for secret in &secrets {
            assert!(!line.line.contains(secret), "a log line of {} contains a canary", line.function);
        }
    }
}

/// Checks that a second DynamoDB, if there is one, gave the same answers.
fn the_second_dynamodb_agrees(world: &World) {
    let differences = world.stack.beside().map(Beside::differences).unwrap_or_default();
    let different: Vec<_> = differences.iter().map(Value::to_string).collect();
    assert!(different.is_empty(), "{} answers of DynamoDB differ:\n{}", different.len(), different.join("\n"));
}

/// I5 for messages and offers: no attempt called the provider twice.
fn calls_are_attempts(world: &World, rows: &Rows) {
    let messages: Vec<_> = rows.table("Outbound").filter(|row| row["sk"] == "MESSAGE").collect();
    let offers = rows.table("Downsells").filter(|row| row["scheduled_at"].is_string());
    let attempts: u64 = messages.iter().copied().chain(offers).filter_map(|row| row["attempt"].as_u64()).sum();
    let providers = ["telegram", "evolution", "ses"];
    let by_sender = |call: &&umavez_local::calls::Call| {
        call.caller == "outbound-sender" && providers.contains(&call.service.as_str())
    };
    let calls = world.stack.calls().since(0).iter().filter(by_sender).count() as u64;
    // TTL deletes old rows; the calls for them are not compared.
    let is_deleted = !rows.tables().any(|table| table == "Outbound");
    assert!(is_deleted || calls <= attempts, "{calls} calls for {attempts} attempts");
}
