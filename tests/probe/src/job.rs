//! A job's row and the message that its row emits.

use serde::{Deserialize, Serialize};
use umavez_domain::keys::Key;
use umavez_domain::outbox::Emit;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub id: String,
    pub state: State,
    pub owner: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit: Option<Emit>,
    /// Milliseconds; recovery emits again what is pending past this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_at: Option<i64>,
    /// Who completed it. More than one is a broken promise.
    pub completions: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    Pending,
    Done,
}

/// What the queue carries.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Message {
    Job {
        v: u32,
        id: String,
    },
    /// Told to misbehave, by a test.
    Panic,
    Fail,
    Hang,
    /// Not now: asks for itself again in so many seconds.
    Hide {
        seconds: i32,
    },
}

pub fn key(id: &str) -> Key {
    Key { pk: format!("JOB#{id}"), sk: "JOB".to_owned() }
}

pub fn emit(id: &str, seq: u64, not_before: Option<i64>) -> Emit {
    let body = serde_json::json!({"kind": "job", "v": 1, "id": id}).to_string();
    Emit { seq, queue: "work".to_owned(), not_before, id: format!("job#{id}#{seq}"), body }
}
