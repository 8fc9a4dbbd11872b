//! The row of a job, and its view in the API.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::identity::BackfillId;
use super::progress::{Counts, LineError, Progress};
use super::request::{BackfillInput, BackfillOptions, BackfillRequest};
use crate::codes::{Reason, codes};
use crate::ingest::json_text;
use crate::ingest::words::{Schema, System};
use crate::keys::{self, Key};
use crate::time::Timestamp;

codes! {
    BackfillState {
        AwaitingUpload = "AWAITING_UPLOAD",
        Queued = "QUEUED",
        Running = "RUNNING",
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
}

impl BackfillRow {
    pub fn new(
        backfill_id: BackfillId,
        schema: Schema,
        request: &BackfillRequest,
        body_hash: &str,
        now: Timestamp,
    ) -> Self {
        let upload = request.input == BackfillInput::Upload;
        Self {
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
        }
    }

    pub fn key(&self) -> Key {
        keys::backfill(&self.backfill_id)
    }

    /// Returns the progress at which a worker starts. A dry run starts over, because what it would
    /// have written is not stored.
    pub fn resume(&self) -> Progress {
        if self.dry_run { Progress::start() } else { self.progress.clone() }
    }

    /// Returns the row after a checkpoint.
    #[must_use]
    pub fn at(&self, progress: Progress, state: BackfillState, now: Timestamp) -> Self {
        let completed_at = state.is_settled().then_some(now);
        Self { progress, state, version: self.version + 1, updated_at: now, completed_at, ..self.clone() }
    }

    /// Returns the row of a job whose input cannot be read.
    #[must_use]
    pub fn failed(&self, reason: Reason, now: Timestamp) -> Self {
        Self { reason: Some(reason), ..self.at(self.progress.clone(), BackfillState::Failed, now) }
    }
}

/// The response of `GET /backfills/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackfillView {
    pub backfill_id: BackfillId,
    pub schema: Schema,
    pub source: System,
    pub options: BackfillOptions,
    pub dry_run: bool,
    pub state: BackfillState,
    /// Number of settled lines.
    pub lines: u64,
    pub counts: Counts,
    pub errors: Vec<LineError>,
    pub errors_left_out: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub completed_at: Option<Timestamp>,
    pub reason: Option<Reason>,
}

impl From<BackfillRow> for BackfillView {
    fn from(row: BackfillRow) -> Self {
        Self {
            backfill_id: row.backfill_id,
            schema: row.schema,
            source: row.source,
            options: row.options,
            dry_run: row.dry_run,
            state: row.state,
            lines: row.progress.counts.lines(),
            counts: row.progress.counts,
            errors: row.progress.errors,
            errors_left_out: row.progress.errors_left_out,
            created_at: row.created_at,
            updated_at: row.updated_at,
            completed_at: row.completed_at,
            reason: row.reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Action;
    use crate::ingest::backfill::{DryRun, LineRef, LineResult, Position, Settled, Unsettled};
    use crate::ingest::table::{Table, asked, policy};
    use crate::ingest::words::ConflictAction;
    use crate::ingest::{Decision, EntryId, Insertion, Row, StoredRows, decide};

    fn now() -> Timestamp {
        Timestamp::from_seconds(1_751_342_400)
    }

    fn job(dry_run: bool) -> BackfillRow {
        let input = BackfillInput::Inline("{}".into());
        let request = BackfillRequest { source: System::Email, input, options: BackfillOptions::default(), dry_run };
        BackfillRow::new(BackfillId::of("7"), Schema::Pkm, &request, "h", now())
    }

    /// Processes a job as a worker does, with a checkpoint at least every four lines. It simulates
    /// a crash: `writes` writes succeed, and it stops right after the next one, before it records
    /// that line.
    fn work(table: &mut Table, row: &mut BackfillRow, lines: &[Insertion], action: ConflictAction, mut writes: usize) {
        let (mut unsettled, mut done) = (Unsettled::default(), Vec::new());
        let checkpoint = |row: &mut BackfillRow, done: &mut Vec<Settled>| {
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
                    Decision::Read(id) => stored.read = Some(table.entry(&id)),
                    Decision::Look => stored = table.met(&asked),
                    Decision::Done(outcome) => break outcome,
                    Decision::Write { changes, outcome } => {
                        if table.make(&changes).is_ok() {
                            if writes == 0 {
                                return;
                            }
                            writes -= 1;
                            break outcome;
                        }
                        stored = table.met(&asked);
                    }
                    Decision::Refused(errors) => panic!("{errors:?}"),
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

    fn settled(line: u64, action: Action) -> Settled {
        let after = Position { next_line: line + 1, next_byte: line, skipping: false };
        Settled { line, result: LineResult::Done(action), after }
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
                    Decision::Read(id) => match look(&dry, Some(id)) {
                        Some(Row::Entry(row)) => stored.read = Some(*row),
                        other => panic!("{other:?}"),
                    },
                    Decision::Done(outcome) => break outcome.action,
                    Decision::Write { changes, outcome } => {
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
    fn a_job_that_dies_at_any_write_ends_as_one_that_does_not() {
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
    fn a_row_is_read_back_as_it_was_and_shown_without_what_is_ours() {
        let row = job(false).at(Progress::start(), BackfillState::Completed, now());
        let json = serde_json::to_value(&row).expect("json");
        assert_eq!((&json["state"], &json["next_line"]), (&"COMPLETED".into(), &1.into()));
        assert_eq!(serde_json::from_value::<BackfillRow>(json).expect("a row"), row);
        let view = serde_json::to_value(BackfillView::from(row)).expect("json");
        assert!(view.get("body_hash").is_none() && view.get("version").is_none());
        assert_eq!(view["counts"]["inserted"], 0);
        let failed = BackfillView::from(job(false).failed(Reason::InputMissing, now()));
        assert_eq!((failed.state, failed.reason), (BackfillState::Failed, Some(Reason::InputMissing)));
    }
}
