//! A table for the tests. It makes changes as the store does, all or none, and returns the rows
//! that failed a condition.

use std::collections::{HashMap, HashSet};

use super::{
    BackfillId, ConflictAction, ContentType, Entry, EntryId, EntryRow, InsertDecision, InsertOutcome, Insertion, Keys,
    LineRef, Metadata, Normalized, PolicyKey, PolicyRow, Row, Schema, SlotChange, Source, StoredRows, When, decide,
};
use crate::codes::MatchedBy;
use crate::keys::{self, Key};
use crate::time::Timestamp;

pub const NOW: Timestamp = Timestamp::from_seconds(1_751_342_400);

pub fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp::from_seconds(seconds))
}

pub fn line(number: u64) -> LineRef {
    LineRef::of(&BackfillId::of("import-7"), number)
}

pub fn policy(conflict_action: ConflictAction) -> PolicyRow {
    PolicyRow { conflict_action, ..PolicyRow::seed(PolicyKey::EmailNewsletterV1, Schema::Pkm, NOW) }
}

/// Returns an insertion with these keys. An empty key is missing.
pub fn asked(primary: &str, secondary: &str, text: &str, date: Option<Timestamp>) -> Insertion {
    let key = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let entry = Entry {
        source: Source::Email { message_id: key(primary), date },
        content_type: ContentType::Newsletter,
        clean_text: text.to_owned(),
        url: None,
        canonical_url: None,
        from: None,
        from_addr: None,
        subject: None,
        subject_base: None,
    };
    let keys = Keys { policy: PolicyKey::EmailNewsletterV1, primary: key(primary), secondary: key(secondary) };
    Insertion { schema: Schema::Pkm, normalized: Normalized { entry, metadata: Metadata::new(), keys }, line: None }
}

#[derive(Debug, Default, Clone)]
pub struct Table {
    pub rows: HashMap<Key, Row>,
    pub writes: usize,
    /// How far the clock is after [`NOW`].
    pub later_ms: i64,
}

impl Table {
    /// Runs the caller's loop, without concurrent callers.
    pub fn insert(&mut self, asked: &Insertion, policy: &PolicyRow) -> InsertOutcome {
        let mut stored = StoredRows::default();
        for _ in 0..10 {
            match self.step(asked, &mut stored, policy) {
                Some(outcome) => return outcome,
                None => continue,
            }
        }
        panic!("no end: {asked:?}")
    }

    /// Runs one iteration of the loop. Returns the outcome if the insertion has ended.
    pub fn step(&mut self, asked: &Insertion, stored: &mut StoredRows, policy: &PolicyRow) -> Option<InsertOutcome> {
        match decide(asked, stored, policy, NOW.plus_ms(self.later_ms)) {
            InsertDecision::Read(id) => stored.read = Some(self.entry(&id)),
            InsertDecision::Look => *stored = self.rows_for(asked),
            InsertDecision::Done(outcome) => return Some(*outcome),
            InsertDecision::Write { changes, outcome } => match self.make(&changes) {
                Ok(()) => return Some(*outcome),
                // The first attempt requires both slots to be free, so the rows that failed its
                // conditions are all the rows in the slots.
                Err(refused) if stored.primary.is_none() && stored.secondary.is_none() => {
                    *stored = StoredRows::of(asked, refused)
                }
                Err(_) => *stored = self.rows_for(asked),
            },
            InsertDecision::Refused(errors) => panic!("{errors:?}"),
        }
        None
    }

    pub fn rows_for(&self, asked: &Insertion) -> StoredRows {
        let slots = [asked.primary_slot(), asked.secondary_slot()];
        let look =
            |slot: &EntryId| self.rows.get_key_value(&keys::entry(slot)).map(|(key, row)| (key.clone(), row.clone()));
        StoredRows::of(asked, slots.iter().flatten().filter_map(look))
    }

    pub fn entry(&self, id: &EntryId) -> EntryRow {
        match self.rows.get(&keys::entry(id)) {
            Some(Row::Entry(row)) => (**row).clone(),
            other => panic!("{id} is {other:?}"),
        }
    }

    /// Makes all changes, or returns the rows that failed a condition.
    pub fn make(&mut self, changes: &[SlotChange]) -> Result<(), Vec<(Key, Row)>> {
        let touched: HashSet<_> = changes.iter().map(|change| &change.key).collect();
        assert_eq!(touched.len(), changes.len(), "a transaction touches no row twice");
        let holds = |change: &SlotChange| match (&change.when, self.rows.get(&change.key)) {
            (When::Absent | When::AbsentOrOwnedBy(_), None) => true,
            (When::Version(version), Some(Row::Entry(row))) => row.version == *version,
            (When::AbsentOrOwnedBy(owner), Some(Row::Marker(marker))) => marker.entry_id == *owner,
            _ => false,
        };
        let refused: Vec<_> = changes.iter().filter(|change| !holds(change)).collect();
        if !refused.is_empty() {
            let row = |change: &SlotChange| Some((change.key.clone(), self.rows.get(&change.key)?.clone()));
            return Err(refused.into_iter().filter_map(row).collect());
        }
        for change in changes {
            match &change.row {
                Some(row) => self.rows.insert(change.key.clone(), row.clone()),
                None => self.rows.remove(&change.key),
            };
        }
        self.writes += 1;
        Ok(())
    }

    pub fn entries(&self) -> impl Iterator<Item = &EntryRow> {
        self.rows.values().filter_map(|row| match row {
            Row::Entry(row) => Some(row.as_ref()),
            Row::Marker(_) => None,
        })
    }

    /// Asserts the invariants of a table. They hold after any history.
    pub fn check(&self) {
        let slot = |which, key: &str| EntryId::of(Schema::Pkm, PolicyKey::EmailNewsletterV1, which, key);
        for row in self.entries() {
            let own = [(MatchedBy::Primary, &row.keys.primary), (MatchedBy::Secondary, &row.keys.secondary)];
            for (which, key) in own.into_iter().filter_map(|(which, key)| key.as_ref().map(|key| (which, key))) {
                let owner = self.rows.get(&keys::entry(&slot(which, key))).map(Row::owner);
                assert_eq!(owner, Some(&row.entry_id), "an entry owns its {which} key {key}");
            }
        }
        for marker in self.rows.values() {
            let Row::Marker(marker) = marker else { continue };
            let owner = self.entry(&marker.entry_id);
            if marker.which == MatchedBy::Secondary {
                assert_eq!(owner.keys.secondary.as_ref(), Some(&marker.idempotency_key), "a marker is its owner's key");
            }
        }
    }
}

#[test]
fn in_every_interleaving_of_inserts_keys_keep_their_owners() {
    let mut dice = fastrand::Rng::with_seed(29);
    for round in 0..3_000 {
        let mut table = Table::default();
        let mut inserted = 0;
        let mut waiting: Vec<(Insertion, StoredRows)> = Vec::new();
        for _ in 0..dice.usize(2..14) {
            let (primary, secondary) = (["", "p", "q", "r"][dice.usize(0..4)], ["", "s", "t"][dice.usize(0..3)]);
            let date = dice.bool().then(|| Timestamp::from_seconds(dice.i64(0..4)));
            let text = ["a", "b"][dice.usize(0..2)];
            if primary.is_empty() && secondary.is_empty() {
                continue;
            }
            waiting.push((asked(primary, secondary, text, date), StoredRows::default()));
        }
        let mut steps = 0;
        while !waiting.is_empty() {
            let turn = dice.usize(0..waiting.len());
            let action = ConflictAction::ALL[dice.usize(0..2)];
            let (asked, stored) = &mut waiting[turn];
            if let Some(outcome) = table.step(asked, stored, &policy(action)) {
                inserted += usize::from(outcome.action == crate::codes::Action::Inserted);
                waiting.swap_remove(turn);
            }
            table.check();
            steps += 1;
            assert!(steps < 500, "round {round} does not end");
        }
        assert_eq!(table.entries().count(), inserted, "round {round}");
    }
}

#[test]
fn one_input_inserted_a_hundred_times_at_once_is_one_row() {
    let mut dice = fastrand::Rng::with_seed(31);
    for action in ConflictAction::ALL {
        let mut table = Table::default();
        let mut waiting: Vec<_> = (0..100).map(|_| (asked("p", "s", "x", at(5)), StoredRows::default())).collect();
        let mut counts = HashMap::new();
        while !waiting.is_empty() {
            let turn = dice.usize(0..waiting.len());
            let (asked, stored) = &mut waiting[turn];
            if let Some(outcome) = table.step(asked, stored, &policy(*action)) {
                *counts.entry(outcome.action.as_str()).or_insert(0) += 1;
                waiting.swap_remove(turn);
            }
        }
        let rest = if *action == ConflictAction::Skip { "skipped" } else { "updated" };
        assert_eq!(counts, HashMap::from([("inserted", 1), (rest, 99)]));
        assert_eq!((table.entries().count(), table.writes), (1, 1));
    }
}
