//! I4 for mailings: counts match rows, and a mailing that has not ended is handed over.

use std::collections::BTreeMap;

use serde_json::Value;
use umavez_domain::keys;
use umavez_domain::mailings::{MailingId, SHARD_GROUPS};

use crate::{Rows, Violations, number, text};

const STATES: [&str; 8] = ["pending", "sending", "sent", "failed", "invalid", "unknown", "suppressed", "canceled"];

/// The rows of one mailing.
struct Mailing<'a> {
    id: MailingId,
    row: &'a Value,
    shards: Vec<&'a Value>,
    /// Recipients, and lines of the file that are stored as entries but are not recipients.
    entries: Vec<&'a Value>,
}

/// Checks the mailing of a partition: its own, that of an entry, or that of a name.
pub fn check(rows: &Rows, pk: &str, found: &mut Violations) {
    let id = match pk.split('#').collect::<Vec<_>>()[..] {
        ["MAILING", id, ..] => MailingId::parse(id),
        ["NAME", _] => rows.get("Mailings", pk, "NAME").and_then(|name| MailingId::parse(text(name, "mailing_id"))),
        _ => None,
    };
    let Some(id) = id else { return };
    let Some(mailing) = Mailing::of(rows, id) else {
        found.unless(false, "rows belong to no mailing", &Value::from(pk));
        return;
    };
    mailing.import_adds_up(found);
    mailing.shards_add_up(found);
    mailing.nothing_is_forgotten(found);
    let name = keys::mailing_name(text(mailing.row, "file_name"));
    let owner = rows.get("Mailings", &name.pk, &name.sk);
    let owns_name = owner.is_some_and(|owner| owner["mailing_id"] == mailing.id.as_str());
    let is_failed = mailing.row["state"] == "FAILED";
    found.unless(owns_name != is_failed, "exactly mailings that did not fail own their name", mailing.row);
}

/// I4: returns the mailings that no worker continues, once nothing is under way any more. A shard
/// enqueues the next one of its group, and a mailing that is over has ended its shards.
pub fn mailings_at_rest(rows: &Rows) -> Vec<String> {
    let mut found = Violations::default();
    let ids = rows.table("Mailings").filter(|row| row["sk"] == "MAILING").map(|row| text(row, "mailing_id"));
    for mailing in ids.filter_map(MailingId::parse).filter_map(|id| Mailing::of(rows, id)) {
        mailing.open_shards_add_up(&mut found);
        mailing.groups_are_active(&mut found);
    }
    found.0
}

impl<'a> Mailing<'a> {
    fn of(rows: &'a Rows, id: MailingId) -> Option<Self> {
        let partition = keys::mailing_partition(&id);
        let row = rows.get("Mailings", &partition, "MAILING")?;
        let shards = rows.partition("Mailings", &partition, keys::MAILING_SHARD_PREFIX).collect();
        let count = u32::try_from(number(row, "shards")).unwrap_or(0);
        let of_shard = |shard| rows.partition("Mailings", &keys::mailing_entries(&id, shard), "").collect::<Vec<_>>();
        let entries = (0..count).flat_map(of_shard);
        // A duplicate line has no state.
        let entries = entries.filter(|row| row["state"].is_string()).collect();
        Some(Self { id, row, shards, entries })
    }

    /// Checks that the counts of the import match the rows in the table.
    fn import_adds_up(&self, found: &mut Violations) {
        let (import, progress) = (&self.row["import"], &self.row["progress"]);
        let [rows, recipients, duplicates, invalid] =
            ["rows", "recipients", "duplicates", "invalid"].map(|name| number(progress, name));
        found.unless(rows == recipients + duplicates + invalid, "the lines of a file do not add up", self.row);
        if import == "DONE" || import == "FAILED" {
            let stored = self.entries.iter().filter(|row| row["state"] == "INVALID").count() as u64;
            let others = self.entries.len() as u64 - stored;
            let is_same = (others, stored) == (recipients, invalid);
            found.unless(is_same, "the counts of the import differ from its rows", self.row);
        }
        if import == "DONE" {
            found.unless(self.shards.len() as u64 == number(self.row, "shards"), "a shard is missing", self.row);
        }
    }

    /// Checks that a shard counts all of its entries, and that a finished shard has the right count
    /// for each state.
    fn shards_add_up(&self, found: &mut Violations) {
        let mut stored: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
        for entry in &self.entries {
            let state = text(entry, "state").to_lowercase();
            let state = if state == "queued" { "pending" } else { state.as_str() };
            let name = STATES.iter().find(|known| **known == state);
            found.unless(name.is_some(), "an entry has no known state", entry);
            *stored.entry(text(entry, "pk")).or_default().entry(name.unwrap_or(&"")).or_default() += 1;
        }
        for shard in self.shards.iter().filter(|shard| shard["state"] == "FINISHED") {
            let pk = keys::mailing_entries(&self.id, u32::try_from(number(shard, "shard")).unwrap_or(0));
            let of_state = |state: &str| stored.get(pk.as_str()).and_then(|of_shard| of_shard.get(state)).copied();
            let all_same = STATES.iter().all(|state| number(shard, state) == of_state(state).unwrap_or(0));
            found.unless(all_same, "the counts of a finished shard differ from its entries", shard);
            let open = of_state("pending").or(of_state("sending"));
            found.unless(open.is_none(), "a shard is finished, but entries are pending or sending", shard);
            found.unless(shard["wake"].is_null(), "a finished shard is still in the index by time", shard);
        }
    }

    /// I4: a mailing that has ended has no open entry and no open shard. A mailing that has not
    /// ended is in the index by time, and so is exactly one open shard of each group.
    fn nothing_is_forgotten(&self, found: &mut Violations) {
        let (state, row) = (text(self.row, "state"), self.row);
        if matches!(state, "COMPLETED" | "CANCELED" | "FAILED") && row["wake"].is_null() {
            let is_open = |entry: &&&Value| entry["state"] == "QUEUED" || entry["state"] == "SENDING";
            let open = self.entries.iter().find(is_open);
            found.unless(open.is_none(), "a mailing has ended, but an entry is open", row);
            let all_finished = self.shards.iter().all(|shard| shard["state"] == "FINISHED");
            found.unless(all_finished, "a mailing has ended, but a shard is open", row);
            return;
        }
        let is_imported = row["import"] == "DONE";
        let is_held = state == "PAUSED" || state == "PENDING" && row["content_version"] == 0;
        found.unless(is_imported && is_held || row["wake"].is_string(), "no sweep finds a mailing", row);
        for group in 0..u64::from(SHARD_GROUPS) {
            let of_group = self.shards.iter().filter(|shard| number(shard, "shard") % u64::from(SHARD_GROUPS) == group);
            let open: Vec<_> = of_group.filter(|shard| shard["state"] != "FINISHED").collect();
            let active = open.iter().filter(|shard| shard["wake"].is_string()).count();
            found.unless(active <= 1, "several shards of one group are active", row);
        }
    }

    /// At rest, the counts of a shard contain each of its entries. A pass moves a count after it
    /// has moved the entry.
    fn open_shards_add_up(&self, found: &mut Violations) {
        let mut stored: BTreeMap<&str, u64> = BTreeMap::new();
        self.entries.iter().for_each(|entry| *stored.entry(text(entry, "pk")).or_default() += 1);
        for shard in self.shards.iter().filter(|shard| shard["state"] != "FINISHED") {
            let pk = keys::mailing_entries(&self.id, u32::try_from(number(shard, "shard")).unwrap_or(0));
            let counted = STATES.iter().map(|state| number(shard, state)).sum::<u64>();
            let is_same = counted == stored.get(pk.as_str()).copied().unwrap_or(0);
            found.unless(is_same, "a shard counts another number of entries", shard);
        }
    }

    /// At rest, an open shard of each group of a mailing that is being sent is active.
    fn groups_are_active(&self, found: &mut Violations) {
        let (state, row) = (text(self.row, "state"), self.row);
        let is_over = matches!(state, "COMPLETED" | "CANCELED" | "FAILED");
        let is_held = state == "PAUSED" || state == "PENDING" && row["content_version"] == 0;
        if is_over {
            found.unless(row["wake"].is_null(), "a mailing has ended, but is still in the index by time", row);
            return;
        }
        for group in 0..u64::from(SHARD_GROUPS) {
            let of_group = self.shards.iter().filter(|shard| number(shard, "shard") % u64::from(SHARD_GROUPS) == group);
            let open: Vec<_> = of_group.filter(|shard| shard["state"] != "FINISHED").collect();
            let active = open.iter().filter(|shard| shard["wake"].is_string()).count();
            found.unless(active > 0 || open.is_empty() || is_held, "no shard of a group is active", row);
        }
    }
}
