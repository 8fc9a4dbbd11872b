//! A file becomes entries: under a lease on the mailing's row, from checkpoint to checkpoint.
//!
//! Entries do not ask for the lease: they are inserted only where there is none, and each knows its line. An importer that
//! lost its lease inserts what its successor inserts too, and cannot say how far it is.

use std::collections::HashMap;

use umavez_domain::codes::{FileProblem, Reason};
use umavez_domain::keys::{self, Wake};
use umavez_domain::mailings::jobs::Arrived;
use umavez_domain::mailings::{
    EntryRow, EntryState, ImportCause, ImportProblem, ImportProgress, ImportState, Inserted, LineRow,
    MOST_DUPLICATES_TOLD, MailingEntryId, MailingEvent, MailingId, MailingRow, MailingState, Move, Record, ShardRow,
    first_in_lanes, judge_entry, move_mailing, shard_of_line,
};
use umavez_domain::time::Timestamp;

use super::{Mailings, ROUNDS, as_read};
use crate::invocation::Invocation;
use crate::lease::{self, Held, Taken};
use crate::store::{Condition, Insert, Item, StoreError, Write, Written, attribute, read_row, row_of};

/// An importer that is not heard of for this long has lost its mailing.
const LEASE_MS: i64 = 60_000;

/// What came of asking for a turn at an import.
#[derive(Debug)]
pub enum Importing {
    Mine(Held, Box<MailingRow>),
    Busy(Timestamp),
    /// It has ended, or waits for its file.
    NothingToDo,
}

/// What came of a checkpoint.
#[derive(Debug)]
pub enum Checkpoint {
    Kept(Box<(Held, MailingRow)>),
    /// Nobody is to go on; what was read so far is to be told.
    Canceled,
    /// Another has taken over.
    Lost,
}

/// A line of the file, and the row that it is to have.
#[derive(Debug)]
pub struct Line {
    pub record: Record,
    shard: u32,
    entry: Option<MailingEntryId>,
}

impl Line {
    pub fn of(mailing: &MailingId, record: Record, shards: u32) -> Self {
        let entry = record.row.as_ref().ok().map(|row| MailingEntryId::of(mailing, &row.email, shards));
        let shard = entry.as_ref().map_or_else(|| shard_of_line(record.line, shards), |entry| entry.shard);
        Self { record, shard, entry }
    }
}

/// What became of the lines between two checkpoints.
#[derive(Debug)]
pub struct LinesInserted {
    pub progress: ImportProgress,
}

impl Mailings {
    /// The file has arrived: its import may begin. Whether it was this event that said so first.
    pub async fn arrived(&self, invocation: &Invocation, arrived: &Arrived) -> Result<bool, StoreError> {
        let mut met = self.get(invocation, &arrived.mailing).await?;
        for _ in 0..ROUNDS {
            let Some(row) = met else { return Ok(false) };
            let waits = row.import == ImportState::AwaitingUpload && row.state != MailingState::Canceled;
            if !waits {
                return Ok(false);
            }
            let mut after = row.clone();
            after.file_is_there(arrived.etag.clone(), arrived.size, invocation.now);
            match self.change(invocation, &row, after).await? {
                Ok(_) => return Ok(true),
                Err(row) => met = row,
            }
        }
        Err(StoreError::Conflict)
    }

    /// Takes the import on, if there is one to do and nobody does it.
    pub async fn import_turn(&self, invocation: &Invocation, id: &MailingId) -> Result<Importing, StoreError> {
        // Also of one that was canceled: what is there of it has to be counted before it can be told.
        let to_do = |row: &MailingRow| matches!(row.import, ImportState::Queued | ImportState::Running);
        if !self.get(invocation, id).await?.is_some_and(|row| to_do(&row)) {
            return Ok(Importing::NothingToDo);
        }
        let (key, owner) = (keys::mailing(id), &invocation.request_id);
        let held = match lease::take(&self.store, invocation, &self.table, &key, owner, LEASE_MS).await? {
            Taken::Held(held) => held,
            Taken::Busy(other) => return Ok(Importing::Busy(Timestamp::from_millis(other.lease_until))),
            Taken::NoRow => return Ok(Importing::NothingToDo),
        };
        // As it is now that nobody else reads it.
        match self.get(invocation, id).await? {
            Some(row) if to_do(&row) => Ok(Importing::Mine(held, Box::new(row))),
            _ => Ok(Importing::NothingToDo),
        }
    }

    /// Writes the rows of some lines, each once, and counts what they are. Lines of one address are all of these or of
    /// earlier calls: the first has the entry.
    pub async fn insert_lines(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        lines: Vec<Line>,
        progress: &ImportProgress,
    ) -> Result<LinesInserted, StoreError> {
        let after = lines.last().map(|line| line.record.after);
        let mut first: HashMap<String, u64> = HashMap::with_capacity(lines.len());
        let (mut rows, mut judged): (Vec<Item>, Vec<Judged>) = (Vec::new(), Vec::with_capacity(lines.len()));
        for line in lines {
            let number = line.record.line;
            match (line.record.row, line.entry) {
                (Ok(row), Some(entry)) => {
                    if let Some(of_line) = first.get(&entry.email_hash) {
                        judged.push(Judged {
                            line: number,
                            shard: line.shard,
                            what: What::Twice { of_line: *of_line },
                        });
                        continue;
                    }
                    first.insert(entry.email_hash.clone(), number);
                    rows.push(new_entry(&entry, row.email, row.variables, number)?);
                    judged.push(Judged {
                        line: number,
                        shard: line.shard,
                        what: What::Entry { id: entry, at: rows.len() - 1 },
                    });
                }
                (Err(problem), _) => {
                    let told = LineRow {
                        line: number,
                        state: Some(EntryState::Invalid),
                        reason: problem.as_str().to_owned(),
                        of_line: None,
                    };
                    rows.push(self.line_row(&mailing.mailing_id, line.shard, &told)?);
                    judged.push(Judged { line: number, shard: line.shard, what: What::Invalid });
                }
                (Ok(_), None) => return Err(StoreError::Corrupt("a recipient without an identity")),
            }
        }
        let outcomes = self.insert_at_once(invocation, rows).await?;
        let met = self.met(invocation, &judged, &outcomes).await?;
        let mut progress = progress.clone();
        let mut duplicates = Vec::new();
        for one in judged {
            progress.rows += 1;
            let of_line = match one.what {
                What::Invalid => {
                    progress.add_invalid(one.shard);
                    continue;
                }
                What::Twice { of_line } => of_line,
                What::Entry { id, at } => {
                    let stored = (outcomes[at] == Insert::There).then(|| met.get(&id.email_hash)).flatten();
                    match judge_entry(stored.copied(), one.line) {
                        Inserted::New | Inserted::Mine => {
                            progress.add_recipient(one.shard);
                            continue;
                        }
                        Inserted::Duplicate { of_line } => of_line,
                    }
                }
            };
            if progress.duplicates < MOST_DUPLICATES_TOLD {
                let shard = shard_of_line(one.line, mailing.shards);
                let told =
                    LineRow { line: one.line, state: None, reason: "duplicate".to_owned(), of_line: Some(of_line) };
                duplicates.push(self.line_row(&mailing.mailing_id, shard, &told)?);
            }
            progress.duplicates += 1;
        }
        self.insert_at_once(invocation, duplicates).await?;
        progress.place = after.unwrap_or(progress.place);
        Ok(LinesInserted { progress })
    }

    /// Many requests at a time; outcomes in order.
    async fn insert_at_once(&self, invocation: &Invocation, rows: Vec<Item>) -> Result<Vec<Insert>, StoreError> {
        use futures::{StreamExt, TryStreamExt};
        const A_REQUEST: usize = 25;
        const AT_ONCE: usize = 16;
        let mut batches: Vec<Vec<Item>> = Vec::with_capacity(rows.len() / A_REQUEST + 1);
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            batches.push(rows.by_ref().take(A_REQUEST).collect());
        }
        let inserted: Vec<Vec<Insert>> = futures::stream::iter(batches)
            .map(|batch| self.store.insert_many(invocation, &self.table, batch))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(inserted.into_iter().flatten().collect())
    }

    /// The lines of entries that were there, by the hashes of their addresses.
    async fn met(
        &self,
        invocation: &Invocation,
        judged: &[Judged],
        outcomes: &[Insert],
    ) -> Result<HashMap<String, u64>, StoreError> {
        let there: Vec<&MailingEntryId> = judged
            .iter()
            .filter_map(|one| match &one.what {
                What::Entry { id, at } if outcomes[*at] == Insert::There => Some(id),
                _ => None,
            })
            .collect();
        let asked: Vec<_> = there.iter().map(|id| keys::mailing_entry(id)).collect();
        let mut rows = self.store.get_many(invocation, &self.table, &asked).await?;
        let mut met = HashMap::new();
        for (id, key) in there.into_iter().zip(asked) {
            let row = rows.remove(&key).ok_or(StoreError::Corrupt("an entry that is there and is not"))?;
            met.insert(id.email_hash.clone(), read_row::<EntryRow>(row)?.line);
        }
        Ok(met)
    }

    fn line_row(&self, id: &MailingId, shard: u32, told: &LineRow) -> Result<Item, StoreError> {
        keyed(&keys::mailing_line(id, shard, told.line), row_of(told)?)
    }

    /// Writes how far the import is, and extends the lease with it.
    pub async fn checkpoint(
        &self,
        invocation: &Invocation,
        held: &Held,
        row: &MailingRow,
        progress: ImportProgress,
    ) -> Result<Checkpoint, StoreError> {
        let until = invocation.current().plus_ms(LEASE_MS);
        let mut next = MailingRow { progress, import: ImportState::Running, emit: None, ..row.clone() };
        next.waits(until);
        let write = Write::update(&self.table, keys::mailing(&row.mailing_id))
            .set_value("progress", attribute(&next.progress)?)
            .set("import", ImportState::Running.as_str())
            .set_number("lease_until", until.millis())
            .set("wake", keys::wake(Wake::Check, keys::wake_shard(row.mailing_id.as_str())))
            .set("wake_at", next.wake_at.clone().unwrap_or_default())
            .remove("emit");
        // It is still this importer's, still under way, and still wanted.
        let importing =
            [ImportState::Queued, ImportState::Running].map(|state| Condition::is("import", state.as_str()));
        let canceled = Condition::is_not("state", MailingState::Canceled.as_str());
        let wanted = Condition::all([held.fence(), Condition::any(importing), canceled]);
        match self.store.write(invocation, write.when(wanted)).await? {
            Written::New | Written::Mine => Ok(Checkpoint::Kept(Box::new((Held { until, ..held.clone() }, next)))),
            Written::Refused(_) if self.is_lost(invocation, held, &row.mailing_id).await? => Ok(Checkpoint::Lost),
            Written::Refused(_) => Ok(Checkpoint::Canceled),
        }
    }

    /// The time is over: another invocation goes on from the last checkpoint.
    pub async fn hand_on_import(
        &self,
        invocation: &Invocation,
        held: &Held,
        id: &MailingId,
    ) -> Result<bool, StoreError> {
        let mut met = self.get(invocation, id).await?;
        for _ in 0..ROUNDS {
            let Some(row) = met.take() else { return Ok(false) };
            let mut after = row.clone();
            after.hand_to_importer(invocation.current());
            let after = super::changed(&row, after, invocation.current());
            let write = Write::changes(&self.table, keys::mailing(id), &row, &after)?
                // The next importer need not wait for the lease to end.
                .set_number("lease_until", invocation.current().millis());
            match self.store.write(invocation, write.when(Condition::all([as_read(&row), held.fence()]))).await? {
                Written::New | Written::Mine => return Ok(true),
                Written::Refused(item) => {
                    met = item.map(read_row).transpose()?;
                    if self.is_lost(invocation, held, id).await? {
                        return Ok(false);
                    }
                }
            }
        }
        Err(StoreError::Conflict)
    }

    /// Whether what the mailing says, if it says anything by now, names columns of the file only.
    async fn fits(
        &self,
        invocation: &Invocation,
        row: &MailingRow,
        progress: &ImportProgress,
    ) -> Result<bool, StoreError> {
        let (true, Some(format)) = (row.content_version > 0, &progress.format) else { return Ok(true) };
        let content = self.content(invocation, &row.mailing_id).await?;
        Ok(content.is_none_or(|stored| stored.content.misfits(format, row.unsubscribe).is_empty()))
    }

    /// The file was read to its end, or as far as it was when the mailing was canceled: the mailing says so, and its shards
    /// are made, in one transaction. If they can be gone through, the first of each lane is handed over with it. `None`: it
    /// is another's.
    pub async fn imported(
        &self,
        invocation: &Invocation,
        held: &Held,
        id: &MailingId,
        progress: &ImportProgress,
    ) -> Result<Option<MailingRow>, StoreError> {
        for _ in 0..ROUNDS {
            let Some(row) = self.get(invocation, id).await? else { return Ok(None) };
            if matches!(row.import, ImportState::Done | ImportState::Failed) {
                return Ok(None);
            }
            let now = invocation.current();
            // From here on the shards' own rows say what is in them.
            let told = ImportProgress { by_shard: Vec::new(), ..progress.clone() };
            let mut after = MailingRow { import: ImportState::Done, progress: told, ..row.clone() };
            after.recoveries = 0;
            after.rests();
            if !self.fits(invocation, &row, progress).await? {
                // It waits for content that names no other columns than there are.
                after.content_version = 0;
                after.problem =
                    Some(ImportProblem { line: None, cause: ImportCause::File(FileProblem::MissingColumn) });
            }
            if let Move::To(state) = move_mailing(row.state, MailingEvent::Ready, after.is_ready()) {
                after.state = state;
            }
            // To be sent, or to be told that they will not be.
            let goes = matches!(after.state, MailingState::Queued | MailingState::Canceled);
            if goes {
                after.is_watched(now);
            }
            let mut shards = Vec::new();
            for number in 0..row.shards {
                let mut shard = ShardRow::new(id, number, progress.of_shard(number));
                if goes && first_in_lanes(row.shards).contains(&number) {
                    shard.hand_over(None, None, now);
                }
                shards.push(Write::put(&self.table, keys::mailing_shard(id, number), &shard)?.when(Condition::Absent));
            }
            if let Some(row) = self.change_with(invocation, &row, after, held.fence(), shards).await? {
                return Ok(Some(row));
            }
            if self.is_lost(invocation, held, id).await? {
                return Ok(None);
            }
        }
        Err(StoreError::Conflict)
    }

    /// The file cannot be imported: the mailing has failed, and its name is free, in one transaction. `held` is the
    /// importer's; nobody has one for a file that did not come.
    pub async fn import_failed(
        &self,
        invocation: &Invocation,
        held: Option<&Held>,
        id: &MailingId,
        problem: ImportProblem,
    ) -> Result<Option<MailingRow>, StoreError> {
        for _ in 0..ROUNDS {
            let Some(row) = self.get(invocation, id).await? else { return Ok(None) };
            let Move::To(state) = move_mailing(row.state, MailingEvent::Unreadable, row.is_ready()) else {
                return Ok(None);
            };
            // It has come after all.
            if held.is_none() && row.import != ImportState::AwaitingUpload {
                return Ok(None);
            }
            let now = invocation.current();
            let mut after = MailingRow {
                state,
                import: ImportState::Failed,
                problem: Some(problem),
                finished_at: Some(now),
                ..row.clone()
            };
            after.rests();
            let name = Write::update(&self.table, keys::mailing_name(&row.file_name))
                .remove("mailing_id")
                .set_number("turn", row.turn + 1)
                .when(Condition::is("mailing_id", id.as_str()));
            let fence = held.map_or(Condition::has("pk"), Held::fence);
            if let Some(row) = self.change_with(invocation, &row, after, fence, vec![name]).await? {
                return Ok(Some(row));
            }
            if let Some(held) = held
                && self.is_lost(invocation, held, id).await?
            {
                return Ok(None);
            }
        }
        Err(StoreError::Conflict)
    }

    /// Whether another has the lease by now.
    async fn is_lost(&self, invocation: &Invocation, held: &Held, id: &MailingId) -> Result<bool, StoreError> {
        let item = self.store.get_item(invocation, &self.table, &keys::mailing(id)).await?;
        let lease: Option<umavez_domain::lease::Lease> = item.map(read_row).transpose()?;
        Ok(lease.is_none_or(|lease| lease.lease_owner != held.owner || lease.lease_epoch != held.epoch))
    }

    /// The problem of a file that is not there.
    pub fn missing(reason: Reason) -> ImportProblem {
        ImportProblem { line: None, cause: ImportCause::Object(reason) }
    }
}

struct Judged {
    line: u64,
    shard: u32,
    what: What,
}

enum What {
    /// `at`: which of the rows to insert.
    Entry {
        id: MailingEntryId,
        at: usize,
    },
    Invalid,
    /// An earlier line of the same call has the address.
    Twice {
        of_line: u64,
    },
}

fn new_entry(
    id: &MailingEntryId,
    email: String,
    variables: std::collections::BTreeMap<String, String>,
    line: u64,
) -> Result<Item, StoreError> {
    use aws_sdk_dynamodb::types::AttributeValue::{M, N, S};
    let text = |text: &str| S(text.to_owned());
    let mut item = Item::from([
        ("email".to_owned(), S(email)),
        ("line".to_owned(), N(line.to_string())),
        ("state".to_owned(), text(EntryState::Pending.as_str())),
    ]);
    // An empty value says what an absent one says.
    let variables: HashMap<_, _> =
        variables.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, S(value))).collect();
    if !variables.is_empty() {
        item.insert("variables".to_owned(), M(variables));
    }
    keyed(&keys::mailing_entry(id), item)
}

fn keyed(key: &keys::Key, mut item: Item) -> Result<Item, StoreError> {
    use aws_sdk_dynamodb::types::AttributeValue::S;
    item.insert("pk".to_owned(), S(key.pk.clone()));
    item.insert("sk".to_owned(), S(key.sk.clone()));
    Ok(item)
}
