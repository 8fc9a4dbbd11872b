//! What must hold of conversations.

use serde_json::{Value, json};

use crate::World;

/// What one batch takes at most: messages, and bytes of their JSON unless it is a single message.
const MOST_MESSAGES: usize = 100;
const MOST_BYTES: usize = 262_144;

/// I1 and I4 for conversations: every message has its own number, every answered one its batch, and
/// whatever is not answered is looked for, or a person has it.
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
        // Rows go when they are old; what is left has no gap.
        let expected: Vec<_> = (received + 1 - numbers.len() as u64..=received).collect();
        assert_eq!(numbers, expected, "a number is missing or was given twice: {state}");
        let mut ends = 0;
        let mut batches: Vec<_> = own.filter(|row| row["batch"].is_u64()).collect();
        batches.sort_by_key(|batch| number(batch, "batch"));
        for batch in batches {
            assert!(number(batch, "from") > ends, "batches overlap: {batch}");
            ends = number(batch, "batch");
            assert!(ends <= claimed, "{batch}");
            // The responder was shown every message that the batch answers, whenever it was asked
            // about it.
            let batch_id = json!(format!("{}-{ends}", state["id"].as_str().unwrap_or_default()));
            for question in questions.iter().filter(|question| question["batch_id"] == batch_id) {
                let answered: Vec<_> = (number(batch, "from")..=ends).collect();
                assert_eq!(shown(question), answered, "not shown, and answered: {batch}");
            }
        }
        let open = received > answered;
        assert_eq!(open || state["hold"].is_object(), state["wake"].is_string(), "nobody looks for it: {state}");
    }
}

/// What the responder was asked, each question within its bounds.
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

/// The numbers of the messages in a question, sorted.
fn shown(question: &Value) -> Vec<u64> {
    let messages = question["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut numbers: Vec<_> = messages.iter().filter_map(|message| message["number"].as_u64()).collect();
    numbers.sort_unstable();
    numbers
}
