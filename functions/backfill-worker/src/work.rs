//! One turn at a job: under its lease, from its last checkpoint, for as long as there is time.
//!
//! After a crash between two checkpoints, the next worker repeats those lines. The result is the
//! same, because no two lines between checkpoints touch the same row, and each row stores the line
//! that wrote it.

use std::time::Duration;

use umavez_domain::codes::{Event, FieldProblem, Reason};
use umavez_domain::fields::FieldError;
use umavez_domain::ingest::{
    BackfillId, BackfillState, DryRun, Insertion, Line, LineRef, LineResult, Lines, PolicyRow, Settled, Unsettled,
    read_line, resolve,
};
use umavez_domain::lease::Lease;
use umavez_platform::batch::Worked;
use umavez_platform::ingest::{Inserted, Job, LEASE_MS, Turn};
use umavez_platform::invocation::Invocation;
use umavez_platform::lease;
use umavez_platform::store::StoreError;

use crate::Deps;
use crate::input::Input;

/// The maximum number of lines between two checkpoints.
const LINES_AT_ONCE: usize = 100;
/// With less time left than this, the worker hands the rest over to another invocation.
const LOW_TIME: Duration = Duration::from_secs(10);

pub async fn run(deps: &Deps, invocation: &Invocation, id: &BackfillId) -> Result<Worked, StoreError> {
    let (held, job) = match deps.backfills.turn(invocation, id).await? {
        Turn::Mine(held, job) => (held, *job),
        Turn::Busy(until) => return Ok(Worked::busy(until)),
        Turn::NothingToDo => return Ok(Worked::Done("nothing_to_do")),
        Turn::NoJob => return Ok(Worked::Done("no_such_backfill")),
    };
    let input = match Input::open(deps, invocation, &job).await? {
        Ok(input) => input,
        Err(reason) => return fail(deps, invocation, &held, &job, reason).await,
    };
    let policies = deps.settings.read(invocation).await?.policies;
    let mut progress = job.row.resume();
    let job = Job { row: umavez_domain::ingest::BackfillRow { progress: progress.clone(), ..job.row.clone() }, ..job };
    let mut worker = Worker {
        deps,
        invocation,
        held,
        job,
        policies,
        unsettled: Unsettled::default(),
        done: Vec::new(),
        dry: DryRun::default(),
    };
    loop {
        let piece = match input.piece(deps, invocation, progress.position).await? {
            Ok(piece) => piece,
            Err(reason) => return fail(deps, invocation, &worker.held, &worker.job, reason).await,
        };
        let mut lines = Lines::of(&piece.bytes, progress.position, piece.at_end);
        for line in lines.by_ref() {
            if invocation.time_left() < LOW_TIME {
                return worker.hand_over().await;
            }
            if !worker.line(&line).await? {
                return Ok(Worked::Done("lost_the_lease"));
            }
        }
        progress.position = lines.position();
        if piece.at_end {
            return worker.complete().await;
        }
    }
}

struct Worker<'a> {
    deps: &'a Deps,
    invocation: &'a Invocation,
    held: Lease,
    /// The job as of the last checkpoint.
    job: Job,
    policies: Vec<PolicyRow>,
    unsettled: Unsettled,
    /// The lines handled since the last checkpoint.
    done: Vec<Settled>,
    dry: DryRun,
}

impl Worker<'_> {
    /// Handles one line. Returns whether this worker still holds the job.
    async fn line(&mut self, line: &Line<'_>) -> Result<bool, StoreError> {
        if !self.keep_the_lease().await? {
            return Ok(false);
        }
        let result = match read_line(line, self.job.row.source, &self.job.row.options) {
            Ok(None) => LineResult::Blank,
            Err(errors) => LineResult::Failed(errors),
            Ok(Some(normalized)) => {
                let line = LineRef::of(&self.job.row.backfill_id, line.number);
                let asked = Insertion { schema: self.job.row.schema, normalized, line: Some(line) };
                match self.insert(&asked).await {
                    Ok(Some(result)) => result,
                    Ok(None) => return Ok(false),
                    // A row that cannot be read fails this line, not the whole job.
                    Err(error) if !error.is_passing() => {
                        let detail = "meets an entry that cannot be read";
                        LineResult::Failed(vec![FieldError::new("line", FieldProblem::Conflicting, detail)])
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        self.done.push(Settled { line: line.number, result, after: line.after });
        if self.done.len() >= LINES_AT_ONCE {
            return self.checkpoint(BackfillState::Running).await;
        }
        Ok(true)
    }

    /// Renews the lease if less than half of it is left. Returns whether this worker still holds
    /// it. The writes of entries do not check the lease, so no line may begin without enough of it.
    async fn keep_the_lease(&mut self) -> Result<bool, StoreError> {
        let left_ms = self.held.lease_until - self.invocation.current().millis();
        if left_ms > LEASE_MS / 2 {
            return Ok(true);
        }
        if left_ms <= 0 {
            return Ok(false);
        }
        if !self.job.row.dry_run {
            return self.checkpoint(BackfillState::Running).await;
        }
        let (store, table) = (&self.deps.backfills.store, &self.deps.backfills.table);
        let renewed = lease::renew(store, self.invocation, table, &self.job.row.key(), &self.held, LEASE_MS).await?;
        let Some(held) = renewed else { return Ok(false) };
        self.held = held;
        Ok(true)
    }

    /// Inserts one line. Returns `None` if another worker has taken over the job.
    async fn insert(&mut self, asked: &Insertion) -> Result<Option<LineResult>, StoreError> {
        let policy = match resolve(&self.policies, asked.schema, asked.keys().policy) {
            Ok(policy) => policy.clone(),
            Err(error) => return Ok(Some(LineResult::Failed(vec![error]))),
        };
        if self.job.row.dry_run {
            let entries = &self.deps.entries;
            return Ok(Some(result(entries.insert_dry(self.invocation, asked, &policy, &mut self.dry).await?)));
        }
        loop {
            let number = self.job.row.progress.position.next_line + self.done.len() as u64;
            let unsettled = &mut self.unsettled;
            let unsettled = std::cell::RefCell::new(&mut *unsettled);
            let gate = |decision: &_| unsettled.borrow_mut().admits(number, asked, decision);
            match self.deps.entries.insert_through(self.invocation, asked, &policy, gate).await? {
                // An earlier line since the last checkpoint touched the same row: write the
                // checkpoint for that line first.
                Inserted::Held => {
                    if !self.checkpoint(BackfillState::Running).await? {
                        return Ok(None);
                    }
                }
                inserted => return Ok(Some(result(inserted))),
            }
        }
    }

    async fn checkpoint(&mut self, state: BackfillState) -> Result<bool, StoreError> {
        let done = std::mem::take(&mut self.done);
        self.unsettled.clear();
        let Some(progress) = self.job.row.progress.checkpoint(done) else { return Ok(false) };
        let backfills = &self.deps.backfills;
        // A dry run does not store what it would have written, so its counts are stored only at its
        // end.
        if self.job.row.dry_run && state == BackfillState::Running {
            self.job.row.progress = progress;
            return Ok(true);
        }
        match backfills.checkpoint(self.invocation, &self.held, &self.job, progress, state).await? {
            Some(job) => {
                self.job = job;
                self.held = self.held.ending(self.invocation.current().plus_ms(LEASE_MS));
                // The policies may have changed in the meantime.
                if state == BackfillState::Running {
                    self.policies = self.deps.settings.read(self.invocation).await?.policies;
                }
                Ok(true)
            }
            None => Ok(false),
        }
    }

    async fn complete(mut self) -> Result<Worked, StoreError> {
        if !self.checkpoint(BackfillState::Completed).await? {
            return Ok(Worked::Done("lost_the_lease"));
        }
        let counts = self.job.row.progress.counts;
        tracing::info!(
            event = Event::BackfillEnded.as_str(),
            backfill_id = self.job.row.backfill_id.as_str(),
            schema = self.job.row.schema.as_str(),
            inserted = counts.inserted,
            skipped = counts.skipped,
            updated = counts.updated,
            failed = counts.failed,
            request_id = self.invocation.request_id,
        );
        metrics::counter!("BackfillLines").increment(counts.lines());
        Ok(Worked::Done("completed"))
    }

    /// Hands the job over because the time is up: another invocation resumes from here. A dry run
    /// cannot resume, so it fails as too large.
    async fn hand_over(mut self) -> Result<Worked, StoreError> {
        if self.job.row.dry_run {
            return fail(self.deps, self.invocation, &self.held, &self.job, Reason::InputTooLarge).await;
        }
        match self.checkpoint(BackfillState::Queued).await? {
            true => Ok(Worked::Done("handed_over")),
            false => Ok(Worked::Done("lost_the_lease")),
        }
    }
}

fn result(inserted: Inserted) -> LineResult {
    match inserted {
        Inserted::Done(outcome) | Inserted::Again(outcome) => LineResult::Done(outcome.action),
        Inserted::Refused(errors) => LineResult::Failed(errors),
        Inserted::Held => LineResult::Failed(Vec::<FieldError>::new()),
    }
}

async fn fail(
    deps: &Deps,
    invocation: &Invocation,
    held: &Lease,
    job: &Job,
    reason: Reason,
) -> Result<Worked, StoreError> {
    let row = job.row.failed(reason, invocation.current());
    match deps.backfills.fail(invocation, held, job, row).await? {
        Some(_) => Ok(Worked::Done("failed")),
        None => Ok(Worked::Done("lost_the_lease")),
    }
}
