//! What must hold of conversations.

use serde_json::Value;

use crate::World;

/// I1 and I4 for conversations: every message has its own number, every answered one its batch, and whatever is not
/// answered is looked for, or a person has it.
pub async fn conversations_add_up(world: &World) {
    let rows = world.rows("ConversationsTable").await;
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
        }
        let open = received > answered;
        assert_eq!(open || state["hold"].is_object(), state["wake"].is_string(), "nobody looks for it: {state}");
    }
}
