//! The invariants of conversations.

use serde_json::{Value, json};

use crate::World;

/// The limits of one batch: messages, and bytes of their JSON unless it is a single message.
const MOST_MESSAGES: usize = 100;
const MOST_BYTES: usize = 262_144;

/// I1 and I4 for conversations: every message has its own number, every answered message has its
/// batch, and a conversation with unanswered messages is in the index by time or held for a person.
pub async fn conversations_add_up(world: &World) {
    let rows = world.rows("ConversationsTable").await;
    let questions = questions(world);
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap_or(0);
    for state in rows.iter().filter(|row| row["sk"] == "STATE") {
        let (received, claimed, answered) =
            (number(state, "received"), number(state, "claimed"), number(state, "answered"));
        assert!(answered <= claimed && claimed <= received, "out of order: {state}");
        assert_eq!(state["phase"] == "idle", answered == claimed, "{state}");
        let own = rows.iter().filter(|row| row["pk"] == state["pk"]);
        let mut numbers: Vec<_> = own.clone().filter_map(|row| row["number"].as_u64()).collect();
        numbers.sort_unstable();
        // TTL deletes old rows; the remaining numbers have no gap.
        let expected: Vec<_> = (received + 1 - numbers.len() as u64..=received).collect();
        assert_eq!(numbers, expected, "a number is missing or was assigned twice: {state}");
        let mut ends = 0;
        let mut batches: Vec<_> = own.filter(|row| row["batch"].is_u64()).collect();
        batches.sort_by_key(|batch| number(batch, "batch"));
        for batch in batches {
            assert!(number(batch, "from") > ends, "batches overlap: {batch}");
            ends = number(batch, "batch");
            assert!(ends <= claimed, "{batch}");
            // Every request to the responder for this batch contained all messages that the batch
            // answers.
            let batch_id = json!(format!("{}-{ends}", state["id"].as_str().unwrap_or_default()));
            for question in questions.iter().filter(|question| question["batch_id"] == batch_id) {
                let answered: Vec<_> = (number(batch, "from")..=ends).collect();
                assert_eq!(shown(question), answered, "the request and the batch have different messages: {batch}");
            }
        }
        let open = received > answered;
        assert_eq!(
            open || state["hold"].is_object(),
            state["wake"].is_string(),
            "exactly open conversations are in the index by time: {state}"
        );
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
