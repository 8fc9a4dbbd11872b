//! The upload location of a backfill's lines, and the detection of finished uploads.

use super::identity::BackfillId;
use crate::uploaded::Object;

/// The prefix of the object keys of uploaded lines.
pub const UPLOAD_PREFIX: &str = "backfills/";

/// Uploaded lines. `etag` identifies their version, because an object can be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub id: BackfillId,
    pub etag: String,
    pub size: u64,
}

impl Upload {
    /// Returns the upload for an object of the bucket. `None` if the object does not hold the lines
    /// of a backfill.
    pub(crate) fn of(object: Object) -> Option<Self> {
        let id = object.key.strip_prefix(UPLOAD_PREFIX).and_then(BackfillId::parse)?;
        Some(Self { id, etag: object.etag, size: object.size })
    }
}

pub fn upload_key(id: &BackfillId) -> String {
    format!("{UPLOAD_PREFIX}{id}")
}
