//! Uploaded files: the S3 notifications about them, and a place in one of them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long a mailing or a backfill waits for its upload. This is hours longer than an upload form
/// is valid.
pub const UPLOAD_MS: i64 = 8 * 3_600_000;

/// A file that was uploaded for the mailing or the backfill with this id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded<Id> {
    pub id: Id,
    /// The version of the content: an object can be replaced.
    pub etag: String,
    pub size: u64,
}

/// Returns the files that a message reports. `None` if it is not an S3 notification. `id` returns
/// the id for an object's key, or `None` for objects that are not such files. Keys are as S3 writes
/// them, with escapes; ours contain no character that S3 escapes.
pub(crate) fn uploads<Id>(message: &str, id: impl Fn(&str) -> Option<Id>) -> Option<Vec<Uploaded<Id>>> {
    let message: Value = serde_json::from_str(message).ok()?;
    let upload = |record: &Value| {
        let object = &record["s3"]["object"];
        let (key, etag) = (object["key"].as_str()?, object["eTag"].as_str()?);
        Some(Uploaded { id: id(key)?, etag: etag.trim_matches('"').to_owned(), size: object["size"].as_u64()? })
    };
    if let Some(records) = message["Records"].as_array() {
        return Some(records.iter().filter_map(upload).collect());
    }
    // S3 sends a test event when notifications are configured.
    (message["Event"] == "s3:TestEvent").then(Vec::new)
}

/// A place in a file: where its next line or record begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The number of the next line, from 1 on.
    pub next_line: u64,
    pub next_byte: u64,
    /// The position is inside of a line or record that is too long. The reader skips to its end.
    #[serde(default)]
    pub skipping: bool,
}

impl Position {
    pub const START: Self = Self { next_line: 1, next_byte: 0, skipping: false };

    pub(crate) fn further(self, bytes: usize) -> Self {
        Self { next_byte: self.next_byte + bytes as u64, ..self }
    }
}
