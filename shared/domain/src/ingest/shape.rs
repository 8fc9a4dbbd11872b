//! The shape that keys have under each policy. Keys that a caller made up are refused here, before
//! they can own a slot.

use super::entry::{Entry, Keys, Source};
use super::link::canonical_url;
use super::mail::{message_id, thread_hash};
use super::reading::LONGEST_MESSAGE_ID;
use super::telegram::thought_key;
use super::words::PolicyKey;
use crate::codes::FieldProblem;
use crate::fields::Fields;
use crate::id::is_hex;

pub const POLICY: &str = "idempotency_policy_key";
pub const PRIMARY: &str = "idempotency_key_primary";
pub const SECONDARY: &str = "idempotency_key_secondary";

/// Refuses keys that do not have the shape of their policy, or that belong to another entry.
///
/// Secondary keys are not computed again: their derivation may have a newer version than when the
/// entry was normalized.
pub fn check_keys(fields: &mut Fields<'_>, entry: &Entry, keys: &Keys) {
    if keys.policy.system() != entry.source.system() || entry.content_type.policy() != keys.policy {
        let detail = format!("is not for {} from {}", entry.content_type, entry.source.system());
        return fields.refuse(POLICY, FieldProblem::Conflicting, detail);
    }
    match &keys.primary {
        Some(primary) => check_primary(fields, entry, keys.policy, primary),
        None if keys.policy == PolicyKey::EmailNewsletterV1 => {}
        None => fields.refuse(PRIMARY, FieldProblem::Missing, "is required by this policy"),
    }
    match &keys.secondary {
        Some(_) if keys.policy == PolicyKey::EmailCorrespondenceThreadV1 => {
            fields.refuse(SECONDARY, FieldProblem::NotAllowed, "this policy has no secondary key");
        }
        Some(secondary) if !is_sha256(secondary) => {
            fields.refuse(SECONDARY, FieldProblem::Malformed, "must be a SHA-256 in lower-case hex");
        }
        _ => {}
    }
}

fn check_primary(fields: &mut Fields<'_>, entry: &Entry, policy: PolicyKey, primary: &str) {
    let (shaped, wanted) = match policy {
        PolicyKey::TelegramThoughtV1 => (is_thought_key(primary), "tg:{chat_id}:{message_id}"),
        PolicyKey::TelegramLinkV1 => (canonical_url(primary).as_deref() == Ok(primary), "a canonical URL"),
        PolicyKey::EmailNewsletterV1 => (is_message_id(primary), "a Message-ID in angle brackets"),
        PolicyKey::EmailCorrespondenceThreadV1 => (is_sha256(primary), "a SHA-256 in lower-case hex"),
    };
    if !shaped {
        fields.refuse(PRIMARY, FieldProblem::Malformed, format!("must be {wanted}"));
    } else if own_key(entry, policy).is_some_and(|own| own != primary) {
        fields.refuse(PRIMARY, FieldProblem::Conflicting, "is the key of another entry");
    }
}

/// Derives the primary key from the fields of the entry. `None` if the fields are not sufficient.
fn own_key(entry: &Entry, policy: PolicyKey) -> Option<String> {
    match (policy, &entry.source) {
        (PolicyKey::TelegramThoughtV1, Source::Telegram { chat_id, message_id, .. }) => {
            Some(thought_key((*chat_id)?, (*message_id)?))
        }
        (PolicyKey::TelegramLinkV1, _) => entry.canonical_url.clone(),
        (PolicyKey::EmailNewsletterV1, Source::Email { message_id, .. }) => message_id.clone(),
        (PolicyKey::EmailCorrespondenceThreadV1, _) => entry.subject_base.as_deref().map(thread_hash),
        _ => None,
    }
}

fn is_thought_key(key: &str) -> bool {
    let ids = key.strip_prefix("tg:").and_then(|ids| ids.split_once(':'));
    let Some((chat, message)) = ids else { return false };
    let (Ok(chat), Ok(message)) = (chat.parse(), message.parse()) else { return false };
    // Only our own spelling is accepted: another spelling of the same numbers is not a separate
    // key.
    chat != 0 && message > 0 && thought_key(chat, message) == key
}

fn is_message_id(key: &str) -> bool {
    key.len() <= LONGEST_MESSAGE_ID + 2 && message_id(key).as_deref() == Some(key)
}

fn is_sha256(key: &str) -> bool {
    is_hex(key, 64)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::ingest::words::ContentType;

    const HASH: &str = "458c43fa58f355b77307aabafcbb58b5d461fe0b31be519f0f4255037b364ae3";

    fn entry(content_type: ContentType) -> Entry {
        let source = match content_type {
            ContentType::Thought | ContentType::Note | ContentType::Link => {
                Source::Telegram { chat_id: None, message_id: None, date: None, edit_date: None }
            }
            _ => Source::Email { message_id: None, date: None },
        };
        let (url, canonical_url, from, from_addr, subject, subject_base) = (None, None, None, None, None, None);
        let clean_text = "x".to_owned();
        Entry { source, content_type, clean_text, url, canonical_url, from, from_addr, subject, subject_base }
    }

    fn check(entry: &Entry, policy: PolicyKey, primary: &str, secondary: &str) -> Vec<(String, FieldProblem)> {
        let key = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let keys = Keys { policy, primary: key(primary), secondary: key(secondary) };
        let body = Map::new();
        let mut fields = Fields::of(&body);
        check_keys(&mut fields, entry, &keys);
        let errors = fields.finish(Some(())).err().unwrap_or_default();
        errors.into_iter().map(|error| (error.field, error.code)).collect()
    }

    #[test]
    fn keys_with_the_format_of_their_policy_are_accepted() {
        let long = format!("<{}>", "a".repeat(LONGEST_MESSAGE_ID));
        let cases = [
            (ContentType::Thought, "tg:-100:7", ""),
            (ContentType::Note, "tg:1:7", HASH),
            (ContentType::Link, "https://example.com/?a=1", HASH),
            (ContentType::Link, "https://example.com/", ""),
            (ContentType::Newsletter, "<a@b>", HASH),
            (ContentType::Newsletter, long.as_str(), ""),
            (ContentType::Newsletter, "", HASH),
            (ContentType::CorrespondenceThread, HASH, ""),
        ];
        for (content_type, primary, secondary) in cases {
            assert_eq!(check(&entry(content_type), content_type.policy(), primary, secondary), [], "{primary}");
        }
    }

    #[test]
    fn keys_with_another_format_are_refused() {
        let cases = [
            (ContentType::Thought, vec!["tg:1", "tg:a:b", "tg:1:2:3", "tg:01:2", "tg:+1:2", "tg:1:0", "1:2", HASH]),
            (ContentType::Link, vec!["example.com", "https://example.com", "https://Example.com/", "ftp://a/", HASH]),
            (ContentType::Newsletter, vec!["a@b", "<>", "<a b@c>", "<a@b"]),
            (ContentType::CorrespondenceThread, vec!["lunch?", "ABC", &HASH[1..]]),
        ];
        for (content_type, keys) in cases {
            for key in keys {
                let errors = check(&entry(content_type), content_type.policy(), key, "");
                assert_eq!(errors, [(PRIMARY.to_owned(), FieldProblem::Malformed)], "{key}");
            }
        }
        let link = entry(ContentType::Link);
        let errors = check(&link, PolicyKey::TelegramLinkV1, "https://example.com/", "abc");
        assert_eq!(errors, [(SECONDARY.to_owned(), FieldProblem::Malformed)]);
        let errors =
            check(&entry(ContentType::CorrespondenceThread), PolicyKey::EmailCorrespondenceThreadV1, HASH, HASH);
        assert_eq!(errors, [(SECONDARY.to_owned(), FieldProblem::NotAllowed)]);
        let errors = check(&link, PolicyKey::TelegramLinkV1, "", HASH);
        assert_eq!(errors, [(PRIMARY.to_owned(), FieldProblem::Missing)]);
    }

    #[test]
    fn a_policy_applies_only_to_its_own_source_and_content_type() {
        for content_type in ContentType::ALL {
            for policy in PolicyKey::ALL {
                let errors = check(&entry(*content_type), *policy, "", "");
                let conflict = errors == [(POLICY.to_owned(), FieldProblem::Conflicting)];
                assert_eq!(conflict, content_type.policy() != *policy, "{content_type} {policy}");
            }
        }
        let mail = Entry { content_type: ContentType::Thought, ..entry(ContentType::Newsletter) };
        let errors = check(&mail, PolicyKey::TelegramThoughtV1, "tg:1:2", "");
        assert_eq!(errors, [(POLICY.to_owned(), FieldProblem::Conflicting)]);
    }

    #[test]
    fn the_key_of_another_entry_is_refused() {
        let thought = Entry {
            source: Source::Telegram { chat_id: Some(1), message_id: Some(2), date: None, edit_date: None },
            ..entry(ContentType::Thought)
        };
        let link = Entry { canonical_url: Some("https://a.example/".into()), ..entry(ContentType::Link) };
        let thread = Entry { subject_base: Some("lunch?".into()), ..entry(ContentType::CorrespondenceThread) };
        let issue = Entry {
            source: Source::Email { message_id: Some("<a@b>".into()), date: None },
            ..entry(ContentType::Newsletter)
        };
        let other = [(&thought, "tg:1:3"), (&link, "https://b.example/"), (&thread, HASH), (&issue, "<other@b>")];
        for (entry, key) in other {
            let errors = check(entry, entry.content_type.policy(), key, "");
            assert_eq!(errors, [(PRIMARY.to_owned(), FieldProblem::Conflicting)], "{key}");
        }
        let own = "f4f500eab9a4c33d5c3e944e0518e5c5e722d8a43df6797ca661949866f19a1f";
        assert_eq!(check(&thread, PolicyKey::EmailCorrespondenceThreadV1, own, ""), []);
    }
}
