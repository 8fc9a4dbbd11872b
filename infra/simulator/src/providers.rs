//! How providers react, and what they heard.

use std::sync::Arc;

use serde_json::{Value, json};

/// One call that a provider heard.
#[derive(Debug, Clone)]
pub struct Heard {
    /// When the provider had the request.
    pub at_ms: u64,
    /// When the call began.
    pub begun_ms: u64,
    /// The function instance that called.
    pub instance: Arc<str>,
    pub provider: String,
    /// The chat, phone number or address.
    pub to: String,
    /// The text of the message, which is unique to it in a play.
    pub text: String,
    pub reaction: Reaction,
    /// How many seconds the provider asks all callers to wait.
    pub parks_s: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    Accepts,
    /// It accepts the message, and the answer is lost.
    AcceptsSilently,
    /// It accepts the message, and answers after its caller has stopped waiting.
    AcceptsLate,
    /// The request breaks off before the provider has all of it.
    NeverHears,
    Refuses,
    Throttles,
    Fails,
}

impl Reaction {
    pub fn draw(dice: &mut fastrand::Rng) -> Self {
        match dice.u32(0..8) {
            0 | 1 => Self::AcceptsSilently,
            2 => Self::AcceptsLate,
            3 => Self::NeverHears,
            4 => Self::Refuses,
            5 | 6 => Self::Throttles,
            _ => Self::Fails,
        }
    }

    /// Returns whether the recipient gets the message.
    pub fn is_accepted(self) -> bool {
        matches!(self, Self::Accepts | Self::AcceptsSilently | Self::AcceptsLate)
    }

    /// Returns the status and body of an answer that refuses the message.
    pub fn refusal(self, provider: &str, retry_after: u64) -> Option<(u16, Value)> {
        let answer = match (self, provider) {
            (Self::Refuses, "telegram") => {
                (403, json!({"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"}))
            }
            (Self::Refuses, "ses") => (400, json!({"__type": "BadRequestException", "message": "no"})),
            (Self::Refuses, _) => {
                (400, json!({"status": 400, "error": "Bad Request", "response": {"message": ["Text is required"]}}))
            }
            (Self::Throttles, "telegram") => {
                let wait = json!({"retry_after": retry_after});
                (429, json!({"ok": false, "error_code": 429, "description": "Too Many Requests", "parameters": wait}))
            }
            (Self::Throttles, "ses") => (400, json!({"__type": "TooManyRequestsException", "message": "slow down"})),
            (Self::Throttles, _) => (429, json!({"message": "slow down"})),
            (Self::Fails, _) => (500, json!({"message": "an error"})),
            _ => return None,
        };
        Some(answer)
    }
}

/// Returns the recipient of a message.
pub fn recipient(provider: &str, body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let to = match provider {
        "telegram" => &body["chat_id"],
        "ses" => &body["Destination"]["ToAddresses"][0],
        _ => &body["number"],
    };
    to.as_str().map_or_else(|| to.to_string(), str::to_owned)
}

/// Returns the text of a message, which identifies it.
pub fn text_of(provider: &str, body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = match provider {
        "ses" => &body["Content"]["Simple"]["Subject"]["Data"],
        "responder" => &body["batch_id"],
        _ => &body["text"],
    };
    text.as_str().unwrap_or_default().to_owned()
}
