//! The link by which a recipient unsubscribes from a list. The token is the entry's id and its
//! HMAC. It is always the same for the same mailing and address, it is not stored, and it does not
//! reveal the address.

use hmac::digest::Key;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use sha2::{Digest, Sha256};

use super::identity::{MailingEntryId, MailingId, email_hash};
use crate::channels::Channel;
use crate::codes::codes;
use crate::suppression::{SuppressionView, reason};
use crate::time::Timestamp;

/// Prefix of the signed text, so that no other use of the secret produces a valid token.
const PURPOSE: &[u8] = b"umavez/unsubscribe/v1\n";

/// Bytes of the HMAC in the link. 128 bits cannot be guessed over HTTP.
const MAC_BYTES: usize = 16;

/// Makes the token: mailing, shard, hash of the address, HMAC (`mlg_…-07-…-…`).
pub fn unsubscribe_token(secret: &[u8], mailing: &MailingId, email: &str, shards: u32) -> String {
    let entry = MailingEntryId::of(mailing, email, shards);
    let mac = mac(secret, &entry).finalize().into_bytes();
    format!("{entry}-{}", hex::encode(&mac[..MAC_BYTES]))
}

/// Returns the entry that a token is for. `None` if none of the secrets signed it. There are two
/// secrets during a rotation, because links in mailboxes live for years.
pub fn verify_unsubscribe<'s>(secrets: impl IntoIterator<Item = &'s [u8]>, token: &str) -> Option<MailingEntryId> {
    let (entry, given) = token.rsplit_once('-')?;
    let entry = MailingEntryId::parse(entry)?;
    let given = hex::decode(given).ok().filter(|given| given.len() == MAC_BYTES)?;
    // This compares in constant time.
    let signed = |secret: &[u8]| mac(secret, &entry).verify_truncated_left(&given).is_ok();
    secrets.into_iter().any(signed).then_some(entry)
}

/// Returns the headers of RFC 2369 and RFC 8058. `base` is the address that serves `/u/…`. It must
/// be https, or mailbox providers ignore the header.
pub fn unsubscribe_headers(base: &str, token: &str) -> [(String, String); 2] {
    [
        ("List-Unsubscribe".to_owned(), format!("<{}>", unsubscribe_url(base, token))),
        ("List-Unsubscribe-Post".to_owned(), "List-Unsubscribe=One-Click".to_owned()),
    ]
}

pub fn unsubscribe_url(base: &str, token: &str) -> String {
    format!("{}/u/{token}", base.trim_end_matches('/'))
}

codes! {
    /// How a recipient unsubscribed.
    UnsubscribeSource {
        /// The mail program's own button (RFC 8058).
        OneClick = "one_click",
        /// The button on our page.
        Page = "page",
        /// An operator added the address.
        Operator = "operator",
    }
}

impl UnsubscribeSource {
    /// Detects the source of a POST to the link. The result is only recorded: any POST
    /// unsubscribes, whatever its body and encoding.
    pub fn of_post(body: &[u8]) -> Self {
        const FIELD: &[u8] = b"List-Unsubscribe";
        if body.windows(FIELD.len()).any(|part| part == FIELD) { Self::OneClick } else { Self::Page }
    }
}

/// A recipient unsubscribed from a list. If there are several requests, the first one is kept. The
/// row is keyed by the list and the hash of the address: the link contains no more than the hash,
/// and the key of an entry has the same hash, so a worker needs no more either.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsubscribeRow {
    /// The list's name as it was written when the recipient unsubscribed; the row's key ignores
    /// case and spaces.
    pub list: String,
    pub email_hash: String,
    /// The mailing whose link was used. `None` if an operator added the row.
    pub mailing_id: Option<MailingId>,
    pub source: UnsubscribeSource,
    /// A note by the operator.
    pub note: Option<String>,
    pub created_at: Timestamp,
}

impl UnsubscribeRow {
    /// The row for a verified link. `list` is the list that its mailing was sent to.
    pub fn by_link(entry: &MailingEntryId, list: &str, source: UnsubscribeSource, now: Timestamp) -> Self {
        Self {
            list: list.to_owned(),
            email_hash: entry.email_hash.clone(),
            mailing_id: Some(entry.mailing.clone()),
            source,
            note: None,
            created_at: now,
        }
    }

    /// The row for a recipient who asked to unsubscribe without the link. `to` is normalized.
    pub fn by_operator(list: String, to: &str, note: Option<String>, now: Timestamp) -> Self {
        Self {
            list,
            email_hash: email_hash(to),
            mailing_id: None,
            source: UnsubscribeSource::Operator,
            note,
            created_at: now,
        }
    }

    /// Returns the row as callers see it. The address is known only if the request names it.
    pub fn view(self, to: Option<&str>) -> SuppressionView {
        SuppressionView {
            senders: Vec::new(),
            channel: Channel::Email,
            list: Some(self.list),
            to: to.map(str::to_owned),
            email_hash: Some(self.email_hash),
            reason: reason::UNSUBSCRIBED.to_owned(),
            note: self.note,
            source: self.source.as_str().to_owned(),
            message_id: None,
            mailing_id: self.mailing_id.map(|id| id.to_string()),
            created_at: self.created_at,
        }
    }
}

fn mac(secret: &[u8], entry: &MailingEntryId) -> Hmac<Sha256> {
    // Hash the secret, so that a secret of any length fits the key.
    let mut key = Key::<Hmac<Sha256>>::default();
    key[..32].copy_from_slice(&Sha256::digest(secret));
    let mut mac = Hmac::<Sha256>::new(&key);
    mac.update(PURPOSE);
    mac.update(entry.to_string().as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"a secret of a deployment";

    fn mailing() -> MailingId {
        MailingId::of("monthly.csv", 0)
    }

    fn token() -> String {
        unsubscribe_token(SECRET, &mailing(), "a@example.com", 99)
    }

    #[test]
    fn a_token_is_stable_and_identifies_its_entry() {
        assert_eq!(
            token(),
            "mlg_7face19d7d5e1e6f67aa83ba7af0a67c-02-08168cd80dfd534ab0f10af10f1303fe-2fa9c077e594ce61886ea0922505b857"
        );
        assert_eq!(verify_unsubscribe([SECRET], &token()), Some(MailingEntryId::of(&mailing(), "a@example.com", 99)));
        assert_ne!(unsubscribe_token(SECRET, &mailing(), "b@example.com", 99), token());
    }

    #[test]
    fn links_of_the_previous_secret_stay_valid_after_a_change() {
        assert!(verify_unsubscribe([b"new".as_slice(), SECRET], &token()).is_some());
        assert_eq!(verify_unsubscribe([b"new".as_slice()], &token()), None);
        assert_eq!(verify_unsubscribe([], &token()), None);
    }

    #[test]
    fn an_altered_token_is_refused() {
        let token = token();
        for at in 0..token.len() {
            let mut other = token.clone().into_bytes();
            other[at] = if other[at] == b'0' { b'1' } else { b'0' };
            let other = String::from_utf8(other).expect("ASCII");
            assert_eq!(verify_unsubscribe([SECRET], &other), None, "{other}");
            assert_eq!(verify_unsubscribe([SECRET], &token[..at]), None, "cut at {at}");
        }
        for other in ["", "-", "é-é", &format!("{token}00"), &format!("{token}-"), &token.to_uppercase()] {
            assert_eq!(verify_unsubscribe([SECRET], other), None, "{other}");
        }
    }

    #[test]
    fn a_link_unsubscribes_the_address_from_the_list_and_not_from_the_mailing() {
        let now = Timestamp::from_seconds(0);
        let other = MailingId::of("next.csv", 0);
        let rows = [(mailing(), 99), (other, 3)].map(|(mailing, shards)| {
            let token = unsubscribe_token(SECRET, &mailing, "a@example.com", shards);
            let entry = verify_unsubscribe([SECRET], &token).expect("signed");
            UnsubscribeRow::by_link(&entry, "Clientes", UnsubscribeSource::Page, now)
        });
        assert_eq!((&rows[0].list, &rows[0].email_hash), (&rows[1].list, &rows[1].email_hash));
        assert_eq!(rows[0].email_hash, MailingEntryId::of(&mailing(), "a@example.com", 1).email_hash);
        let stored = serde_json::to_value(&rows[0]).expect("json");
        assert_eq!((&stored["source"], &stored["mailing_id"]), (&"page".into(), &mailing().as_str().into()));
        assert!(!stored.to_string().contains("a@example.com"), "the row does not contain the address");
        assert_eq!(serde_json::from_value::<UnsubscribeRow>(stored).expect("read back"), rows[0]);
    }

    #[test]
    fn an_operator_writes_the_same_unsubscribe_row_without_a_mailing() {
        let note = Some("by telephone".to_owned());
        let row = UnsubscribeRow::by_operator("Clientes".to_owned(), "a@example.com", note, Timestamp::from_seconds(0));
        assert_eq!(row.email_hash, MailingEntryId::of(&mailing(), "a@example.com", 99).email_hash);
        let stored = serde_json::to_value(&row).expect("json");
        assert!(!stored.to_string().contains("a@example.com"), "the row does not contain the address");
        assert_eq!(serde_json::from_value::<UnsubscribeRow>(stored).expect("read back"), row);
        let shown = serde_json::to_value(row.view(None)).expect("json");
        assert_eq!(
            (&shown["to"], &shown["list"], &shown["source"]),
            (&().into(), &"Clientes".into(), &"operator".into())
        );
    }

    #[test]
    fn a_one_click_request_is_distinguished_from_the_button_of_our_page() {
        let form = b"--x\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--x--";
        for (body, source) in [
            (&b"List-Unsubscribe=One-Click"[..], UnsubscribeSource::OneClick),
            (form, UnsubscribeSource::OneClick),
            (b"", UnsubscribeSource::Page),
            (b"x=\xff", UnsubscribeSource::Page),
        ] {
            assert_eq!(UnsubscribeSource::of_post(body), source);
        }
    }

    #[test]
    fn the_headers_are_those_of_one_click_unsubscribe() {
        let [list, post] = unsubscribe_headers("https://api.example.com/", "T");
        assert_eq!(list, ("List-Unsubscribe".to_owned(), "<https://api.example.com/u/T>".to_owned()));
        assert_eq!(post, ("List-Unsubscribe-Post".to_owned(), "List-Unsubscribe=One-Click".to_owned()));
    }
}
