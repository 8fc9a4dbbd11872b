//! The row of a job, and its view in the API.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serde_with::skip_serializing_none;

use super::identity::BackfillId;
use super::progress::Progress;
use super::request::{BackfillInput, BackfillOptions, BackfillRequest};
use crate::change::{Fence, Row};
use crate::codes::{Reason, codes};
use crate::ingest::json_text;
use crate::ingest::words::{Schema, System};
use crate::keys::{self, Key, Wake};
use crate::lease::Lease;
use crate::queue::emit_backfill;
use crate::time::Timestamp;
use crate::uploaded::{UPLOAD_MS, Uploaded};
use crate::work::Work;

/// A worker that does not renew its lease for this long loses its job: the next run of recovery
/// enqueues the job again.
pub const LEASE_MS: i64 = 60_000;
/// The backoff of recovery after the end of a lease, for a job that lost its worker before. It
/// doubles each time, so a job that crashes every worker does not keep the workers busy.
const AGAIN_MS: i64 = 60_000;

codes! {
    BackfillState {
        /// The file was not uploaded yet.
        AwaitingUpload = "AWAITING_UPLOAD",
        /// It waits for a worker.
        Queued = "QUEUED",
        /// A worker processes its lines.
        Running = "RUNNING",
        /// Every line was processed.
        Completed = "COMPLETED",
        /// The input of the job cannot be read.
        Failed = "FAILED",
    }
}

impl BackfillState {
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillRow {
    pub backfill_id: BackfillId,
    /// Set when the job is created. Later changes of the test mode do not affect it.
    pub schema: Schema,
    pub source: System,
    #[serde(with = "json_text")]
    pub options: BackfillOptions,
    pub dry_run: bool,
    /// Whether the lines are uploaded. If not, they are in the row of the job's input.
    pub upload: bool,
    /// Hash of the request's body. The same key with another body is another request.
    pub body_hash: String,
    pub state: BackfillState,
    #[serde(flatten)]
    pub progress: Progress,
    pub version: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub completed_at: Option<Timestamp>,
    /// Why the job failed.
    pub reason: Option<Reason>,
    /// The version and the size of the uploaded lines.
    pub etag: Option<String>,
    pub size: Option<u64>,
    #[serde(flatten)]
    pub work: Work,
    /// The lease of the worker.
    #[serde(flatten)]
    pub lease: Option<Lease>,
}

impl Row for BackfillRow {
    fn key(&self) -> Key {
        keys::backfill(&self.backfill_id)
    }

    /// Neither the job nor its lease has changed since it was read.
    fn fence(&self) -> Fence {
        let lease = self.lease.as_ref();
        Fence::same(&json!({
            "version": self.version,
            "lease_owner": lease.map(|lease| &lease.lease_owner),
            "lease_epoch": lease.map(|lease| lease.lease_epoch),
            "lease_until": lease.map(|lease| lease.lease_until),
        }))
    }
}

impl BackfillRow {
    /// A job that is enqueued, or that waits for its upload.
    pub fn new(
        backfill_id: BackfillId,
        schema: Schema,
        request: &BackfillRequest,
        body_hash: &str,
        now: Timestamp,
    ) -> Self {
        let upload = request.input == BackfillInput::Upload;
        let mut row = Self {
            backfill_id,
            schema,
            source: request.source,
            options: request.options.clone(),
            dry_run: request.dry_run,
            upload,
            body_hash: body_hash.to_owned(),
            state: if upload { BackfillState::AwaitingUpload } else { BackfillState::Queued },
            progress: Progress::start(),
            version: 1,
            created_at: now,
            updated_at: now,
            completed_at: None,
            reason: None,
            etag: None,
            size: None,
            work: Work::default(),
            lease: None,
        };
        match upload {
            true => row.wait_until(now.plus_ms(UPLOAD_MS)),
            false => row.enqueue(now),
        }
        row
    }

    fn enqueue(&mut self, now: Timestamp) {
        let id = &self.backfill_id;
        self.work.hand_over(id.as_str(), None, now, |seq| emit_backfill(id, seq));
    }

    fn wait_until(&mut self, until: Timestamp) {
        self.work.wait_until(Wake::Check, self.backfill_id.as_str(), until);
    }

    /// Returns whether a worker can work on the job: it has not ended, and its lines are there.
    pub fn has_work(&self) -> bool {
        matches!(self.state, BackfillState::Queued | BackfillState::Running)
    }

    /// Returns the job after its lines were uploaded. `None` if it does not wait for them: a later
    /// upload is a different file.
    pub fn uploaded(&self, upload: &Uploaded<BackfillId>, now: Timestamp) -> Option<Self> {
        // The job failed because its upload did not arrive, and now the upload has arrived after
        // all.
        let is_late =
            self.state == BackfillState::Failed && self.reason == Some(Reason::InputMissing) && self.etag.is_none();
        if self.state != BackfillState::AwaitingUpload && !is_late {
            return None;
        }
        let mut row = Self {
            state: BackfillState::Queued,
            reason: None,
            completed_at: None,
            etag: Some(upload.etag.clone()),
            size: Some(upload.size),
            ..self.changed(now)
        };
        row.enqueue(now);
        Some(row)
    }

    /// Returns the job after recovery found it waiting: a stalled job is enqueued again, and a job
    /// whose upload did not arrive fails. `None` if it has ended, or if a worker has just renewed
    /// its lease.
    pub fn recovered(&self, now: Timestamp) -> Option<Self> {
        if self.state == BackfillState::AwaitingUpload {
            return Some(self.failed(Reason::InputMissing, now));
        }
        if self.state.is_settled() || self.lease.as_ref().is_some_and(|lease| !lease.is_over(now)) {
            return None;
        }
        let mut row = self.changed(now);
        row.work.recovered();
        row.enqueue(now);
        Some(row)
    }

    fn changed(&self, now: Timestamp) -> Self {
        Self { version: self.version + 1, updated_at: now, ..self.clone() }
    }

    /// Returns the progress at which a worker starts. A dry run starts over, because what it would
    /// have written is not stored.
    pub fn resume(&self) -> Progress {
        if self.dry_run { Progress::start() } else { self.progress.clone() }
    }

    /// Returns the row after a checkpoint of its worker.
    #[must_use]
    pub fn at(&self, progress: Progress, state: BackfillState, now: Timestamp) -> Self {
        let completed_at = state.is_settled().then_some(now);
        let has_progress = progress.position != self.progress.position;
        let mut row = Self { progress, state, completed_at, ..self.changed(now) };
        if has_progress {
            row.work.recoveries = 0;
        }
        // If the job does not stay with this worker, end the lease now: the next worker need not
        // wait for it.
        let mut lease_until = now;
        match state {
            // Another invocation does the rest: the write that stores the progress enqueues it.
            BackfillState::Queued => row.enqueue(now),
            state if state.is_settled() => row.work.rest(),
            // The worker keeps the job: a row without an emission does not trigger the relay.
            _ => {
                lease_until = now.plus_ms(LEASE_MS);
                row.work.emit = None;
                row.wait_until(lease_until.plus_ms(AGAIN_MS * ((1 << row.work.recoveries.min(6)) - 1)));
            }
        }
        row.lease = row.lease.map(|lease| lease.ending(lease_until));
        row
    }

    /// Returns the row of a job whose input cannot be read.
    #[must_use]
    pub fn failed(&self, reason: Reason, now: Timestamp) -> Self {
        Self { reason: Some(reason), ..self.at(self.progress.clone(), BackfillState::Failed, now) }
    }

    /// Returns the response of `GET /backfills/{id}`. `lines` is the number of settled lines.
    pub fn view(&self) -> Value {
        json!({
            "backfill_id": self.backfill_id,
            "schema": self.schema,
            "source": self.source,
            "options": self.options,
            "dry_run": self.dry_run,
            "state": self.state,
            "lines": self.progress.counts.lines(),
            "counts": self.progress.counts,
            "errors": self.progress.errors,
            "errors_left_out": self.progress.errors_left_out,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "completed_at": self.completed_at,
            "reason": self.reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::tests::assert_fence_holds;
    use crate::codes::Action;
    use crate::ingest::backfill::{Counts, DryRun, LineRef, LineResult, SettledLine, Unsettled};
    use crate::ingest::table::{Table, asked, policy};
    use crate::ingest::words::ConflictAction;
    use crate::ingest::{EntryId, InsertDecision, Insertion, Row, StoredRows, decide};
    use crate::uploaded::Position;

    fn now() -> Timestamp {
        Timestamp::from_seconds(1_751_342_400)
    }

    fn job(dry_run: bool) -> BackfillRow {
        let input = BackfillInput::Inline("{}".into());
        let request = BackfillRequest { source: System::Email, input, options: BackfillOptions::default(), dry_run };
        BackfillRow::new(BackfillId::of("7"), Schema::Pkm, &request, "h", now())
    }

    #[test]
    fn the_fence_lists_the_attributes_that_the_row_stores() {
        let lease = Some(Lease { lease_owner: "a".into(), lease_epoch: 4, lease_until: 5_000 });
        for row in [job(false), BackfillRow { lease, ..job(false) }] {
            assert_fence_holds(&row);
            let stored = serde_json::to_value(&row).expect("a row");
            assert_eq!(serde_json::from_value::<BackfillRow>(stored).expect("read back"), row);
        }
    }

    #[test]
    fn recovery_enqueues_a_stalled_job_and_leaves_one_that_has_a_worker_or_has_ended() {
        let running = |left_ms| {
            let lease_until = now().plus_ms(left_ms).millis();
            let lease = Some(Lease { lease_owner: "a".into(), lease_epoch: 4, lease_until });
            BackfillRow { state: BackfillState::Running, lease, ..job(false) }
        };
        assert_eq!(running(1).recovered(now()), None);
        let enqueued = running(0).recovered(now()).expect("enqueued");
        assert_eq!((enqueued.work.emits, enqueued.work.recoveries, enqueued.version), (2, 1, 2));
        let ended = running(0).at(Progress::start(), BackfillState::Completed, now());
        assert_eq!(ended.recovered(now()), None);
        let awaiting = BackfillRow { state: BackfillState::AwaitingUpload, ..job(false) };
        let failed = awaiting.recovered(now()).expect("given up");
        assert_eq!((failed.state, failed.reason), (BackfillState::Failed, Some(Reason::InputMissing)));
        let upload = Uploaded { id: BackfillId::of("7"), etag: "e".to_owned(), size: 3 };
        let late = failed.uploaded(&upload, now()).expect("the upload arrived late");
        assert_eq!((late.state, late.reason, late.has_work()), (BackfillState::Queued, None, true));
        assert_eq!(late.uploaded(&upload, now()), None, "an upload is accepted once");
    }

    /// Processes a job as a worker does, with a checkpoint at least every four lines. It simulates
    /// a crash: `writes` writes succeed, and it stops right after the next one, before it records
    /// that line.
    fn work(table: &mut Table, row: &mut BackfillRow, lines: &[Insertion], action: ConflictAction, mut writes: usize) {
        let (mut unsettled, mut done) = (Unsettled::default(), Vec::new());
        let checkpoint = |row: &mut BackfillRow, done: &mut Vec<SettledLine>| {
            let progress = row.progress.checkpoint(std::mem::take(done)).expect("in step");
            *row = row.at(progress, BackfillState::Running, now());
        };
        let from = row.progress.position.next_line;
        for (number, line) in (1..).zip(lines).filter(|(number, _)| *number >= from) {
            let asked = Insertion { line: Some(LineRef::of(&row.backfill_id, number)), ..line.clone() };
            let mut stored = StoredRows::default();
            let outcome = loop {
                let decision = decide(&asked, &stored, &policy(action), now());
                if !unsettled.admits(number, &asked, &decision) {
                    checkpoint(row, &mut done);
                    unsettled.clear();
                    assert!(unsettled.admits(number, &asked, &decision));
                }
                match decision {
                    InsertDecision::Read(id) => stored.read = Some(table.entry(&id)),
                    InsertDecision::Look => stored = table.rows_for(&asked),
                    InsertDecision::Done(outcome) => break outcome,
                    InsertDecision::Write { changes, outcome } => {
                        if table.make(&changes).is_ok() {
                            if writes == 0 {
                                return;
                            }
                            writes -= 1;
                            break outcome;
                        }
                        stored = table.rows_for(&asked);
                    }
                    InsertDecision::Refused(errors) => panic!("{errors:?}"),
                }
            };
            done.push(settled(number, outcome.action));
            if done.len() == 4 {
                checkpoint(row, &mut done);
                unsettled.clear();
            }
        }
        let progress = row.progress.checkpoint(done).expect("in step");
        *row = row.at(progress, BackfillState::Completed, now());
    }

    fn settled(line: u64, action: Action) -> SettledLine {
        let after = Position { next_line: line + 1, next_byte: line, skipping: false };
        SettledLine { line, result: LineResult::Done(action), after }
    }

    fn work_dry(table: &Table, lines: &[Insertion], action: ConflictAction) -> Counts {
        let mut dry = DryRun::default();
        let mut done = Vec::new();
        for (number, asked) in (1..).zip(lines) {
            let look = |dry: &DryRun, slot: Option<EntryId>| -> Option<Row> {
                let key = keys::entry(&slot?);
                dry.look(&key).map_or_else(|| table.rows.get(&key).cloned(), Option::<&Row>::cloned)
            };
            let (primary, secondary) = (look(&dry, asked.primary_slot()), look(&dry, asked.secondary_slot()));
            let mut stored = StoredRows { primary, secondary, read: None };
            let action = loop {
                match decide(asked, &stored, &policy(action), now()) {
                    InsertDecision::Read(id) => match look(&dry, Some(id)) {
                        Some(Row::Entry(row)) => stored.read = Some(*row),
                        other => panic!("{other:?}"),
                    },
                    InsertDecision::Done(outcome) => break outcome.action,
                    InsertDecision::Write { changes, outcome } => {
                        dry.note(&changes);
                        break outcome.action;
                    }
                    other => panic!("{other:?}"),
                }
            };
            done.push(settled(number, action));
        }
        job(true).resume().checkpoint(done).expect("in step").counts
    }

    fn random_lines(dice: &mut fastrand::Rng) -> Vec<Insertion> {
        let one = |dice: &mut fastrand::Rng| {
            let (primary, secondary) = (["", "p", "q", "r"][dice.usize(0..4)], ["s", "t", "u"][dice.usize(0..3)]);
            let date = dice.bool().then(|| Timestamp::from_seconds(dice.i64(0..4)));
            asked(primary, secondary, ["a", "b"][dice.usize(0..2)], date)
        };
        (0..dice.usize(1..12)).map(|_| one(dice)).collect()
    }

    #[test]
    fn a_job_that_crashes_at_any_write_ends_with_the_same_rows_and_counts() {
        let mut dice = fastrand::Rng::with_seed(37);
        for round in 0..500 {
            let action = ConflictAction::ALL[dice.usize(0..2)];
            let mut before = Table::default();
            for line in random_lines(&mut dice).iter().take(3) {
                before.insert(line, &policy(action));
            }
            let lines = random_lines(&mut dice);
            let (mut whole, mut row) = (before.clone(), job(false));
            work(&mut whole, &mut row, &lines, action, usize::MAX);
            assert_eq!((row.state, row.progress.counts.lines()), (BackfillState::Completed, lines.len() as u64));
            assert_eq!(
                work_dry(&before, &lines, action),
                row.progress.counts,
                "round {round}: a dry run counts the same"
            );
            for dies_at in 0..whole.writes - before.writes {
                let (mut table, mut broken) = (before.clone(), job(false));
                work(&mut table, &mut broken, &lines, action, dies_at);
                assert_ne!(broken.state, BackfillState::Completed);
                work(&mut table, &mut broken, &lines, action, usize::MAX);
                assert_eq!(broken.progress.counts, row.progress.counts, "round {round}, dies at {dies_at}");
                assert_eq!(table.rows, whole.rows, "round {round}, dies at {dies_at}");
            }
        }
    }

    #[test]
    fn a_second_job_with_the_same_lines_inserts_nothing() {
        for action in ConflictAction::ALL {
            let lines = [asked("p", "s", "a", None), asked("q", "s", "b", None), asked("", "t", "c", None)];
            let (mut table, mut first) = (Table::default(), job(false));
            work(&mut table, &mut first, &lines, *action, usize::MAX);
            let entries = table.entries().count();
            let mut second = BackfillRow { backfill_id: BackfillId::of("8"), ..job(false) };
            work(&mut table, &mut second, &lines, *action, usize::MAX);
            assert_eq!((second.progress.counts.inserted, table.entries().count()), (0, entries));
        }
    }

    #[test]
    fn a_row_is_read_back_unchanged_and_shown_without_internal_fields() {
        let row = job(false).at(Progress::start(), BackfillState::Completed, now());
        let json = serde_json::to_value(&row).expect("json");
        assert_eq!((&json["state"], &json["next_line"]), (&"COMPLETED".into(), &1.into()));
        assert_eq!(serde_json::from_value::<BackfillRow>(json).expect("a row"), row);
        let view = row.view();
        assert!(view.get("body_hash").is_none() && view.get("version").is_none());
        assert_eq!(view["counts"]["inserted"], 0);
        let failed = job(false).failed(Reason::InputMissing, now()).view();
        assert_eq!((&failed["state"], &failed["reason"]), (&"FAILED".into(), &"input_missing".into()));
    }
}
