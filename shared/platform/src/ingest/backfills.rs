//! Jobs that insert many entries. A job is a row with its emission and its lease: the write that
//! creates it hands it over, one worker at a time works on it, and recovery finds it again.

use serde::{Deserialize, Serialize};
use umavez_domain::change::{Fence, Row};
use umavez_domain::codes::Reason;
use umavez_domain::ingest::{BackfillId, BackfillInput, BackfillRequest, BackfillRow, BackfillState, Progress, Upload};
use umavez_domain::keys::{self, Key, Wake};
use umavez_domain::lease::Lease;
use umavez_domain::queue::emit_backfill;
use umavez_domain::time::Timestamp;
use umavez_domain::work::Work;

use crate::invocation::Invocation;
use crate::lease::{self, LeaseTaken};
use crate::store::{Condition, Found, Refusal, Store, StoreError, Transacted, Write, Written, read_row};

/// A worker that does not renew its lease for this long loses its job: the next run of recovery
/// hands the job over again.
pub const LEASE_MS: i64 = 60_000;
/// The backoff of recovery after the end of a lease, for a job that lost its worker before. It
/// doubles each time, so a job that crashes every worker does not keep the workers busy.
const AGAIN_MS: i64 = 60_000;
/// How long a job waits for its upload: hours longer than an upload form is valid.
const UPLOAD_MS: i64 = 8 * 3_600_000;
/// How long lines that came with a request are kept: as long as uploaded lines.
const INPUT_DAYS: i64 = 14;

#[derive(Debug, Clone)]
pub struct Backfills {
    pub store: Store,
    pub table: String,
}

/// A job's row with its emission and wake-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    #[serde(flatten)]
    pub row: BackfillRow,
    #[serde(flatten)]
    pub work: Work,
    /// The ETag of the uploaded lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

#[derive(Debug)]
pub enum Begun {
    New(Box<Job>),
    /// A job with this id exists.
    Standing(Box<Job>),
}

/// The outcome of asking for a turn at a job.
#[derive(Debug)]
pub enum Turn {
    /// This worker holds the job. Contains its current row.
    Mine(Lease, Box<Job>),
    Busy(Timestamp),
    /// The job has ended, or waits for its lines.
    NothingToDo,
    NoJob,
}

#[derive(Serialize, Deserialize)]
struct InputRow {
    lines: String,
    expires_at: i64,
}

impl Backfills {
    /// Creates the job and its lines in one transaction. The row of the job hands it over.
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
        // No job with this id exists.
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

    /// Reads the lines that came with the request.
    pub async fn lines(&self, invocation: &Invocation, id: &BackfillId) -> Result<Option<String>, StoreError> {
        let row: Option<InputRow> = self.store.get(invocation, &self.table, &keys::backfill_input(id)).await?;
        Ok(row.map(|row| row.lines))
    }

    /// Records that the lines have arrived, so that the job may start. Returns whether this event
    /// was the first to report it.
    pub async fn uploaded(&self, invocation: &Invocation, upload: &Upload) -> Result<bool, StoreError> {
        let Some(job) = self.get(invocation, &upload.id).await? else { return Ok(false) };
        let mut next = Job { etag: Some(upload.etag.clone()), size: Some(upload.size), ..job.clone() };
        // The job failed because its upload did not arrive, and now the upload has arrived after
        // all.
        let given_up = job.row.state == BackfillState::Failed
            && job.row.reason == Some(Reason::InputMissing)
            && job.etag.is_none();
        if job.row.state != BackfillState::AwaitingUpload && !given_up {
            return Ok(false);
        }
        next.row.state = BackfillState::Queued;
        (next.row.reason, next.row.completed_at) = (None, None);
        next.hand_over(invocation.now);
        // The job still waits for its lines: a later upload is a different file.
        self.replace(invocation, &job, next, None).await
    }

    /// Takes the job, if there is work to do and no other worker does it.
    pub async fn turn(&self, invocation: &Invocation, id: &BackfillId) -> Result<Turn, StoreError> {
        let Some(job) = self.get(invocation, id).await? else { return Ok(Turn::NoJob) };
        if job.row.state.is_settled() || job.row.state == BackfillState::AwaitingUpload {
            return Ok(Turn::NothingToDo);
        }
        let (key, owner) = (keys::backfill(id), &invocation.request_id);
        let held = match lease::take(&self.store, invocation, &self.table, &key, owner, LEASE_MS).await? {
            LeaseTaken::Mine(held) => held,
            LeaseTaken::Busy(until) => return Ok(Turn::Busy(until)),
            LeaseTaken::NoRow => return Ok(Turn::NoJob),
        };
        // Read the row again, now that no other worker writes to it.
        let Some(job) = self.get(invocation, id).await?.filter(|job| !job.row.state.is_settled()) else {
            return Ok(Turn::NothingToDo);
        };
        // From here on, the job shows as RUNNING, and recovery looks for it when the lease ends.
        let progress = job.row.progress.clone();
        match self.checkpoint(invocation, &held, &job, progress, BackfillState::Running).await? {
            Some(job) => Ok(Turn::Mine(held, Box::new(job))),
            None => Ok(Turn::NothingToDo),
        }
    }

    /// Writes the progress of the job, and extends the lease in the same write. Returns `None` if
    /// another worker has taken over; that worker continues from the progress that it found.
    pub async fn checkpoint(
        &self,
        invocation: &Invocation,
        held: &Lease,
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
            // Another invocation does the rest: the write that stores the progress hands it over.
            BackfillState::Queued => next.hand_over(now),
            state if state.is_settled() => next.work.rest(),
            // The worker keeps the job: a row without an emission does not trigger the relay.
            _ => {
                next.work.emit = None;
                next.wait_until(now.plus_ms(LEASE_MS + AGAIN_MS * ((1 << next.work.recoveries.min(6)) - 1)));
            }
        }
        self.under_lease(invocation, held, job, next, now).await
    }

    /// Fails a job whose lines cannot be read. Returns `None` if another worker has taken over.
    pub async fn fail(
        &self,
        invocation: &Invocation,
        held: &Lease,
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
        held: &Lease,
        job: &Job,
        next: Job,
        now: Timestamp,
    ) -> Result<Option<Job>, StoreError> {
        // If the job does not stay with this worker, end the lease now: the next worker need not
        // wait for it.
        let until = if next.row.state == BackfillState::Running { now.plus_ms(LEASE_MS) } else { now };
        let write = Write::of_change(&self.table, job, &next)?.set_row(&held.ending(until), &[])?;
        let fenced = Condition::all([Condition::of(&held.fence())?, Condition::of(&job.fence())?]);
        match self.store.write(invocation, write.when(fenced)).await? {
            Written::New | Written::Mine => Ok(Some(next)),
            Written::Refused(_) => Ok(None),
        }
    }

    /// Hands a stalled job over again, or fails a job whose upload did not arrive. Returns whether
    /// it did either.
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
        // The lease is free: a worker that has just renewed its lease continues.
        self.replace(invocation, &job, next, Some(lease::is_free(invocation.now))).await
    }

    /// Commits a change of a job, if nobody has changed it since it was read and `also` holds.
    /// Returns whether it did.
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
