//! What was sent for mailings.

use std::collections::{BTreeMap, HashMap};

use umavez_domain::keys;
use umavez_domain::mailings::MailingEntryId;
use umavez_invariants::Rows;

use crate::World;

/// I5: each attempt calls the provider at most once, and each mail names its attempt.
pub fn calls_are_attempts(world: &World, rows: &Rows) {
    let mut mails: HashMap<(String, String), BTreeMap<String, usize>> = HashMap::new();
    for sent in world.stack.catcher().sent(Some("email"), None) {
        let tags = sent.body["EmailTags"].as_array().cloned().unwrap_or_default();
        let tag = |name: &str| {
            let tag = tags.iter().find(|tag| tag["Name"] == name);
            tag.and_then(|tag| tag["Value"].as_str()).unwrap_or_default().to_owned()
        };
        let Some(entry) = MailingEntryId::parse(&tag("message_id")) else { continue };
        let key = keys::mailing_entry(&entry);
        *mails.entry((key.pk, key.sk)).or_default().entry(tag("attempt")).or_default() += 1;
    }
    for entry in rows.table("Mailings").filter(|row| row["email"].is_string()) {
        let key =
            (entry["pk"].as_str().unwrap_or_default().to_owned(), entry["sk"].as_str().unwrap_or_default().to_owned());
        let of_it = mails.remove(&key).unwrap_or_default();
        assert!(of_it.values().all(|times| *times == 1), "an attempt was sent twice: {entry}");
        let attempts = entry["attempt"].as_u64().unwrap_or(0);
        assert!(of_it.len() as u64 <= attempts, "more mails than attempts: {entry}");
        if entry["state"] == "SENT" {
            assert!(!of_it.is_empty(), "SENT, but there is no mail: {entry}");
        }
    }
    assert!(mails.is_empty(), "mails without an entry: {mails:?}");
}
