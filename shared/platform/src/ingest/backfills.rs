//! Jobs that insert many entries. A job is a row with its emission and its lease: the write that
//! creates it enqueues it, one worker at a time works on it, and recovery finds it again. The rules
//! are in `umavez_domain::ingest`.

use serde::{Deserialize, Serialize};
use umavez_domain::change::Row;
use umavez_domain::ingest::{BackfillId, BackfillInput, BackfillRequest, BackfillRow, BackfillState, LEASE_MS};
use umavez_domain::keys;
use umavez_domain::uploaded::Uploaded;

use crate::invocation::Invocation;
use crate::lease::{self, Turn};
use crate::store::{Condition, Decided, Found, Refusal, Start, Store, StoreError, Transacted, Write, read_row};

/// How long lines that came with a request are kept: as long as uploaded lines.
const INPUT_DAYS: i64 = 14;

#[derive(Debug, Clone)]
pub struct Backfills {
    pub store: Store,
    pub table: String,
}

#[derive(Debug)]
pub enum Begun {
    New(Box<BackfillRow>),
    /// A job with this id exists.
    Standing(Box<BackfillRow>),
}

#[derive(Serialize, Deserialize)]
struct InputRow {
    lines: String,
    expires_at: i64,
}

impl Backfills {
    /// Creates the job and its lines in one transaction.
    pub async fn begin(
        &self,
        invocation: &Invocation,
        row: BackfillRow,
        request: &BackfillRequest,
    ) -> Result<Begun, StoreError> {
        // No job with this id exists.
        let mut writes = vec![Write::put(&self.table, row.key(), &row)?.when(Condition::Absent)];
        if let BackfillInput::Inline(lines) = &request.input {
            let expires_at = invocation.now.plus_days(INPUT_DAYS).seconds();
            let input = InputRow { lines: lines.clone(), expires_at };
            writes.push(Write::put(&self.table, keys::backfill_input(&row.backfill_id), &input)?);
        }
        match self.store.transact(invocation, writes).await? {
            Transacted::Done => Ok(Begun::New(Box::new(row))),
            Transacted::Refused(refusals) => match refusals.into_iter().next() {
                Some(Some(Refusal { item: Some(item) })) => Ok(Begun::Standing(Box::new(read_row(item)?))),
                _ => Err(StoreError::Corrupt("a job that nothing refused")),
            },
        }
    }

    pub async fn get(&self, invocation: &Invocation, id: &BackfillId) -> Result<Option<BackfillRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::backfill(id)).await
    }

    /// Reads the lines that came with the request.
    pub async fn lines(&self, invocation: &Invocation, id: &BackfillId) -> Result<Option<String>, StoreError> {
        let row: Option<InputRow> = self.store.get(invocation, &self.table, &keys::backfill_input(id)).await?;
        Ok(row.map(|row| row.lines))
    }

    /// Records that the lines were uploaded, so that the job may start.
    pub async fn uploaded(&self, invocation: &Invocation, upload: &Uploaded<BackfillId>) -> Result<(), StoreError> {
        let start = Start::Key(keys::backfill(&upload.id));
        self.change(invocation, start, |row| row.uploaded(upload, invocation.now)).await.map(drop)
    }

    /// Takes the job, if there is work to do and no other worker does it.
    pub async fn turn(&self, invocation: &Invocation, id: &BackfillId) -> Result<Turn<BackfillRow>, StoreError> {
        let key = keys::backfill(id);
        let has_work = BackfillRow::has_work;
        let turn = lease::turn(&self.store, invocation, &self.table, &key, LEASE_MS, has_work).await?;
        let Turn::Mine(held, row) = turn else { return Ok(turn) };
        // From here on, the job shows as RUNNING, and recovery looks for it when the lease ends.
        let running = row.at(row.progress.clone(), BackfillState::Running, invocation.current());
        let is_mine = self.commit(invocation, &row, &running).await?;
        Ok(if is_mine { Turn::Mine(held, Box::new(running)) } else { Turn::NothingToDo })
    }

    /// Commits a change of a job by its worker. Returns `false` if another worker has taken over;
    /// that worker continues from the progress that it found.
    pub async fn commit(
        &self,
        invocation: &Invocation,
        before: &BackfillRow,
        after: &BackfillRow,
    ) -> Result<bool, StoreError> {
        self.store.commit(invocation, &self.table, before, after, Vec::new()).await
    }

    /// Enqueues a stalled job again, or fails a job whose upload did not arrive. Returns whether it
    /// did either.
    pub async fn wake(&self, invocation: &Invocation, found: &Found) -> Result<bool, StoreError> {
        let rule = |row: &BackfillRow| row.recovered(invocation.now).filter(|_| row.work.waits_at(&found.place));
        self.change(invocation, Start::Key(found.key.clone()), rule).await
    }

    /// Changes a job by a rule. Returns whether the rule changed it.
    async fn change(
        &self,
        invocation: &Invocation,
        start: Start<BackfillRow>,
        rule: impl Fn(&BackfillRow) -> Option<BackfillRow>,
    ) -> Result<bool, StoreError> {
        let rule = |row: &BackfillRow| Ok(rule(row).map_or(Decided::Stop(()), |next| Decided::commit(next, ())));
        Ok(self.store.change(invocation, &self.table, start, rule).await?.done().is_some())
    }
}
