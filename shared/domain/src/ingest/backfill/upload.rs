//! Where the uploaded lines of backfills are stored, and how they are recognized.

use super::identity::BackfillId;

/// The prefix of the object keys of uploaded lines.
pub const UPLOAD_PREFIX: &str = "backfills/";

/// Returns the backfill whose lines an object holds. `None` for other objects.
pub(crate) fn backfill_of_object(key: &str) -> Option<BackfillId> {
    key.strip_prefix(UPLOAD_PREFIX).and_then(BackfillId::parse)
}

pub fn upload_key(id: &BackfillId) -> String {
    format!("{UPLOAD_PREFIX}{id}")
}
