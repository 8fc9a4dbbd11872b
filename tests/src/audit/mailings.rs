//! The invariants of every mailing at rest.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use umavez_domain::keys;
use umavez_domain::mailings::{MailingEntryId, MailingId, SHARD_GROUPS};

use crate::World;

/// The rows of one mailing.
struct Rows<'a> {
    mailing: &'a Value,
    shards: Vec<&'a Value>,
    /// Recipients, and lines of the file that are stored as entries but are not recipients.
    entries: Vec<&'a Value>,
}

const STATES: [&str; 8] = ["pending", "sending", "sent", "failed", "invalid", "unknown", "suppressed", "canceled"];

pub async fn mailings_add_up(world: &World) {
    let rows = world.rows("MailingsTable").await;
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let mut by_partition: HashMap<String, Vec<&Value>> = HashMap::new();
    rows.iter().for_each(|row| by_partition.entry(text(row, "pk")).or_default().push(row));
    for mailing in rows.iter().filter(|row| row["sk"] == "MAILING") {
        let id = MailingId::parse(&text(mailing, "mailing_id")).expect("an id");
        let of = |partition: &str| by_partition.get(partition).into_iter().flatten().copied();
        let is_shard = |row: &&Value| text(row, "sk").starts_with(keys::MAILING_SHARD_PREFIX);
        let shards = of(&keys::mailing_partition(&id)).filter(is_shard).collect();
        let count = u32::try_from(mailing["shards"].as_u64().expect("a number")).expect("small");
        let partitions = (0..count).map(|shard| keys::mailing_entries(&id, shard));
        // A duplicate line has no state.
        let entries = partitions.flat_map(|pk| of(&pk).collect::<Vec<_>>()).filter(|row| row["state"].is_string());
        let all = Rows { mailing, shards, entries: entries.collect() };
        all.import_adds_up();
        all.shards_add_up();
        all.nothing_is_forgotten();
        let name = keys::mailing_name(&text(mailing, "file_name"));
        let named = of(&name.pk).any(|row| row["mailing_id"] == id.as_str());
        assert_eq!(
            named,
            mailing["state"] != "FAILED",
            "exactly mailings that did not fail own their file name: {mailing}"
        );
    }
    calls_are_attempts(world, &rows);
}

impl Rows<'_> {
    /// Checks that the counts of the import match the rows in the table.
    fn import_adds_up(&self) {
        let (import, progress) = (&self.mailing["import"], &self.mailing["progress"]);
        let number = |name: &str| progress[name].as_u64().expect("a number");
        let [rows, recipients, duplicates, invalid] = ["rows", "recipients", "duplicates", "invalid"].map(number);
        assert_eq!(rows, recipients + duplicates + invalid, "{}", self.mailing);
        if import == "DONE" || import == "FAILED" {
            let found = self.entries.iter().filter(|row| row["state"] == "INVALID").count() as u64;
            let others = self.entries.len() as u64 - found;
            assert_eq!(
                (others, found),
                (recipients, invalid),
                "the counts of the import differ from its rows: {}",
                self.mailing
            );
        }
        if import == "DONE" {
            assert_eq!(self.shards.len() as u64, self.mailing["shards"].as_u64().expect("a number"));
        }
    }

    /// Checks that a shard counts all of its entries, and that a finished shard has the right count
    /// for each state.
    fn shards_add_up(&self) {
        for shard in &self.shards {
            let id = MailingId::parse(shard["mailing_id"].as_str().unwrap_or_default()).expect("an id");
            let pk =
                keys::mailing_entries(&id, u32::try_from(shard["shard"].as_u64().expect("a number")).expect("small"));
            let mut found: BTreeMap<String, u64> = STATES.iter().map(|state| ((*state).to_owned(), 0)).collect();
            for entry in self.entries.iter().filter(|entry| entry["pk"] == pk.as_str()) {
                let state = entry["state"].as_str().unwrap_or_default().to_lowercase();
                let state = if state == "queued" { "pending".to_owned() } else { state };
                *found.entry(state).or_default() += 1;
            }
            let counted = |state: &str| shard[state].as_u64().expect("a number");
            let counted: BTreeMap<String, u64> =
                STATES.iter().map(|state| ((*state).to_owned(), counted(state))).collect();
            if shard["state"] == "FINISHED" {
                assert_eq!(counted, found, "the counts of a finished shard differ from its entries: {shard}");
                assert_eq!(
                    found["pending"] + found["sending"],
                    0,
                    "finished, but entries are pending or sending: {shard}"
                );
                assert!(shard["wake"].is_null(), "finished, but still in the index by time: {shard}");
            } else {
                assert_eq!(
                    counted.values().sum::<u64>(),
                    found.values().sum::<u64>(),
                    "the shard counts another number of entries: {shard}"
                );
            }
        }
    }

    /// I4: a mailing that has ended has no open entry and no open shard. A mailing that has not
    /// ended is in the index by time, and so is exactly one open shard of each group.
    fn nothing_is_forgotten(&self) {
        let (state, mailing) = (self.mailing["state"].as_str().expect("a state"), self.mailing);
        let over = matches!(state, "COMPLETED" | "CANCELED" | "FAILED");
        if over {
            let open = |entry: &&&Value| entry["state"] == "QUEUED" || entry["state"] == "SENDING";
            assert_eq!(self.entries.iter().find(open), None, "{state}, but an entry is queued or sending");
            assert!(self.shards.iter().all(|shard| shard["state"] == "FINISHED"), "{state}: {:?}", self.shards);
            assert!(mailing["wake"].is_null(), "ended, but still in the index by time: {mailing}");
            return;
        }
        let imported = mailing["import"] == "DONE";
        let held = state == "PAUSED" || state == "PENDING" && mailing["content_version"] == 0;
        if !imported || !held {
            assert!(mailing["wake"].is_string(), "no sweep finds it: {mailing}");
        }
        for group in 0..u64::from(SHARD_GROUPS) {
            let open = |shard: &&&Value| {
                shard["shard"].as_u64().is_some_and(|shard| shard % u64::from(SHARD_GROUPS) == group)
                    && shard["state"] != "FINISHED"
            };
            let handed_over = self.shards.iter().filter(open).filter(|shard| shard["wake"].is_string()).count();
            let wanted = usize::from(!held && self.shards.iter().any(|shard| open(&shard)));
            assert!(handed_over <= 1, "{handed_over} shards of one group are active: {:?}", self.shards);
            assert!(handed_over >= wanted, "no shard of the group is active: {:?}", self.shards);
        }
    }
}

/// I5: each attempt calls the provider at most once, and each mail names its attempt.
fn calls_are_attempts(world: &World, rows: &[Value]) {
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
    for entry in rows.iter().filter(|row| row["email"].is_string()) {
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
