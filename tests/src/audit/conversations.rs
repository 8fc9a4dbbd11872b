//! What the responder was asked.

use serde_json::{Value, json};
use umavez_invariants::Rows;

use crate::World;

/// The limits of one batch: messages, and bytes of their JSON unless it is a single message.
const MOST_MESSAGES: usize = 100;
const MOST_BYTES: usize = 262_144;

/// Every request to the responder for a batch contained all messages that the batch answers.
pub fn batches_answer_their_questions(world: &World, rows: &Rows) {
    let questions = questions(world);
    for state in rows.table("Conversations").filter(|row| row["sk"] == "STATE") {
        let pk = state["pk"].as_str().unwrap_or_default();
        for batch in rows.partition("Conversations", pk, "BATCH#") {
            let [from, ends] = ["from", "batch"].map(|name| batch[name].as_u64().unwrap_or(0));
            let batch_id = json!(format!("{}-{ends}", state["id"].as_str().unwrap_or_default()));
            for question in questions.iter().filter(|question| question["batch_id"] == batch_id) {
                let answered: Vec<_> = (from..=ends).collect();
                assert_eq!(shown(question), answered, "the request and the batch have different messages: {batch}");
            }
        }
    }
}

/// Returns the requests to the responder, and checks that each is within the limits.
fn questions(world: &World) -> Vec<Value> {
    let asked = world.stack.catcher().sent(Some("responder"), None).into_iter().map(|sent| sent.body);
    let asked: Vec<_> = asked.filter(|question| question["messages"].is_array()).collect();
    for question in &asked {
        let (messages, bytes) = (shown(question).len(), question["messages"].to_string().len());
        assert!(messages <= MOST_MESSAGES, "{messages} messages in {}", question["batch_id"]);
        assert!(messages == 1 || bytes <= MOST_BYTES, "{bytes} bytes in {}", question["batch_id"]);
    }
    asked
}

/// Returns the numbers of the messages in a request, sorted.
fn shown(question: &Value) -> Vec<u64> {
    let messages = question["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut numbers: Vec<_> = messages.iter().filter_map(|message| message["number"].as_u64()).collect();
    numbers.sort_unstable();
    numbers
}
