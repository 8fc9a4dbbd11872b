//! Where the lines of a backfill are uploaded to, and how their arrival is recognized.

use super::identity::BackfillId;
use crate::uploaded::Object;

/// What the keys of uploaded lines begin with.
pub const UPLOAD_PREFIX: &str = "backfills/";

/// Lines that have arrived, with the version that they are: an object can be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub id: BackfillId,
    pub etag: String,
    pub size: u64,
}

impl Upload {
    /// Returns the upload that an object of the bucket is; `None` for objects that are no lines of
    /// a backfill.
    pub(crate) fn of(object: Object) -> Option<Self> {
        let id = object.key.strip_prefix(UPLOAD_PREFIX).and_then(BackfillId::parse)?;
        Some(Self { id, etag: object.etag, size: object.size })
    }
}

pub fn upload_key(id: &BackfillId) -> String {
    format!("{UPLOAD_PREFIX}{id}")
}
