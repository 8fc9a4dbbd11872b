//! The only place that formats a key. Keys are stored for years: changing a golden string is a data
//! migration.

pub mod index;

use std::fmt::Display;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::access::KeyId;
use crate::conversations::{BatchId, ConversationId, Via};
use crate::downsells::{ContactId, OfferId};
use crate::ingest::{BackfillId, EntryId, PolicyKey, Schema};
use crate::mailings::{MailingEntryId, MailingId};
use crate::messages::MessageId;
use crate::time::Timestamp;
use crate::unicode::{comparable, visible};

/// A primary key of any of the tables: all of them have `pk` and `sk`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub pk: String,
    pub sk: String,
}

/// The TTL attribute of all tables: when a row may be removed, in seconds.
pub const EXPIRES_AT: &str = "expires_at";

/// The prefix of intent rows within their client's partition.
pub const INTENT_PREFIX: &str = "INTENT#";

/// The partition that holds everything about one client in the Intents table.
pub fn intents_of_client(client: impl Display) -> String {
    format!("CLIENT#{client}")
}

/// The row of one intent.
pub fn intent(client: impl Display, fingerprint: &str) -> Key {
    Key { pk: intents_of_client(client), sk: format!("{INTENT_PREFIX}{fingerprint}") }
}

/// The guard row of an intent type: for one reference, or for the contact over all references if
/// `reference` is `None`. It guards one bucket, or a rolling window if `bucket` is `None`. Names of
/// intent types contain no `#`.
pub fn intent_guard(client: Uuid, intent_type: &str, reference: Option<Uuid>, bucket: Option<i64>) -> Key {
    let reference = reference.map_or_else(|| "contact".to_owned(), |id| id.hyphenated().to_string());
    let bucket = bucket.map(|bucket| format!("#{bucket}")).unwrap_or_default();
    Key { pk: intents_of_client(client), sk: format!("GUARD#{intent_type}#{reference}{bucket}") }
}

/// A row in the same partition as `other`, with the sort key that `other` names.
pub fn beside(other: &Key, sk: &str) -> Key {
    Key { pk: other.pk.clone(), sk: sk.to_owned() }
}

/// The prefix of the partition of an API key.
pub const API_KEY_PREFIX: &str = "APIKEY#";

/// The row of one API key in the Config table. Each key has its own partition, because every
/// request reads one.
pub fn api_key(id: &KeyId) -> Key {
    Key { pk: format!("{API_KEY_PREFIX}{id}"), sk: "KEY".to_owned() }
}

/// The row of a message.
pub fn message(id: &MessageId) -> Key {
    Key { pk: format!("MESSAGE#{id}"), sk: "MESSAGE".to_owned() }
}

/// The content of a message. It is a separate row, because it is too large to be written again with
/// every state change.
pub fn message_content(id: &MessageId) -> Key {
    Key { pk: format!("MESSAGE#{id}"), sk: "CONTENT".to_owned() }
}

/// Returns the id of the message in a key of the Outbound table.
pub fn message_id_of(key: &Key) -> Option<MessageId> {
    key.pk.strip_prefix("MESSAGE#").filter(|_| key.sk == "MESSAGE").and_then(MessageId::parse)
}

/// How many partitions the index by time has for each [`Wake`].
pub const WAKE_SHARDS: u32 = 4;

/// What a row waits for. It selects the row's partition in the index by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The time to send it.
    Due,
    /// A worker that was asked to take it on.
    Check,
    /// A person, or an event that shows the outcome.
    Unknown,
    /// A person who answers instead of the responder.
    Human,
    /// The end or the release of a hold that keeps it from being answered.
    Held,
}

/// A partition of the index by time.
pub fn wake(wake: Wake, shard: u32) -> String {
    let word = match wake {
        Wake::Due => "DUE",
        Wake::Check => "CHECK",
        Wake::Unknown => "UNKNOWN",
        Wake::Human => "HUMAN",
        Wake::Held => "HELD",
    };
    format!("{word}#{shard}")
}

/// Returns the shard of a row by the last byte of its id. The id is a hash, so any byte is equally
/// distributed.
pub fn wake_shard(id: &str) -> u32 {
    id.bytes().last().map_or(0, |byte| u32::from(byte) % WAKE_SHARDS)
}

/// A place in an index that is ordered by time. It is padded, so that text sorts as numbers do.
pub fn at_time(at: Timestamp, id: &str) -> String {
    format!("{:015}#{id}", at.millis().max(0))
}

/// Returns a place that sorts after every place at or before `at`.
pub fn until_time(at: Timestamp) -> String {
    format!("{:015}", at.millis().max(0).saturating_add(1))
}

/// Returns the time of a place made by [`at_time`].
pub fn time_of(place: &str) -> Option<Timestamp> {
    place.split_once('#').and_then(|(at, _)| at.parse().ok()).map(Timestamp::from_millis)
}

/// Returns the id of a place made by [`at_time`]. `None` for any other text, so that a cursor can
/// be checked before it reaches a query.
pub fn id_at_time(place: &str) -> Option<&str> {
    let (_, id) = place.split_once('#')?;
    time_of(place).filter(|at| at_time(*at, id) == place).map(|_| id)
}

/// The partition of the index by recipient. Addresses are foreign and personal, so they are hashed.
pub fn recipient(channel: &str, to: &str) -> String {
    format!("{channel}#{}", short_hash(to))
}

/// The suppressions of a channel are spread over sixteen partitions, by the hash of the address.
pub const SUPPRESSION_SHARDS: u32 = 16;

pub fn suppression(channel: &str, to: &str) -> Key {
    let hash = short_hash(to);
    let shard = u32::from_str_radix(&hash[..1], 16).unwrap_or(0);
    Key { pk: suppressions(channel, shard), sk: hash }
}

/// One partition of a channel's suppressions.
pub fn suppressions(channel: &str, shard: u32) -> String {
    format!("SUPPRESSION#{channel}#{shard:x}")
}

/// The rate limit bucket of everything that is sent with the same credentials.
pub fn rate_of_sender(channel: &str, sender: &str) -> Key {
    Key { pk: format!("RATE#{channel}#{sender}"), sk: "SENDER".to_owned() }
}

/// The rate limit bucket of one chat or group of a sender. Each has its own partition, because a
/// busy sender has many chats.
pub fn rate_of_chat(channel: &str, sender: &str, to: &str) -> Key {
    Key { pk: format!("RATE#{channel}#{sender}#{}", short_hash(to)), sk: "CHAT".to_owned() }
}

/// Returns the hash that a key contains instead of a foreign or personal text.
pub(crate) fn short_hash(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..16])
}

/// The partition of the Config table that holds what every insert reads, the test mode and all
/// policies: one consistent query reads it.
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

/// The slot of one of an entry's keys in its schema's table. One of its slots holds the entry. Each
/// of the others holds a marker, at the same key where an entry with that key would be.
pub fn entry(slot: &EntryId) -> Key {
    Key { pk: format!("ENTRY#{slot}"), sk: "ENTRY".to_owned() }
}

/// The row of a backfill.
pub fn backfill(id: &BackfillId) -> Key {
    Key { pk: format!("BACKFILL#{id}"), sk: "JOB".to_owned() }
}

/// The lines of a backfill that came within its request.
pub fn backfill_input(id: &BackfillId) -> Key {
    Key { pk: format!("BACKFILL#{id}"), sk: "INPUT".to_owned() }
}

/// The row that says which mailing has a file's name, in whatever form the name is given. Callers
/// choose the names, so they are hashed.
pub fn mailing_name(file_name: &str) -> Key {
    Key { pk: format!("NAME#{}", short_hash(&comparable(file_name))), sk: "NAME".to_owned() }
}

/// The row that says which mailing was the first with a file of these bytes.
pub fn mailing_file(content_hash: &str) -> Key {
    Key { pk: format!("FILE#{content_hash}"), sk: "FILE".to_owned() }
}

/// The row that says which mailing a request with an `Idempotency-Key` created. `key` is a hash.
pub fn mailing_request(key: &str) -> Key {
    Key { pk: format!("REQUEST#{key}"), sk: "REQUEST".to_owned() }
}

/// The partition that lists all mailings, newest first. One is added a few times a day.
pub const MAILINGS: &str = "MAILINGS";

/// A mailing's place in the list: later times sort first.
pub fn mailing_listed(id: &MailingId, at: Timestamp) -> Key {
    const END: i64 = 999_999_999_999_999;
    Key { pk: MAILINGS.to_owned(), sk: format!("{:015}#{id}", END - at.millis().clamp(0, END)) }
}

/// The id of a shard in the index by time.
pub fn mailing_shard_id(id: &MailingId, shard: u32) -> String {
    format!("{id}-{shard:02}")
}

/// Returns the mailing of a key that the index by time found, and the shard if it is the row of a
/// shard.
pub fn mailing_of(key: &Key) -> Option<(MailingId, Option<u32>)> {
    let id = MailingId::parse(key.pk.strip_prefix("MAILING#")?)?;
    match key.sk.strip_prefix(MAILING_SHARD_PREFIX) {
        Some(shard) => Some((id, Some(shard.parse().ok()?))),
        None => (key.sk == "MAILING").then_some((id, None)),
    }
}

/// The row of a recipient who unsubscribed from a list. These rows are spread over sixteen
/// partitions by the hash of the address, as other suppressions are.
pub fn unsubscribed(list: &str, email_hash: &str) -> Key {
    let shard = email_hash.get(..1).and_then(|digit| u32::from_str_radix(digit, 16).ok()).unwrap_or(0);
    Key { pk: unsubscribed_from(list, shard), sk: email_hash.to_owned() }
}

/// One partition of the recipients who unsubscribed from a list. Case, spaces, invisible characters
/// and the Unicode form of accents in a list's name do not make it another list.
pub fn unsubscribed_from(list: &str, shard: u32) -> String {
    let list = visible(list).split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    format!("UNSUBSCRIBED#{}#{shard:x}", short_hash(&comparable(&list)))
}

/// The row of a mailing.
pub fn mailing(id: &MailingId) -> Key {
    Key { pk: mailing_partition(id), sk: "MAILING".to_owned() }
}

/// The content of a mailing. It is a separate row, because it is too large to be written again with
/// every state change.
pub fn mailing_content(id: &MailingId) -> Key {
    Key { pk: mailing_partition(id), sk: "CONTENT".to_owned() }
}

/// The prefix of shard rows within their mailing's partition.
pub const MAILING_SHARD_PREFIX: &str = "SHARD#";

/// The partition that holds the row of a mailing and the rows of its shards, but none of its
/// entries.
pub fn mailing_partition(id: &MailingId) -> String {
    format!("MAILING#{id}")
}

/// The row of one shard: its state, its lease and its counts.
pub fn mailing_shard(id: &MailingId, shard: u32) -> Key {
    Key { pk: mailing_partition(id), sk: format!("{MAILING_SHARD_PREFIX}{shard:02}") }
}

/// The partition that holds the entries of one shard.
pub fn mailing_entries(id: &MailingId, shard: u32) -> String {
    format!("MAILING#{id}#{shard:02}")
}

/// The prefix of the sort keys of recipients, within their shard's partition.
pub const MAILING_ENTRY_PREFIX: &str = "ENTRY#";

/// The prefix of the sort keys of lines that are not recipients, within their shard's partition.
pub const MAILING_LINE_PREFIX: &str = "LINE#";

/// The row of one recipient.
pub fn mailing_entry(id: &MailingEntryId) -> Key {
    Key { pk: mailing_entries(&id.mailing, id.shard), sk: format!("{MAILING_ENTRY_PREFIX}{}", id.email_hash) }
}

/// The row of a line that is not a recipient: an invalid or a duplicate one.
pub fn mailing_line(id: &MailingId, shard: u32, line: u64) -> Key {
    Key { pk: mailing_entries(id, shard), sk: format!("{MAILING_LINE_PREFIX}{line:010}") }
}

/// Returns whether a text is the sort key of an entry or a line.
pub fn is_mailing_place(sk: &str) -> bool {
    let is_hash = |text: &str| text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_line = |text: &str| text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit());
    sk.strip_prefix(MAILING_ENTRY_PREFIX).is_some_and(is_hash)
        || sk.strip_prefix(MAILING_LINE_PREFIX).is_some_and(is_line)
}

/// The prefix of the partition of an instance.
pub const INSTANCE_PREFIX: &str = "INSTANCE#";

/// The settings of one instance in the Config table. Each instance has its own partition, because
/// every message of the instance reads it.
pub fn instance(via: Via, name: &str) -> Key {
    Key { pk: format!("{INSTANCE_PREFIX}{via}#{name}"), sk: "INSTANCE".to_owned() }
}

/// The partition that holds everything about one conversation.
pub fn conversation_partition(id: &ConversationId) -> String {
    format!("CONVERSATION#{id}")
}

/// The row that holds the state of a conversation.
pub fn conversation(id: &ConversationId) -> Key {
    Key { pk: conversation_partition(id), sk: "STATE".to_owned() }
}

/// The row of a message of a conversation, by the provider's id of the message: a duplicate webhook
/// results in the same row.
pub fn conversation_message(id: &ConversationId, message_id: &str) -> Key {
    Key { pk: conversation_partition(id), sk: format!("MESSAGE#{}", short_hash(message_id)) }
}

/// The row of one batch's reply.
pub fn conversation_batch(id: &BatchId) -> Key {
    Key { pk: conversation_partition(&id.conversation), sk: conversation_batch_place(id.number) }
}

/// The prefix of the sort keys of batches.
pub const CONVERSATION_BATCH_PREFIX: &str = "BATCH#";

pub fn conversation_batch_place(number: u64) -> String {
    format!("{CONVERSATION_BATCH_PREFIX}{number:010}")
}

/// The place of a numbered message in the index of a conversation's messages.
pub fn conversation_place(number: u64) -> String {
    format!("IN#{number:010}")
}

/// The place of a message that is not part of any batch: it has no number, only a time.
pub fn conversation_aside(at: Timestamp, message_id: &str) -> String {
    format!("{ASIDE_PREFIX}{}", at_time(at, &short_hash(message_id)))
}

const ASIDE_PREFIX: &str = "ASIDE#";

/// The lower and the upper bound of the places that [`conversation_aside`] makes.
pub fn conversation_asides() -> (String, String) {
    (format!("{ASIDE_PREFIX}0"), format!("{ASIDE_PREFIX}~"))
}

/// The prefix of the partition of a bot.
pub const BOT_PREFIX: &str = "BOT#";

/// The row of a bot in the Config table.
pub fn bot(slug: &str) -> Key {
    Key { pk: format!("{BOT_PREFIX}{slug}"), sk: "BOT".to_owned() }
}

/// The row of a channel's token name in the Config table. It names the bot that owns the token.
pub fn token(channel: &str, name: &str) -> Key {
    Key { pk: format!("TOKEN#{channel}#{name}"), sk: "TOKEN".to_owned() }
}

/// The partition that holds the downsells of one bot.
pub fn downsells_of(slug: &str) -> String {
    format!("DOWNSELLS#{slug}")
}

/// The prefix of the sort keys of downsells.
pub const DOWNSELL_PREFIX: &str = "DOWNSELL#";

pub fn downsell(slug: &str, id: u64) -> Key {
    Key { pk: downsells_of(slug), sk: format!("{DOWNSELL_PREFIX}{id:010}") }
}

/// The row of the counter that numbers a bot's downsells.
pub fn downsell_counter(slug: &str) -> Key {
    Key { pk: downsells_of(slug), sk: "COUNTER".to_owned() }
}

/// The row that says which downsell a request with an `Idempotency-Key` created. `key` is a hash.
pub fn downsell_request(slug: &str, key: &str) -> Key {
    Key { pk: downsells_of(slug), sk: format!("REQUEST#{key}") }
}

/// The partition that holds everything about one contact of a bot.
pub fn contact_partition(contact: &ContactId) -> String {
    format!("{CONTACT_PREFIX}{}", contact.as_str())
}

const CONTACT_PREFIX: &str = "CONTACT#";

/// The row of a contact's open charges and payments.
pub fn charges(contact: &ContactId) -> Key {
    Key { pk: contact_partition(contact), sk: "CHARGES".to_owned() }
}

/// The row that enforces "one pending offer" of a downsell.
pub fn offer_slot(contact: &ContactId, downsell_id: u64) -> Key {
    Key { pk: contact_partition(contact), sk: format!("{OFFER_SLOT_PREFIX}{downsell_id:010}") }
}

/// The prefix of the sort keys of slots.
pub const OFFER_SLOT_PREFIX: &str = "SLOT#";

/// The prefix of the sort keys of offers.
pub const OFFER_PREFIX: &str = "OFFER#";

/// The row of an offer, or of the event that was refused in its place.
pub fn offer(contact: &ContactId, id: &OfferId) -> Key {
    Key { pk: contact_partition(contact), sk: format!("{OFFER_PREFIX}{id}") }
}

/// The kinds of rows in a contact's partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfContact {
    Charges,
    Slot,
    Offer(OfferId),
}

/// Returns the contact of a key, and the kind of the row.
pub fn contact_of(key: &Key) -> Option<(ContactId, OfContact)> {
    let contact = ContactId::parse(key.pk.strip_prefix(CONTACT_PREFIX)?)?;
    let row = match key.sk.strip_prefix(OFFER_PREFIX) {
        Some(id) => OfContact::Offer(OfferId::parse(id)?),
        None if key.sk == "CHARGES" => OfContact::Charges,
        None if key.sk.starts_with(OFFER_SLOT_PREFIX) => OfContact::Slot,
        None => return None,
    };
    Some((contact, row))
}

/// One partition of the list of a bot's offers. There are as many as the index by time has for each
/// [`Wake`].
pub fn offers_of_bot(slug: &str, shard: u32) -> String {
    format!("{slug}#{shard}")
}

/// The row of a transaction. It has its own partition, because an expiry names nothing but the
/// transaction. The ids are foreign, so they are hashed.
pub fn transaction(id: &str) -> Key {
    Key { pk: format!("TRANSACTION#{}", short_hash(id)), sk: "TRANSACTION".to_owned() }
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
        let job = BackfillId::of("import-7");
        assert_eq!(shown(backfill(&job)), "BACKFILL#bf_7fa9de4508328836b75dc342bc82c32a | JOB");
        assert_eq!(shown(backfill_input(&job)), "BACKFILL#bf_7fa9de4508328836b75dc342bc82c32a | INPUT");
    }

    #[test]
    fn golden_keys_of_messages() {
        let shown = |key: Key| format!("{} | {}", key.pk, key.sk);
        let id = "msg_0123456789abcdef0123456789abcdef";
        let typed = MessageId::parse(id).expect("an id");
        assert_eq!(shown(message(&typed)), format!("MESSAGE#{id} | MESSAGE"));
        assert_eq!(shown(message_content(&typed)), format!("MESSAGE#{id} | CONTENT"));
        assert_eq!(message_id_of(&message(&typed)), Some(typed.clone()));
        assert_eq!(message_id_of(&message_content(&typed)), None);
        assert_eq!(wake(Wake::Due, wake_shard(id)), "DUE#2");
        assert_eq!(wake(Wake::Check, 0), "CHECK#0");
        assert_eq!(wake(Wake::Unknown, 3), "UNKNOWN#3");
        let at = Timestamp::from_millis(1_773_144_000_123);
        assert_eq!(at_time(at, id), format!("001773144000123#{id}"));
        assert_eq!(time_of(&at_time(at, id)), Some(at));
        assert_eq!(id_at_time(&at_time(at, id)), Some(id));
        for other in ["", "#", "5#a", "-00000000000001#a", "+00000000000001#a", "00177314400012x#a", "001773144000123"]
        {
            assert_eq!(id_at_time(other), None, "{other}");
        }
        assert!(at_time(at, id) < until_time(at) && at_time(at.plus_ms(1), id) > until_time(at));
        assert_eq!(recipient("email", "a@example.com"), "email#08168cd80dfd534ab0f10af10f1303fe");
        assert_eq!(
            shown(suppression("telegram", "987654321")),
            "SUPPRESSION#telegram#8 | 8a9bcf1e51e812d0af8465a8dbcc9f74"
        );
        assert_eq!(shown(rate_of_sender("telegram", "default")), "RATE#telegram#default | SENDER");
        assert_eq!(
            shown(rate_of_chat("telegram", "default", "987654321")),
            "RATE#telegram#default#8a9bcf1e51e812d0af8465a8dbcc9f74 | CHAT"
        );
    }

    #[test]
    fn golden_keys_of_mailings() {
        let shown = |key: Key| format!("{} | {}", key.pk, key.sk);
        let id = MailingId::of("monthly.csv", 0);
        assert_eq!(shown(mailing_name("monthly.csv")), "NAME#d424e8217020ae25c1fd63eb8e6b4cca | NAME");
        assert_eq!(shown(mailing_request("ab")), "REQUEST#ab | REQUEST");
        assert_eq!(shown(mailing_file("ab")), "FILE#ab | FILE");
        let listed = |ms| mailing_listed(&id, Timestamp::from_millis(ms));
        assert_eq!(shown(listed(1_773_144_000_123)), "MAILINGS | 998226855999876#mlg_7face19d7d5e1e6f67aa83ba7af0a67c");
        assert!(listed(2).sk < listed(1).sk, "the newest first");
        assert_eq!(mailing_of(&mailing(&id)), Some((id.clone(), None)));
        assert_eq!(mailing_of(&mailing_shard(&id, 7)), Some((id.clone(), Some(7))));
        assert_eq!(mailing_of(&mailing_content(&id)), None);
        assert_eq!(
            shown(unsubscribed("news", "08168cd80dfd534ab0f10af10f1303fe")),
            "UNSUBSCRIBED#19fba0e995b9794fc2c26217bf3b725c#0 | 08168cd80dfd534ab0f10af10f1303fe"
        );
        assert_eq!(unsubscribed_from("news", 15), "UNSUBSCRIBED#19fba0e995b9794fc2c26217bf3b725c#f");
        for list in [
            "Promoções de Março",
            " promoções  DE\u{a0}março\t",
            "Promoc\u{327}o\u{303}es de Marc\u{327}o",
            "\u{feff}Promo\u{ad}ções \u{200b} de Março\u{200e}",
        ] {
            assert_eq!(
                shown(unsubscribed(list, "e8168cd80dfd534ab0f10af10f1303fe")),
                "UNSUBSCRIBED#117b76b791713f39e08505306a90af98#e | e8168cd80dfd534ab0f10af10f1303fe",
                "{list}"
            );
        }
        assert_eq!(shown(mailing(&id)), "MAILING#mlg_7face19d7d5e1e6f67aa83ba7af0a67c | MAILING");
        assert_eq!(shown(mailing_content(&id)), "MAILING#mlg_7face19d7d5e1e6f67aa83ba7af0a67c | CONTENT");
        assert_eq!(shown(mailing_shard(&id, 7)), "MAILING#mlg_7face19d7d5e1e6f67aa83ba7af0a67c | SHARD#07");
        let entry = MailingEntryId::of(&id, "a@example.com", 99);
        assert_eq!(
            shown(mailing_entry(&entry)),
            "MAILING#mlg_7face19d7d5e1e6f67aa83ba7af0a67c#02 | ENTRY#08168cd80dfd534ab0f10af10f1303fe"
        );
        assert_eq!(
            shown(mailing_line(&id, 3, 120)),
            "MAILING#mlg_7face19d7d5e1e6f67aa83ba7af0a67c#03 | LINE#0000000120"
        );
        assert!(is_mailing_place(&mailing_entry(&entry).sk) && is_mailing_place(&mailing_line(&id, 3, 120).sk));
        for other in ["", "ENTRY#", "ENTRY#08168cd80dfd534ab0f10af10f1303fE", "LINE#120", "MAILING", "SHARD#07"] {
            assert!(!is_mailing_place(other), "{other}");
        }
    }

    #[test]
    fn golden_keys_of_downsells() {
        let shown = |key: Key| format!("{} | {}", key.pk, key.sk);
        assert_eq!(shown(bot("loja")), "BOT#loja | BOT");
        assert_eq!(shown(token("telegram", "shop")), "TOKEN#telegram#shop | TOKEN");
        assert_eq!(shown(downsell("loja", 12)), "DOWNSELLS#loja | DOWNSELL#0000000012");
        assert_eq!(shown(downsell_counter("loja")), "DOWNSELLS#loja | COUNTER");
        assert_eq!(shown(downsell_request("loja", "ab")), "DOWNSELLS#loja | REQUEST#ab");
        let contact = ContactId::of("loja", 7);
        let partition = "CONTACT#loja#7902699be42c8a8e46fbbb4501726517";
        assert_eq!(shown(charges(&contact)), format!("{partition} | CHARGES"));
        assert_eq!(shown(offer_slot(&contact, 12)), format!("{partition} | SLOT#0000000012"));
        let id = OfferId::of("loja:7:12:start:5001");
        assert_eq!(shown(offer(&contact, &id)), format!("{partition} | OFFER#off_304330c5478c8bdbe4cee65c976f3742"));
        assert_eq!(contact_of(&offer(&contact, &id)), Some((contact.clone(), OfContact::Offer(id))));
        assert_eq!(contact_of(&charges(&contact)), Some((contact.clone(), OfContact::Charges)));
        assert_eq!(contact_of(&offer_slot(&contact, 1)), Some((contact, OfContact::Slot)));
        assert_eq!(contact_of(&bot("loja")), None);
        assert_eq!(shown(transaction("tx-1")), "TRANSACTION#045ef594d81d2f2134d61151ed71260d | TRANSACTION");
    }
}
