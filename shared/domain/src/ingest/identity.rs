//! The id of an entry in the store.

use super::words::{PolicyKey, Schema};
use crate::codes::MatchedBy;
use crate::id::hash_id;

hash_id! {
    /// The id of an entry, and of the slot that one of its keys owns. It is derived from schema,
    /// policy, kind of key and key, so that one conditional write decides which entry owns the
    /// slot.
    EntryId = "ent_", 32
}

impl EntryId {
    /// Derives the id. Schema and policy are words without line ends and the key comes last, so two
    /// different inputs never produce the same text.
    pub fn of(schema: Schema, policy: PolicyKey, which: MatchedBy, key: &str) -> Self {
        Self::hash(&format!("{schema}\n{policy}\n{which}\n{key}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_depends_only_on_schema_policy_and_key() {
        let of = |schema, which, key: &str| EntryId::of(schema, PolicyKey::EmailNewsletterV1, which, key);
        let id = of(Schema::Pkm, MatchedBy::Primary, "<a@b>");
        assert_eq!(id.as_str(), "ent_6f1fea2ee3a7464cf6fa491333483a63");
        assert_eq!(of(Schema::Pkm, MatchedBy::Primary, "<a@b>"), id);
        assert_ne!(of(Schema::PkmTest, MatchedBy::Primary, "<a@b>"), id);
        assert_ne!(of(Schema::Pkm, MatchedBy::Secondary, "<a@b>"), id);
        assert_ne!(EntryId::of(Schema::Pkm, PolicyKey::TelegramLinkV1, MatchedBy::Primary, "<a@b>"), id);
    }

    #[test]
    fn only_the_canonical_form_of_an_id_is_parsed() {
        let id = EntryId::of(Schema::Pkm, PolicyKey::TelegramThoughtV1, MatchedBy::Primary, "tg:1:2");
        assert_eq!(EntryId::parse(id.as_str()), Some(id.clone()));
        for text in ["", "ent_", "ent_XYZ", &id.as_str()[4..], &id.as_str().to_uppercase()] {
            assert_eq!(EntryId::parse(text), None, "{text}");
        }
    }
}
