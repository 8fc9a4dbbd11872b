//! Where the files of mailings are stored, and how an uploaded one is recognized.

use super::identity::MailingId;

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

/// Returns the mailing whose file an object is. `None` for objects that were not uploaded by a
/// form.
pub(crate) fn mailing_of_object(key: &str) -> Option<MailingId> {
    MailingId::parse(key.strip_prefix(UPLOADED)?.strip_suffix(".csv")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_cannot_choose_the_key_of_an_object() {
        let id = MailingId::of("monthly.csv", 0);
        assert_eq!(inline_object(&id, "../a b?"), format!("mailings/inline/{id}/ab.csv"));
    }
}
