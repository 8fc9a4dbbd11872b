//! What reaches the API from outside as a consequence of a call: the clients of a workload deliver
//! it.

use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub enum Outside {
    /// A responder that answered 202 has its reply.
    Reply { conversation: String, body: Value },
    /// Evolution reports a message that this system sent.
    Echo { key: String, to: String, text: String },
}

/// A part of a reply that is too long for one message.
const PADDING: usize = 3_000;

/// Draws how a responder answers a question: with a reply that repeats the messages, sometimes a
/// long one, with silence, or later. Returns the status, the body, and the reply that comes later.
pub fn respond(question: &Value, dice: &mut fastrand::Rng) -> (u16, Value, Option<Outside>) {
    let messages = question["messages"].as_array().into_iter().flatten();
    let lines: Vec<_> = messages.filter_map(|message| message["text"].as_str()).collect();
    match dice.u32(0..10) {
        0 => (200, json!({"reply": null}), None),
        // A long reply to many messages would have a hundred parts.
        1 if lines.len() < 10 => {
            let padding = format!("\n{}\n", "x".repeat(PADDING));
            (200, json!({"reply": lines.join(&padding) + &padding + "end"}), None)
        }
        2 | 3 => {
            let conversation = question["conversation_id"].as_str().unwrap_or_default().to_owned();
            let body = json!({"batch_id": question["batch_id"], "reply": lines.join("\n")});
            (202, json!({}), Some(Outside::Reply { conversation, body }))
        }
        _ => (200, json!({"reply": lines.join("\n")}), None),
    }
}
