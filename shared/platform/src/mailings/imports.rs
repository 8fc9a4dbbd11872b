//! Imports a file: turns it into entries, under a lease on the mailing's row, from checkpoint to
//! checkpoint.
//!
//! Inserting an entry does not require the lease: an entry is inserted only if it does not exist,
//! and each entry stores its line. An importer that lost its lease inserts the same rows as its
//! successor, and cannot write its progress.

use umavez_domain::change::Row;
use umavez_domain::keys;
use umavez_domain::lease::Lease;
use umavez_domain::mailings::{
    ImportCause, ImportProblem, ImportProgress, ImportState, MailingEvent, MailingId, MailingRow, MailingState, Move,
    RunningHash, ShardRow, move_mailing,
};
use umavez_domain::uploaded::Uploaded;

use super::Mailings;
use crate::invocation::Invocation;
use crate::lease::{self, Turn};
use crate::store::{Beside, Condition, Decided, Start, StoreError, Write, Written, read_row};

/// An importer that does not renew its lease for this long loses its mailing.
const LEASE_MS: i64 = 60_000;

/// The outcome of a checkpoint.
#[derive(Debug)]
pub enum Checkpoint {
    Kept(Box<MailingRow>),
    /// The import must not continue; the importer reports what it has read so far.
    Canceled,
    /// Another importer has taken over.
    Lost,
}

impl Mailings {
    /// Records that the file was uploaded, so that its import may start.
    pub async fn uploaded(&self, invocation: &Invocation, file: &Uploaded<MailingId>) -> Result<(), StoreError> {
        let rule = |row: &MailingRow| {
            if row.import != ImportState::AwaitingUpload || row.state == MailingState::Canceled {
                return (None, ());
            }
            let mut after = row.clone();
            after.file_uploaded(file.etag.clone(), file.size, invocation.now);
            (Some(after), ())
        };
        self.change(invocation, Start::Key(keys::mailing(&file.id)), rule).await.map(drop)
    }

    /// Takes the import, if there is one to do and no other importer does it.
    pub async fn import_turn(&self, invocation: &Invocation, id: &MailingId) -> Result<Turn<MailingRow>, StoreError> {
        // A canceled mailing is included: its existing rows must be counted before they can be
        // reported.
        let has_work = |row: &MailingRow| matches!(row.import, ImportState::Queued | ImportState::Running);
        let key = keys::mailing(id);
        let turn = lease::turn(&self.store, invocation, &self.table, &key, LEASE_MS, has_work).await?;
        let Turn::Mine(held, row) = turn else { return Ok(turn) };
        // From here on, recovery looks for the mailing when the lease ends.
        Ok(match self.checkpoint(invocation, &held, &row, row.progress.clone()).await? {
            Checkpoint::Kept(row) => Turn::Mine(held, row),
            Checkpoint::Canceled => Turn::Mine(held, row),
            Checkpoint::Lost => Turn::NothingToDo,
        })
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
        let next = row.checkpointed(held, progress, until);
        // This importer still holds the lease, the import is still under way, and the mailing
        // has not been canceled.
        let importing = Condition::of(&row.importing_as_read())?;
        let canceled = Condition::is_not("state", MailingState::Canceled.as_str());
        let wanted = Condition::all([Condition::of(&held.fence())?, importing, canceled]);
        let write = Write::changes(&self.table, row.key(), row, &next)?.when(wanted);
        let stored: Option<MailingRow> = match self.store.write(invocation, write).await? {
            Written::New | Written::Mine => return Ok(Checkpoint::Kept(Box::new(next))),
            Written::Refused(item) => item.map(read_row).transpose()?,
        };
        let is_held = stored.is_some_and(|row| row.is_held_by(held));
        Ok(if is_held { Checkpoint::Canceled } else { Checkpoint::Lost })
    }

    /// Enqueues the import when the time of this invocation ends: another invocation continues from
    /// the last checkpoint. Returns `false` if this importer no longer holds the lease.
    pub async fn requeue_import(
        &self,
        invocation: &Invocation,
        held: &Lease,
        id: &MailingId,
    ) -> Result<bool, StoreError> {
        let rule = |row: &MailingRow| {
            if !row.is_held_by(held) {
                return (None, ());
            }
            let now = invocation.current();
            // End the lease now, so that the next importer need not wait for it.
            let mut after = MailingRow { lease: Some(held.ending(now)), ..row.clone() };
            after.enqueue_import(now);
            (Some(after), ())
        };
        let committed = self.change(invocation, Start::Key(keys::mailing(id)), rule).await?;
        Ok(committed.done().is_some())
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
    /// can go through the shards, it also enqueues the first of each group. Returns `None` if the
    /// import is no longer this importer's.
    pub async fn imported(
        &self,
        invocation: &Invocation,
        held: &Lease,
        id: &MailingId,
        progress: &ImportProgress,
    ) -> Result<Option<MailingRow>, StoreError> {
        let rule = |row: MailingRow| async move {
            if matches!(row.import, ImportState::Done | ImportState::Failed) || !row.is_held_by(held) {
                return Ok(Decided::Stop(()));
            }
            let now = invocation.current();
            let fits = self.fits(invocation, &row, progress).await?;
            let (mut after, shards) = row.imported(progress, fits, now);
            let hash = progress.hash.as_ref().filter(|_| !progress.partial).map(RunningHash::finish);
            if let (None, Some(content_hash)) = (&row.content_hash, hash) {
                after.same_content_as = self.claim_file(invocation, &content_hash, id).await?;
                after.content_hash = Some(content_hash);
            }
            let with = self.shard_writes(&shards)?.into_iter().map(Beside::required).collect();
            Ok(Decided::Commit { row: after.changed(&row, now), with, out: () })
        };
        let start = Start::Key(keys::mailing(id));
        Ok(self.store.change_with(invocation, &self.table, start, rule).await?.done())
    }

    /// Fails a mailing whose file cannot be imported and releases its name, in one transaction. The
    /// shards with the entries that exist are enqueued, so that senders mark the entries as not to
    /// be sent. `found` is the importer's lease and progress; it is `None` for a file that did not
    /// arrive, because no importer has taken a lease for it.
    pub async fn import_failed(
        &self,
        invocation: &Invocation,
        found: Option<(&Lease, &ImportProgress)>,
        id: &MailingId,
        problem: ImportProblem,
    ) -> Result<Option<MailingRow>, StoreError> {
        let rule = |row: MailingRow| async move {
            let Move::To(state) = move_mailing(row.state, MailingEvent::Unreadable, row.is_ready()) else {
                return Ok(Decided::Stop(()));
            };
            let is_obsolete = match found {
                Some((held, _)) => !row.is_held_by(held),
                // The file has arrived after all.
                None => row.import != ImportState::AwaitingUpload,
            };
            if is_obsolete {
                return Ok(Decided::Stop(()));
            }
            let now = invocation.current();
            let (problem, finished_at) = (Some(problem), Some(now));
            let mut after = MailingRow { state, import: ImportState::Failed, problem, finished_at, ..row.clone() };
            after.work.rest();
            if let Some((_, progress)) = found {
                after.progress = progress.clone();
                // An earlier importer may have inserted rows from a file that is gone now. They
                // cannot be counted from the file again.
                let is_gone = problem.is_some_and(|problem| matches!(problem.cause, ImportCause::Object(_)));
                if progress.entries() > 0 || is_gone {
                    after.progress.partial = true;
                    after.enqueue_hand_out(now);
                }
            }
            let name = row.name();
            let with = vec![Beside::required(Write::of_change(&self.table, &name, &name.released())?)];
            Ok(Decided::Commit { row: after.changed(&row, now), with, out: () })
        };
        let start = Start::Key(keys::mailing(id));
        Ok(self.store.change_with(invocation, &self.table, start, rule).await?.done())
    }

    /// Creates the rows of the shards of a mailing whose import failed. The transaction of the
    /// failure does not include them: with the mailing and its name, they would exceed the limit of
    /// a transaction.
    pub(super) async fn create_shards(&self, invocation: &Invocation, row: &MailingRow) -> Result<(), StoreError> {
        // If the transaction is refused, another worker has created the rows.
        self.store.transact(invocation, self.shard_writes(&row.new_shards(&row.progress))?).await.map(drop)
    }

    fn shard_writes(&self, shards: &[ShardRow]) -> Result<Vec<Write>, StoreError> {
        let new = |shard: &ShardRow| Ok(Write::put(&self.table, shard.key(), shard)?.when(Condition::Absent));
        shards.iter().map(new).collect()
    }
}
