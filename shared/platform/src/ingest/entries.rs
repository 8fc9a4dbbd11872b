//! Inserts an entry once, or merges it. The domain decides, a conditional write follows, and if it
//! is refused the domain decides again on the conflicting rows.

use std::ops::ControlFlow::{self, Break, Continue};

use serde::Serialize;
use umavez_domain::change::Fence;
use umavez_domain::codes::Action;
use umavez_domain::fields::FieldError;
use umavez_domain::ingest::{
    DryRun, EntryId, EntryRow, InsertDecision, InsertOutcome, Insertion, PolicyRow, Row, Schema, SlotChange,
    StoredRows, When, decide,
};
use umavez_domain::keys::{self, Key};

use crate::invocation::Invocation;
use crate::store::{Condition, Item, Store, StoreError, Transacted, Write, Written, read_row};

#[derive(Debug, Clone)]
pub struct Entries {
    pub store: Store,
    /// The table of the production schema; `test_table` is that of the test schema.
    pub table: String,
    pub test_table: String,
}

/// The outcome of an insert.
#[derive(Debug)]
pub enum Inserted {
    Done(Box<InsertOutcome>),
    /// The same request or line was done before: the outcome is the same as then.
    Again(Box<InsertOutcome>),
    /// The resulting entry would be invalid.
    Refused(Vec<FieldError>),
    /// The gate rejected the decision.
    Held,
}

impl Entries {
    pub fn of(&self, schema: Schema) -> &str {
        match schema {
            Schema::Pkm => &self.table,
            Schema::PkmTest => &self.test_table,
        }
    }

    pub async fn get(
        &self,
        invocation: &Invocation,
        schema: Schema,
        id: &EntryId,
    ) -> Result<Option<EntryRow>, StoreError> {
        let row = match self.row(invocation, schema, id, None).await? {
            // The id is another name of an entry.
            Some(Row::Marker(marker)) => self.row(invocation, schema, &marker.entry_id, None).await?,
            row => row,
        };
        Ok(row.and_then(Row::entry))
    }

    /// Reads the row in a slot. In a dry run, returns the row that earlier lines would have
    /// written.
    async fn row(
        &self,
        invocation: &Invocation,
        schema: Schema,
        slot: &EntryId,
        dry: Option<&DryRun>,
    ) -> Result<Option<Row>, StoreError> {
        match dry.and_then(|dry| dry.look(&keys::entry(slot))) {
            Some(row) => Ok(row.cloned()),
            None => self.store.get(invocation, self.of(schema), &keys::entry(slot)).await,
        }
    }

    pub async fn insert(
        &self,
        invocation: &Invocation,
        asked: &Insertion,
        policy: &PolicyRow,
    ) -> Result<Inserted, StoreError> {
        self.insert_through(invocation, asked, policy, |_| true).await
    }

    /// Works as [`Self::insert`], but shows each decision to `gate` first. A decision that `gate`
    /// rejects is not carried out.
    pub async fn insert_through(
        &self,
        invocation: &Invocation,
        asked: &Insertion,
        policy: &PolicyRow,
        gate: impl Fn(&InsertDecision) -> bool,
    ) -> Result<Inserted, StoreError> {
        let gate = &gate;
        let step = |known: Option<StoredRows>| async move {
            let is_first = known.is_none();
            let mut stored = known.unwrap_or_default();
            loop {
                let decision = decide(asked, &stored, policy, invocation.now);
                if !gate(&decision) {
                    return Ok(Break(Inserted::Held));
                }
                match decision {
                    InsertDecision::Done(outcome) if is_again(asked, &outcome) => {
                        return Ok(Break(Inserted::Again(outcome)));
                    }
                    InsertDecision::Done(outcome) => return Ok(Break(Inserted::Done(outcome))),
                    InsertDecision::Refused(errors) => return Ok(Break(Inserted::Refused(errors))),
                    InsertDecision::Read(id) => {
                        stored.read = self.row(invocation, asked.schema, &id, None).await?.and_then(Row::entry);
                        // The entry has moved since: read the slots again.
                        if stored.read.is_none() {
                            return self.look(invocation, asked).await;
                        }
                    }
                    InsertDecision::Look => return self.look(invocation, asked).await,
                    InsertDecision::Write { changes, outcome } => {
                        return match self.make(invocation, asked.schema, &changes).await? {
                            Made::All => Ok(Break(Inserted::Done(outcome))),
                            // The refusal of a first attempt contains all rows that conflict with
                            // it.
                            Made::Refused(rows) if is_first => Ok(Continue(Some(StoredRows::of(asked, rows)))),
                            Made::Refused(_) => self.look(invocation, asked).await,
                        };
                    }
                }
            }
        };
        self.store.retry_from(invocation, None, step).await
    }

    /// Reads both slots again, so that the next round decides on their current rows.
    async fn look(
        &self,
        invocation: &Invocation,
        asked: &Insertion,
    ) -> Result<ControlFlow<Inserted, Option<StoredRows>>, StoreError> {
        self.stored(invocation, asked, None).await.map(|stored| Continue(Some(stored)))
    }

    /// Returns the outcome that an insert would have, on top of what earlier dry inserts would have
    /// written. It writes nothing.
    pub async fn insert_dry(
        &self,
        invocation: &Invocation,
        asked: &Insertion,
        policy: &PolicyRow,
        dry: &mut DryRun,
    ) -> Result<Inserted, StoreError> {
        let mut stored = self.stored(invocation, asked, Some(dry)).await?;
        loop {
            match decide(asked, &stored, policy, invocation.now) {
                InsertDecision::Done(outcome) => return Ok(Inserted::Done(outcome)),
                InsertDecision::Refused(errors) => return Ok(Inserted::Refused(errors)),
                InsertDecision::Write { changes, outcome } => {
                    dry.note(&changes);
                    return Ok(Inserted::Done(outcome));
                }
                InsertDecision::Read(id) => {
                    let row = self.row(invocation, asked.schema, &id, Some(dry)).await?.and_then(Row::entry);
                    stored.read = Some(row.ok_or(StoreError::Conflict)?);
                }
                InsertDecision::Look => return Err(StoreError::Conflict),
            }
        }
    }

    /// Reads the current rows of both slots.
    async fn stored(
        &self,
        invocation: &Invocation,
        asked: &Insertion,
        dry: Option<&DryRun>,
    ) -> Result<StoredRows, StoreError> {
        let mut rows = Vec::new();
        for slot in [asked.primary_slot(), asked.secondary_slot()].into_iter().flatten() {
            let row = self.row(invocation, asked.schema, &slot, dry).await?;
            rows.extend(row.map(|row| (keys::entry(&slot), row)));
        }
        Ok(StoredRows::of(asked, rows))
    }

    async fn make(&self, invocation: &Invocation, schema: Schema, changes: &[SlotChange]) -> Result<Made, StoreError> {
        let mut writes =
            changes.iter().map(|change| write_of(self.of(schema), change)).collect::<Result<Vec<_>, _>>()?;
        // A transaction costs twice as much as a plain write.
        let refused: Vec<Option<Item>> = if writes.len() > 1 {
            match self.store.transact(invocation, writes).await? {
                Transacted::Done => return Ok(Made::All),
                Transacted::Refused(refusals) => refusals.into_iter().map(|refusal| refusal?.item).collect(),
            }
        } else {
            let Some(write) = writes.pop() else { return Ok(Made::All) };
            match self.store.write(invocation, write).await? {
                Written::New | Written::Mine => return Ok(Made::All),
                Written::Refused(item) => vec![item],
            }
        };
        let rows = changes.iter().zip(refused).filter_map(|(change, item)| Some((change.key.clone(), item?)));
        rows.map(|(key, item)| Ok((key, read_row(item)?))).collect::<Result<_, _>>().map(Made::Refused)
    }
}

fn is_again(asked: &Insertion, outcome: &InsertOutcome) -> bool {
    let by = |line| outcome.row.inserted_by.as_ref() == Some(line) || outcome.row.updated_by.contains(line);
    outcome.action != Action::Skipped && asked.line.as_ref().is_some_and(by)
}

enum Made {
    All,
    Refused(Vec<(Key, Row)>),
}

/// The attributes by which the marker of an entry is recognized.
#[derive(Serialize)]
struct MarkerOf<'a> {
    kind: &'static str,
    entry_id: &'a str,
}

fn write_of(table: &str, change: &SlotChange) -> Result<Write, StoreError> {
    let condition = match &change.when {
        When::Absent => Condition::Absent,
        When::Version(version) => Condition::version(*version),
        // An entry has its own id, too. Only a marker may be replaced by its entry.
        When::AbsentOrOwnedBy(owner) => {
            let marker = Fence::same(&MarkerOf { kind: "marker", entry_id: owner.as_str() });
            Condition::any([Condition::Absent, Condition::of(&marker)?])
        }
    };
    let write = match &change.row {
        Some(row) => Write::put(table, change.key.clone(), row)?,
        None => Write::delete(table, change.key.clone()),
    };
    Ok(write.when(condition))
}
