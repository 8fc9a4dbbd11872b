//! Where the files of mailings are stored, and how an uploaded one is recognized.

use super::identity::MailingId;
use crate::uploaded::Object;

/// Prefixes of objects that callers upload by a form, and of those that came within a request. S3
/// sends notifications only about the first.
const UPLOADED: &str = "mailings/uploads/";
const INLINE: &str = "mailings/inline/";

/// Returns the object key for a mailing's file that is uploaded by a form.
pub fn uploaded_object(id: &MailingId) -> String {
    format!("{UPLOADED}{id}.csv")
}

/// Returns the object key for a file that came within its request. Each request has a key of its
/// own, so a request that loses the race for the name overwrites nothing.
pub fn inline_object(id: &MailingId, request_id: &str) -> String {
    let request: String = request_id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    format!("{INLINE}{id}/{request}.csv")
}

/// A file that was uploaded by a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    pub mailing: MailingId,
    pub etag: String,
    pub size: u64,
}

impl Arrived {
    /// Returns the uploaded file that an object of the bucket is. `None` for objects that were not
    /// uploaded by a form.
    pub(crate) fn of(object: Object) -> Option<Self> {
        let mailing = MailingId::parse(object.key.strip_prefix(UPLOADED)?.strip_suffix(".csv")?)?;
        Some(Self { mailing, etag: object.etag, size: object.size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_no_key_that_a_request_could_choose() {
        let id = MailingId::of("monthly.csv", 0);
        assert_eq!(inline_object(&id, "../a b?"), format!("mailings/inline/{id}/ab.csv"));
    }
}
