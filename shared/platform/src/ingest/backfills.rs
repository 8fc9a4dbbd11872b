//! Jobs that insert many entries. A job is a row with its emission and its lease: handed over with
//! the write that makes it, worked on by one at a time, and found again by recovery.

use serde::{Deserialize, Serialize};
use umavez_domain::change::{Fence, Row};
use umavez_domain::codes::Reason;
use umavez_domain::ingest::{BackfillId, BackfillInput, BackfillRequest, BackfillRow, BackfillState, Progress, Upload};
use umavez_domain::keys::{self, Key, Wake};
use umavez_domain::queue::emit_backfill;
use umavez_domain::time::Timestamp;
use umavez_domain::work::Work;

use crate::invocation::Invocation;
use crate::lease::{self, Held, Taken};
use crate::store::{Condition, Found, Refusal, Store, StoreError, Transacted, Write, Written, read_row};

/// A worker that is not heard of for this long has lost its job: the next run of recovery hands it
/// over again.
pub const LEASE_MS: i64 = 60_000;
/// A job whose worker was lost before is looked for this much later than its lease ends, doubled
/// each time: one that no worker survives does not keep them busy.
const AGAIN_MS: i64 = 60_000;
/// An upload that does not come is not waited for longer: hours more than a form is good for.
const UPLOAD_MS: i64 = 8 * 3_600_000;
/// Lines that came with a request are kept as long as those that are uploaded.
const INPUT_DAYS: i64 = 14;

#[derive(Debug, Clone)]
pub struct Backfills {
    pub store: Store,
    pub table: String,
}

/// A job's row with what moves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    #[serde(flatten)]
    pub row: BackfillRow,
    #[serde(flatten)]
    pub work: Work,
    /// Of the lines that were uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

#[derive(Debug)]
pub enum Begun {
    New(Box<Job>),
    /// There is a job with this identity.
    Standing(Box<Job>),
}

/// What came of asking for a turn at a job.
#[derive(Debug)]
pub enum Turn {
    /// It is this worker's, and as it is now.
    Mine(Held, Box<Job>),
    Busy(Timestamp),
    /// It has ended, or waits for its lines.
    NothingToDo,
    NoJob,
}

#[derive(Serialize, Deserialize)]
struct InputRow {
    lines: String,
    expires_at: i64,
}

impl Backfills {
    /// The job and its lines are one transaction; the job's row hands it over.
    pub async fn begin(
        &self,
        invocation: &Invocation,
        row: BackfillRow,
        request: &BackfillRequest,
    ) -> Result<Begun, StoreError> {
        let mut job = Job { row, work: Work::default(), etag: None, size: None };
        match job.row.upload {
            true => job.wait_until(invocation.now.plus_ms(UPLOAD_MS)),
            false => job.hand_over(invocation.now),
        }
        let key = job.row.key();
        // Nobody has used this identity.
        let mut writes = vec![Write::put(&self.table, key, &job)?.when(Condition::Absent)];
        if let BackfillInput::Inline(lines) = &request.input {
            let expires_at = invocation.now.plus_days(INPUT_DAYS).seconds();
            let input = InputRow { lines: lines.clone(), expires_at };
            writes.push(Write::put(&self.table, keys::backfill_input(&job.row.backfill_id), &input)?);
        }
        match self.store.transact(invocation, writes).await? {
            Transacted::Done => Ok(Begun::New(Box::new(job))),
            Transacted::Refused(refusals) => match refusals.into_iter().next() {
                Some(Some(Refusal { item: Some(item) })) => Ok(Begun::Standing(Box::new(read_row(item)?))),
                _ => Err(StoreError::Corrupt("a job that nothing refused")),
            },
        }
    }

    pub async fn get(&self, invocation: &Invocation, id: &BackfillId) -> Result<Option<Job>, StoreError> {
        self.store.get(invocation, &self.table, &keys::backfill(id)).await
    }

    /// The lines that came with the request.
    pub async fn lines(&self, invocation: &Invocation, id: &BackfillId) -> Result<Option<String>, StoreError> {
        let row: Option<InputRow> = self.store.get(invocation, &self.table, &keys::backfill_input(id)).await?;
        Ok(row.map(|row| row.lines))
    }

    /// The lines have arrived: the job may begin. Whether it was this event that said so first.
    pub async fn uploaded(&self, invocation: &Invocation, upload: &Upload) -> Result<bool, StoreError> {
        let Some(job) = self.get(invocation, &upload.id).await? else { return Ok(false) };
        let mut next = Job { etag: Some(upload.etag.clone()), size: Some(upload.size), ..job.clone() };
        // Given up as one that would not come, and come after all.
        let given_up = job.row.state == BackfillState::Failed
            && job.row.reason == Some(Reason::InputMissing)
            && job.etag.is_none();
        if job.row.state != BackfillState::AwaitingUpload && !given_up {
            return Ok(false);
        }
        next.row.state = BackfillState::Queued;
        (next.row.reason, next.row.completed_at) = (None, None);
        next.hand_over(invocation.now);
        // It still waits for them: what is uploaded later is another file.
        self.replace(invocation, &job, next, None).await
    }

    /// Takes the job on, if it is to be worked on and nobody does.
    pub async fn turn(&self, invocation: &Invocation, id: &BackfillId) -> Result<Turn, StoreError> {
        let Some(job) = self.get(invocation, id).await? else { return Ok(Turn::NoJob) };
        if job.row.state.is_settled() || job.row.state == BackfillState::AwaitingUpload {
            return Ok(Turn::NothingToDo);
        }
        let (key, owner) = (keys::backfill(id), &invocation.request_id);
        let held = match lease::take(&self.store, invocation, &self.table, &key, owner, LEASE_MS).await? {
            Taken::Held(held) => held,
            Taken::Busy(other) => return Ok(Turn::Busy(Timestamp::from_millis(other.lease_until))),
            Taken::NoRow => return Ok(Turn::NoJob),
        };
        // As it is now that nobody else writes to it.
        let Some(job) = self.get(invocation, id).await?.filter(|job| !job.row.state.is_settled()) else {
            return Ok(Turn::NothingToDo);
        };
        // From here on it shows as RUNNING, and recovery looks for it when the lease is over.
        let progress = job.row.progress.clone();
        match self.checkpoint(invocation, &held, &job, progress, BackfillState::Running).await? {
            Some(job) => Ok(Turn::Mine(held, Box::new(job))),
            None => Ok(Turn::NothingToDo),
        }
    }

    /// Writes how far the job is, and extends the lease with it. `None`: another has taken over,
    /// and goes on from what it found.
    pub async fn checkpoint(
        &self,
        invocation: &Invocation,
        held: &Held,
        job: &Job,
        progress: Progress,
        state: BackfillState,
    ) -> Result<Option<Job>, StoreError> {
        let now = invocation.current();
        let has_progress = progress.position != job.row.progress.position;
        let mut next = Job { row: job.row.at(progress, state, now), ..job.clone() };
        if has_progress {
            next.work.recoveries = 0;
        }
        match state {
            // The rest is another invocation's: handed over with what is settled.
            BackfillState::Queued => next.hand_over(now),
            state if state.is_settled() => next.work.rest(),
            // Taken on: rows without an emission do not wake the relay.
            _ => {
                next.work.emit = None;
                next.wait_until(now.plus_ms(LEASE_MS + AGAIN_MS * ((1 << next.work.recoveries.min(6)) - 1)));
            }
        }
        self.under_lease(invocation, held, job, next, now).await
    }

    /// The job's lines cannot be read.
    pub async fn fail(
        &self,
        invocation: &Invocation,
        held: &Held,
        job: &Job,
        row: BackfillRow,
    ) -> Result<Option<Job>, StoreError> {
        let mut next = Job { row, ..job.clone() };
        next.work.rest();
        self.under_lease(invocation, held, job, next, invocation.current()).await
    }

    async fn under_lease(
        &self,
        invocation: &Invocation,
        held: &Held,
        job: &Job,
        next: Job,
        now: Timestamp,
    ) -> Result<Option<Job>, StoreError> {
        // Handed on, or over: the next worker need not wait for the lease to end.
        let until = if next.row.state == BackfillState::Running { now.plus_ms(LEASE_MS) } else { now };
        let write = held.ending(Write::of_change(&self.table, job, &next)?, until);
        let fenced = Condition::all([held.fence(), Condition::of(&job.fence())?]);
        match self.store.write(invocation, write.when(fenced)).await? {
            Written::New | Written::Mine => Ok(Some(next)),
            Written::Refused(_) => Ok(None),
        }
    }

    /// Hands a job over again that was lost sight of, or gives up an upload that did not come.
    /// Whether it was so.
    pub async fn wake(&self, invocation: &Invocation, found: &Found) -> Result<bool, StoreError> {
        let Some(job) = self.store.get::<Job>(invocation, &self.table, &found.key).await? else { return Ok(false) };
        if !job.work.waits_at(&found.place) {
            return Ok(false);
        }
        let mut next = job.clone();
        match job.row.state {
            BackfillState::AwaitingUpload => {
                next.row = job.row.failed(Reason::InputMissing, invocation.now);
                next.work.rest();
            }
            state if state.is_settled() => return Ok(false),
            _ => {
                next.work.recovered();
                next.hand_over(invocation.now);
            }
        }
        // A worker that has only just renewed its lease goes on.
        self.replace(invocation, &job, next, Some(lease::is_free(invocation.now))).await
    }

    /// Commits a change of a job, if nobody has changed it since it was read and `also` holds.
    async fn replace(
        &self,
        invocation: &Invocation,
        before: &Job,
        mut next: Job,
        also: Option<Condition>,
    ) -> Result<bool, StoreError> {
        next.row.version = before.row.version + 1;
        next.row.updated_at = invocation.now;
        let as_read = Condition::all([Condition::of(&before.fence())?].into_iter().chain(also));
        let write = Write::of_change(&self.table, before, &next)?.when(as_read);
        Ok(!matches!(self.store.write(invocation, write).await?, Written::Refused(_)))
    }
}

impl Row for Job {
    fn key(&self) -> Key {
        self.row.key()
    }

    fn fence(&self) -> Fence {
        Fence::version(self.row.version)
    }
}

impl Job {
    fn hand_over(&mut self, now: Timestamp) {
        let id = &self.row.backfill_id;
        self.work.hand_over(id.as_str(), None, now, |seq| emit_backfill(id, seq));
    }

    fn wait_until(&mut self, until: Timestamp) {
        self.work.wait_until(Wake::Check, self.row.backfill_id.as_str(), until);
    }
}
