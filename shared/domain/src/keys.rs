//! The only place that formats a key. Keys are stored for years: a changed golden string is a data migration.

use uuid::Uuid;

use crate::access::KeyId;
use crate::ingest::{BackfillId, EntryId, PolicyKey, Schema};

/// A primary key of any of the tables: all of them have `pk` and `sk`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub pk: String,
    pub sk: String,
}

/// The prefix of intent rows within their client's partition.
pub const INTENT_PREFIX: &str = "INTENT#";

/// The partition that holds everything about one client in the Intents table.
pub fn intents_of_client(client: Uuid) -> String {
    format!("CLIENT#{}", client.hyphenated())
}

/// The row of one intent.
pub fn intent(client: Uuid, fingerprint: &str) -> Key {
    Key { pk: intents_of_client(client), sk: format!("{INTENT_PREFIX}{fingerprint}") }
}

/// The row that guards a rolling window, or a contact over all references: of one bucket, or rolling. Types have no `#` in
/// their names.
pub fn intent_guard(client: Uuid, intent_type: &str, reference: Option<Uuid>, bucket: Option<i64>) -> Key {
    let reference = reference.map_or_else(|| "contact".to_owned(), |id| id.hyphenated().to_string());
    let bucket = bucket.map(|bucket| format!("#{bucket}")).unwrap_or_default();
    Key { pk: intents_of_client(client), sk: format!("GUARD#{intent_type}#{reference}{bucket}") }
}

/// A row beside another, of the same partition, by the sort key that the other one names.
pub fn beside(other: &Key, sk: &str) -> Key {
    Key { pk: other.pk.clone(), sk: sk.to_owned() }
}

/// What the partition of an API key begins with.
pub const API_KEY_PREFIX: &str = "APIKEY#";

/// The row of one API key in the Config table. A partition each: every request reads one.
pub fn api_key(id: &KeyId) -> Key {
    Key { pk: format!("{API_KEY_PREFIX}{id}"), sk: "KEY".to_owned() }
}

/// The partition of the Config table that holds what every insert must know, the test mode and all policies: one
/// consistent query reads it.
pub const INGEST_CONFIG: &str = "INGEST";

/// The row that says which schema is in use.
pub fn test_mode() -> Key {
    Key { pk: INGEST_CONFIG.to_owned(), sk: "IS_TEST_MODE".to_owned() }
}

/// The prefix of policy rows within their partition.
pub const POLICY_PREFIX: &str = "POLICY#";

/// The row of one policy in one schema.
pub fn policy(schema: Schema, policy: PolicyKey) -> Key {
    Key { pk: INGEST_CONFIG.to_owned(), sk: format!("{POLICY_PREFIX}{schema}#{policy}") }
}

/// The slot of one of an entry's keys in its schema's table. The entry lives in one of its slots; a marker stands in
/// each of the others, in the very place where an entry of that key would be.
pub fn entry(slot: &EntryId) -> Key {
    Key { pk: format!("ENTRY#{slot}"), sk: "ENTRY".to_owned() }
}

/// The row of a backfill.
pub fn backfill(id: &BackfillId) -> Key {
    Key { pk: format!("BACKFILL#{id}"), sk: "JOB".to_owned() }
}

/// The lines of a backfill that came with its request.
pub fn backfill_input(id: &BackfillId) -> Key {
    Key { pk: format!("BACKFILL#{id}"), sk: "INPUT".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::PresentedKey;
    use crate::codes::MatchedBy;

    #[test]
    fn golden_keys() {
        let client = Uuid::try_parse("91b7584a-d8f1-4cd6-b0e1-414c1027c4d1").expect("a UUID");
        let reference = Uuid::try_parse("1e2feb89-7ed4-4c2c-9cc4-a6ce78e51061").expect("a UUID");
        let shown = |key: Key| format!("{} | {}", key.pk, key.sk);
        assert_eq!(
            shown(intent(client, "2bdd443f4557c5c11347908ce89063c4")),
            "CLIENT#91b7584a-d8f1-4cd6-b0e1-414c1027c4d1 | INTENT#2bdd443f4557c5c11347908ce89063c4"
        );
        assert_eq!(
            shown(intent_guard(client, "offer_active", Some(reference), None)),
            "CLIENT#91b7584a-d8f1-4cd6-b0e1-414c1027c4d1 | GUARD#offer_active#1e2feb89-7ed4-4c2c-9cc4-a6ce78e51061"
        );
        assert_eq!(
            shown(intent_guard(client, "discovery_first_touch", None, Some(105_608))),
            "CLIENT#91b7584a-d8f1-4cd6-b0e1-414c1027c4d1 | GUARD#discovery_first_touch#contact#105608"
        );
        assert_eq!(shown(api_key(&PresentedKey::of("local").id)), "APIKEY#25bf8e1a2393f110 | KEY");
        assert_eq!(shown(test_mode()), "INGEST | IS_TEST_MODE");
        assert_eq!(
            shown(policy(Schema::PkmTest, PolicyKey::EmailNewsletterV1)),
            "INGEST | POLICY#pkm_test#email_newsletter_v1"
        );
        let entry_of = |which, key: &str| entry(&EntryId::of(Schema::Pkm, PolicyKey::EmailNewsletterV1, which, key));
        assert_eq!(
            shown(entry_of(MatchedBy::Primary, "<abc@example.com>")),
            "ENTRY#ent_ffedb4ca30970e8e5166183121c5c818 | ENTRY"
        );
        let secondary = "458c43fa58f355b77307aabafcbb58b5d461fe0b31be519f0f4255037b364ae3";
        assert_eq!(
            shown(entry_of(MatchedBy::Secondary, secondary)),
            "ENTRY#ent_95f2aa1c0fa9a7e377c3eee2410f0444 | ENTRY"
        );
        let job = BackfillId::of(&PresentedKey::of("local").id, "import-7");
        assert_eq!(shown(backfill(&job)), "BACKFILL#bf_0b4ec3b807650135984a7da9a632dc79 | JOB");
        assert_eq!(shown(backfill_input(&job)), "BACKFILL#bf_0b4ec3b807650135984a7da9a632dc79 | INPUT");
    }
}
