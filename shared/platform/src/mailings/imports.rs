//! Imports a file: turns it into entries, under a lease on the mailing's row, from checkpoint to
//! checkpoint.
//!
//! Inserting an entry does not require the lease: an entry is inserted only if it does not exist,
//! and each entry stores its line. An importer that lost its lease inserts the same rows as its
//! successor, and cannot write its progress.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::change::Row;
use umavez_domain::codes::{FileProblem, Reason};
use umavez_domain::keys;
use umavez_domain::lease::Lease;
use umavez_domain::mailings::files::Arrived;
use umavez_domain::mailings::{
    ImportCause, ImportProblem, ImportProgress, ImportState, MailingEvent, MailingId, MailingRow, MailingState, Move,
    RunningHash, ShardRow, first_in_lanes, move_mailing,
};
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::lease::{self, LeaseTaken};
use crate::store::{Committed, Condition, Start, StoreError, Write, Written, read_row};

/// An importer that does not renew its lease for this long loses its mailing.
const LEASE_MS: i64 = 60_000;

/// The outcome of asking for a turn at an import.
#[derive(Debug)]
pub enum Importing {
    Mine(Lease, Box<MailingRow>),
    Busy(Timestamp),
    /// The import has ended, or waits for its file.
    NothingToDo,
}

/// The outcome of a checkpoint.
#[derive(Debug)]
pub enum Checkpoint {
    Kept(Box<(Lease, MailingRow)>),
    /// The import must not continue; the importer reports what it has read so far.
    Canceled,
    /// Another importer has taken over.
    Lost,
}

impl Mailings {
    /// Records that the file has arrived, so that its import may start. Returns whether this event
    /// was the first to report it.
    pub async fn arrived(&self, invocation: &Invocation, arrived: &Arrived) -> Result<bool, StoreError> {
        let rule = |row: &MailingRow| {
            if row.import != ImportState::AwaitingUpload || row.state == MailingState::Canceled {
                return (None, ());
            }
            let mut after = row.clone();
            after.file_is_there(arrived.etag.clone(), arrived.size, invocation.now);
            (Some(after), ())
        };
        let committed = self.change(invocation, Start::Key(keys::mailing(&arrived.mailing)), rule).await?;
        Ok(matches!(committed, Committed::Done(..)))
    }

    /// Takes the import, if there is one to do and no other importer does it.
    pub async fn import_turn(&self, invocation: &Invocation, id: &MailingId) -> Result<Importing, StoreError> {
        // A canceled mailing is included: its existing rows must be counted before they can be
        // reported.
        let to_do = |row: &MailingRow| matches!(row.import, ImportState::Queued | ImportState::Running);
        if !self.get(invocation, id).await?.is_some_and(|row| to_do(&row)) {
            return Ok(Importing::NothingToDo);
        }
        let (key, owner) = (keys::mailing(id), &invocation.request_id);
        let held = match lease::take(&self.store, invocation, &self.table, &key, owner, LEASE_MS).await? {
            LeaseTaken::Mine(held) => held,
            LeaseTaken::Busy(until) => return Ok(Importing::Busy(until)),
            LeaseTaken::NoRow => return Ok(Importing::NothingToDo),
        };
        // Read the row again, now that no other importer reads the file.
        let Some(row) = self.get(invocation, id).await?.filter(to_do) else { return Ok(Importing::NothingToDo) };
        // From here on, recovery looks for the mailing when the lease ends.
        match self.checkpoint(invocation, &held, &row, row.progress.clone()).await? {
            Checkpoint::Kept(kept) => Ok(Importing::Mine(kept.0, Box::new(kept.1))),
            Checkpoint::Canceled => Ok(Importing::Mine(held, Box::new(row))),
            Checkpoint::Lost => Ok(Importing::NothingToDo),
        }
    }

    /// Writes the progress of the import, and extends the lease in the same write.
    pub async fn checkpoint(
        &self,
        invocation: &Invocation,
        held: &Lease,
        row: &MailingRow,
        progress: ImportProgress,
    ) -> Result<Checkpoint, StoreError> {
        let until = invocation.current().plus_ms(LEASE_MS);
        let mut next = MailingRow { progress, import: ImportState::Running, ..row.clone() };
        next.work.emit = None;
        next.wait_until(until);
        let held_on = held.ending(until);
        let write = Write::changes(&self.table, row.key(), row, &next)?.set_row(&held_on, &[])?;
        // This importer still holds the lease, the import is still under way, and nobody has
        // canceled the mailing.
        let importing = Condition::of(&row.importing_as_read())?;
        let canceled = Condition::is_not("state", MailingState::Canceled.as_str());
        let wanted = Condition::all([Condition::of(&held.fence())?, importing, canceled]);
        match self.store.write(invocation, write.when(wanted)).await? {
            Written::New | Written::Mine => Ok(Checkpoint::Kept(Box::new((held_on, next)))),
            Written::Refused(_) if self.is_lost(invocation, held, &row.mailing_id).await? => Ok(Checkpoint::Lost),
            Written::Refused(_) => Ok(Checkpoint::Canceled),
        }
    }

    /// Hands the import over when the time of this invocation ends: another invocation continues
    /// from the last checkpoint. Returns `false` if this importer no longer holds the lease.
    pub async fn hand_on_import(
        &self,
        invocation: &Invocation,
        held: &Lease,
        id: &MailingId,
    ) -> Result<bool, StoreError> {
        let step = || async {
            let Some(row) = self.get(invocation, id).await? else { return Ok(Break(false)) };
            let now = invocation.current();
            let mut after = row.clone();
            after.hand_to_importer(now);
            let after = after.changed(&row, now);
            let write = Write::of_change(&self.table, &row, &after)?;
            // End the lease now, so that the next importer need not wait for it.
            let as_read = Condition::all([Condition::of(&row.fence())?, Condition::of(&held.fence())?]);
            let write = write.set_row(&held.ending(now), &[])?.when(as_read);
            match self.store.write(invocation, write).await? {
                Written::New | Written::Mine => Ok(Break(true)),
                Written::Refused(_) if self.is_lost(invocation, held, id).await? => Ok(Break(false)),
                Written::Refused(_) => Ok(Continue(())),
            }
        };
        self.store.retry(invocation, step).await
    }

    /// Returns whether the content of the mailing, if it has any by now, names only columns of the
    /// file.
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

    /// Ends the import of a file that was read to its end, or to the point where the mailing was
    /// canceled. One transaction marks the mailing as imported and creates its shards. If senders
    /// can go through the shards, it also hands over the first of each lane. Returns `None` if the
    /// import is no longer this importer's.
    pub async fn imported(
        &self,
        invocation: &Invocation,
        held: &Lease,
        id: &MailingId,
        progress: &ImportProgress,
    ) -> Result<Option<MailingRow>, StoreError> {
        let step = || async {
            let Some(row) = self.get(invocation, id).await? else { return Ok(Break(None)) };
            if matches!(row.import, ImportState::Done | ImportState::Failed) {
                return Ok(Break(None));
            }
            let now = invocation.current();
            // From here on, the rows of the shards hold these counts.
            let told = ImportProgress { by_shard: Vec::new(), hash: None, ..progress.clone() };
            let found = progress.hash.as_ref().filter(|_| !progress.partial).map(RunningHash::finish);
            let mut after = MailingRow { import: ImportState::Done, progress: told, ..row.clone() };
            if let (None, Some(content_hash)) = (&row.content_hash, found) {
                after.same_content_as = self.note_file(invocation, &content_hash, id).await?;
                after.content_hash = Some(content_hash);
            }
            after.work.recoveries = 0;
            after.work.rest();
            if !self.fits(invocation, &row, progress).await? {
                // The mailing waits for content that names only columns of the file.
                after.content_version = 0;
                after.problem =
                    Some(ImportProblem { line: None, cause: ImportCause::File(FileProblem::MissingColumn) });
            }
            if let Move::To(state) = move_mailing(row.state, MailingEvent::Ready, after.is_ready()) {
                after.state = state;
            }
            // Senders must go through the shards: to send the entries, or to mark them as not to be
            // sent.
            let goes = matches!(after.state, MailingState::Queued | MailingState::Canceled);
            if goes {
                after.watch(now);
            }
            let mut shards = Vec::new();
            for number in 0..row.shards {
                let mut shard = ShardRow::new(id, number, progress.of_shard(number));
                if goes && first_in_lanes(row.shards).contains(&number) {
                    shard.hand_over(None, None, now);
                }
                shards.push(Write::put(&self.table, keys::mailing_shard(id, number), &shard)?.when(Condition::Absent));
            }
            if let Some(row) = self.commit_held(invocation, held, &row, after, shards).await? {
                return Ok(Break(Some(row)));
            }
            Ok(if self.is_lost(invocation, held, id).await? { Break(None) } else { Continue(()) })
        };
        self.store.retry(invocation, step).await
    }

    /// Fails a mailing whose file cannot be imported and releases its name, in one transaction. The
    /// entries that exist are handed out, so that senders mark them as not to be sent. `found` is
    /// the importer's lease and progress; it is `None` for a file that did not arrive, because
    /// nobody holds a lease for it.
    pub async fn import_failed(
        &self,
        invocation: &Invocation,
        found: Option<(&Lease, &ImportProgress)>,
        id: &MailingId,
        problem: ImportProblem,
    ) -> Result<Option<MailingRow>, StoreError> {
        let held = found.map(|(held, _)| held);
        let step = || async {
            let Some(row) = self.get(invocation, id).await? else { return Ok(Break(None)) };
            let Move::To(state) = move_mailing(row.state, MailingEvent::Unreadable, row.is_ready()) else {
                return Ok(Break(None));
            };
            // The file has arrived after all.
            if held.is_none() && row.import != ImportState::AwaitingUpload {
                return Ok(Break(None));
            }
            let now = invocation.current();
            let mut after = MailingRow {
                state,
                import: ImportState::Failed,
                problem: Some(problem),
                finished_at: Some(now),
                ..row.clone()
            };
            after.work.rest();
            if let Some((_, progress)) = found {
                after.progress = progress.clone();
                // An earlier importer may have inserted rows from a file that is gone now. They
                // cannot be counted from the file again.
                if progress.entries() > 0 || matches!(problem.cause, ImportCause::Object(_)) {
                    after.progress.partial = true;
                    after.hand_out(now);
                }
            }
            let name = Write::update(&self.table, keys::mailing_name(&row.file_name))
                .remove("mailing_id")
                .set_number("turn", row.turn + 1)
                .when(Condition::is("mailing_id", id.as_str()));
            let committed = match held {
                Some(held) => self.commit_held(invocation, held, &row, after, vec![name]).await?,
                None => self.commit_with(invocation, &row, after, vec![name]).await?,
            };
            if let Some(row) = committed {
                return Ok(Break(Some(row)));
            }
            let is_lost = match held {
                Some(held) => self.is_lost(invocation, held, id).await?,
                None => false,
            };
            Ok(if is_lost { Break(None) } else { Continue(()) })
        };
        self.store.retry(invocation, step).await
    }

    /// Creates the rows of the shards of a mailing whose import failed. The transaction of the
    /// failure does not include them: with the mailing and its name, they would exceed the limit of
    /// a transaction.
    pub(super) async fn make_shards(&self, invocation: &Invocation, row: &MailingRow) -> Result<(), StoreError> {
        let id = &row.mailing_id;
        let shard = |number| {
            let shard = ShardRow::new(id, number, row.progress.of_shard(number));
            Ok(Write::put(&self.table, keys::mailing_shard(id, number), &shard)?.when(Condition::Absent))
        };
        let shards = (0..row.shards).map(shard).collect::<Result<Vec<_>, StoreError>>()?;
        // If the transaction is refused, another worker has created the rows.
        self.store.transact(invocation, shards).await.map(drop)
    }

    /// Returns whether this importer no longer holds the lease.
    async fn is_lost(&self, invocation: &Invocation, held: &Lease, id: &MailingId) -> Result<bool, StoreError> {
        let item = self.store.get_item(invocation, &self.table, &keys::mailing(id)).await?;
        let lease: Option<Lease> = item.map(read_row).transpose()?;
        Ok(lease.is_none_or(|lease| !lease.is_same_turn(held)))
    }

    /// Returns the problem of a missing file.
    pub fn missing(reason: Reason) -> ImportProblem {
        ImportProblem { line: None, cause: ImportCause::Object(reason) }
    }
}
