//! One turn at a job: under its lease, from its last checkpoint, for as long as there is time.
//!
//! After a crash between two checkpoints, the next worker repeats those lines. The result is the
//! same, because no two lines between checkpoints touch the same row, and each row stores the line
//! that wrote it.

use std::time::Duration;

use umavez_domain::change::Row;
use umavez_domain::codes::{FieldProblem, Reason};
use umavez_domain::fields::FieldError;
use umavez_domain::ingest::{
    BackfillId, BackfillRow, BackfillState, DryRun, Insertion, LEASE_MS, Line, LineRef, LineResult, Lines, PolicyRow,
    SettledLine, Unsettled, read_line, resolve,
};
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::batch::Worked;
use umavez_platform::ingest::Inserted;
use umavez_platform::invocation::Invocation;
use umavez_platform::lease::{self, Turn};
use umavez_platform::store::StoreError;

use crate::Deps;
use crate::input::Input;

/// The maximum number of lines between two checkpoints.
const LINES_AT_ONCE: usize = 100;
/// With less time left than this, the worker leaves the rest to another invocation.
const LOW_TIME: Duration = Duration::from_secs(10);

pub async fn run(deps: &Deps, invocation: &Invocation, id: &BackfillId) -> Result<Worked, StoreError> {
    let row = match deps.backfills.turn(invocation, id).await? {
        Turn::Mine(_, row) => *row,
        Turn::Busy(until) => return Ok(Worked::busy(until)),
        Turn::NothingToDo => return Ok(Worked::Done("nothing_to_do")),
        Turn::NoRow => return Ok(Worked::Done("no_such_backfill")),
    };
    let input = match Input::open(deps, invocation, &row).await? {
        Ok(input) => input,
        Err(reason) => return fail(deps, invocation, &row, reason).await,
    };
    let policies = deps.settings.read(invocation).await?.policies;
    let row = BackfillRow { progress: row.resume(), ..row };
    let mut position = row.progress.position;
    let (unsettled, done, dry) = (Unsettled::default(), Vec::new(), DryRun::default());
    let mut worker = Worker { deps, invocation, row, policies, unsettled, done, dry };
    loop {
        let piece = match input.piece(deps, invocation, position).await? {
            Ok(piece) => piece,
            Err(reason) => return fail(deps, invocation, &worker.row, reason).await,
        };
        let mut lines = Lines::of(&piece.bytes, position, piece.at_end);
        for line in lines.by_ref() {
            if invocation.time_left() < LOW_TIME {
                return worker.requeue().await;
            }
            if !worker.line(&line).await? {
                return Ok(Worked::Done("lost_the_lease"));
            }
        }
        position = lines.position();
        if piece.at_end {
            return worker.complete().await;
        }
    }
}

struct Worker<'a> {
    deps: &'a Deps,
    invocation: &'a Invocation,
    /// The job as of the last checkpoint.
    row: BackfillRow,
    policies: Vec<PolicyRow>,
    unsettled: Unsettled,
    /// The lines handled since the last checkpoint.
    done: Vec<SettledLine>,
    dry: DryRun,
}

impl Worker<'_> {
    /// Handles one line. Returns whether this worker still holds the job.
    async fn line(&mut self, line: &Line<'_>) -> Result<bool, StoreError> {
        if !self.keep_the_lease().await? {
            return Ok(false);
        }
        let result = match read_line(line, self.row.source, &self.row.options) {
            Ok(None) => LineResult::Blank,
            Err(errors) => LineResult::Failed(errors),
            Ok(Some(normalized)) => {
                let line = LineRef::of(&self.row.backfill_id, line.number);
                let asked = Insertion { schema: self.row.schema, normalized, line: Some(line) };
                match self.insert(&asked).await {
                    Ok(Some(result)) => result,
                    Ok(None) => return Ok(false),
                    // A row that cannot be read fails this line, not the whole job.
                    Err(error) if !error.is_passing() => {
                        let detail = "has the key of an entry that cannot be read";
                        LineResult::Failed(vec![FieldError::new("line", FieldProblem::Conflicting, detail)])
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        self.done.push(SettledLine { line: line.number, result, after: line.after });
        if self.done.len() >= LINES_AT_ONCE {
            return self.checkpoint(BackfillState::Running).await;
        }
        Ok(true)
    }

    /// Renews the lease if less than half of it is left. Returns whether this worker still holds
    /// it. The writes of entries do not check the lease, so no line may begin without enough of it.
    async fn keep_the_lease(&mut self) -> Result<bool, StoreError> {
        let Some(held) = &self.row.lease else { return Ok(false) };
        let left_ms = held.lease_until - self.invocation.current().millis();
        if left_ms > LEASE_MS / 2 {
            return Ok(true);
        }
        if left_ms <= 0 {
            return Ok(false);
        }
        if !self.row.dry_run {
            return self.checkpoint(BackfillState::Running).await;
        }
        let (store, table) = (&self.deps.backfills.store, &self.deps.backfills.table);
        let renewed = lease::renew(store, self.invocation, table, &self.row.key(), held, LEASE_MS).await?;
        let Some(renewed) = renewed else { return Ok(false) };
        self.row.lease = Some(renewed);
        Ok(true)
    }

    /// Inserts one line. Returns `None` if another worker has taken over the job.
    async fn insert(&mut self, asked: &Insertion) -> Result<Option<LineResult>, StoreError> {
        let policy = match resolve(&self.policies, asked.schema, asked.keys().policy) {
            Ok(policy) => policy.clone(),
            Err(error) => return Ok(Some(LineResult::Failed(vec![error]))),
        };
        if self.row.dry_run {
            let entries = &self.deps.entries;
            return Ok(Some(result(entries.insert_dry(self.invocation, asked, &policy, &mut self.dry).await?)));
        }
        loop {
            let number = self.row.progress.position.next_line + self.done.len() as u64;
            let unsettled = std::cell::RefCell::new(&mut self.unsettled);
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
        let Some(progress) = self.row.progress.checkpoint(done) else { return Ok(false) };
        // A dry run does not store what it would have written, so its counts are stored only at its
        // end.
        if self.row.dry_run && state == BackfillState::Running {
            self.row.progress = progress;
            return Ok(true);
        }
        let next = self.row.at(progress, state, self.invocation.current());
        if !self.deps.backfills.commit(self.invocation, &self.row, &next).await? {
            return Ok(false);
        }
        self.row = next;
        // The policies may have changed in the meantime.
        if state == BackfillState::Running {
            self.policies = self.deps.settings.read(self.invocation).await?.policies;
        }
        Ok(true)
    }

    async fn complete(mut self) -> Result<Worked, StoreError> {
        if !self.checkpoint(BackfillState::Completed).await? {
            return Ok(Worked::Done("lost_the_lease"));
        }
        let counts = self.row.progress.counts;
        tracing::info!(
            event = Event::BackfillCompleted.as_str(),
            backfill_id = self.row.backfill_id.as_str(),
            schema = self.row.schema.as_str(),
            inserted = counts.inserted,
            skipped = counts.skipped,
            updated = counts.updated,
            failed = counts.failed,
            request_id = self.invocation.request_id,
        );
        metrics::counter!(Metric::BackfillLines.as_str()).increment(counts.lines());
        Ok(Worked::Done("completed"))
    }

    /// Enqueues the job again because the time is up: another invocation resumes from here. A dry
    /// run cannot resume, so it fails as too large.
    async fn requeue(mut self) -> Result<Worked, StoreError> {
        if self.row.dry_run {
            return fail(self.deps, self.invocation, &self.row, Reason::InputTooLarge).await;
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

async fn fail(deps: &Deps, invocation: &Invocation, row: &BackfillRow, reason: Reason) -> Result<Worked, StoreError> {
    let is_held = deps.backfills.commit(invocation, row, &row.failed(reason, invocation.current())).await?;
    if !is_held {
        return Ok(Worked::Done("lost_the_lease"));
    }
    let (backfill_id, reason) = (row.backfill_id.as_str(), reason.as_str());
    let event = Event::BackfillFailed.as_str();
    tracing::warn!(event, backfill_id, reason, request_id = invocation.request_id);
    Ok(Worked::Done("failed"))
}
