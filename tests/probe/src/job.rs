//! The row of a job and the message that the row emits.

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
    /// Milliseconds. Recovery emits a job again that is still pending after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_at: Option<i64>,
    /// The turns that completed it. More than one breaks an invariant.
    pub completions: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    Pending,
    Done,
}

/// A message of the queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Message {
    Job {
        v: u32,
        id: String,
    },
    /// Makes the worker panic, for a test.
    Panic,
    Fail,
    Hang,
    /// Hides itself for this many seconds and fails.
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
