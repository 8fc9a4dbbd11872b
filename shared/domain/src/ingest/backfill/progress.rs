//! The progress of a job. Only settled lines are counted: a checkpoint is written before another
//! line can touch the rows of its lines again.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::codes::Action;
use crate::fields::FieldError;
use crate::ingest::decision::InsertDecision;
use crate::ingest::rows::Insertion;
use crate::keys::{self, Key};
use crate::uploaded::Position;

/// Number of failed lines whose errors a job keeps. The job is one row, so further failed lines are
/// only counted.
pub const MOST_ERRORS: usize = 100;
const MOST_ERRORS_OF_A_LINE: usize = 5;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub inserted: u64,
    pub skipped: u64,
    pub updated: u64,
    pub failed: u64,
    pub blank: u64,
}

impl Counts {
    /// Returns the number of lines. Every line counts once.
    pub fn lines(&self) -> u64 {
        self.inserted + self.skipped + self.updated + self.failed + self.blank
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineError {
    pub line: u64,
    pub errors: Vec<FieldError>,
}

/// A settled line with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledLine {
    pub line: u64,
    pub result: LineResult,
    /// The start of the next line.
    pub after: Position,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineResult {
    Blank,
    Done(Action),
    Failed(Vec<FieldError>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    #[serde(flatten)]
    pub position: Position,
    pub counts: Counts,
    pub errors: Vec<LineError>,
    /// Number of failed lines that are not in `errors`.
    pub errors_left_out: u64,
}

impl Progress {
    pub fn start() -> Self {
        Self { position: Position::START, counts: Counts::default(), errors: Vec::new(), errors_left_out: 0 }
    }

    /// Returns the progress with these lines settled. `None` if they are not the next lines:
    /// another worker has advanced the job, and this worker's lines are duplicates that must not
    /// count twice.
    pub fn checkpoint(&self, settled: Vec<SettledLine>) -> Option<Self> {
        let mut next = self.clone();
        for line in settled {
            if line.line != next.position.next_line {
                return None;
            }
            next.position = line.after;
            let counts = &mut next.counts;
            let counted = match line.result {
                LineResult::Blank => &mut counts.blank,
                LineResult::Done(Action::Inserted) => &mut counts.inserted,
                LineResult::Done(Action::Skipped) => &mut counts.skipped,
                LineResult::Done(Action::Updated) => &mut counts.updated,
                LineResult::Failed(errors) => {
                    counts.failed += 1;
                    next.note(line.line, errors);
                    continue;
                }
            };
            *counted += 1;
        }
        Some(next)
    }

    fn note(&mut self, line: u64, mut errors: Vec<FieldError>) {
        if self.errors.len() < MOST_ERRORS {
            errors.truncate(MOST_ERRORS_OF_A_LINE);
            self.errors.push(LineError { line, errors });
        } else {
            self.errors_left_out += 1;
        }
    }
}

/// The rows that lines have touched since the last checkpoint, each with its line.
#[derive(Debug, Default)]
pub struct Unsettled {
    touched: HashMap<Key, u64>,
}

impl Unsettled {
    /// Returns whether `decision` may be carried out for this line now, and records its rows if so.
    /// `false` if another line has touched one of its rows since the last checkpoint. In that case,
    /// write the checkpoint and [`clear`](Self::clear) first. Otherwise a crash would repeat the
    /// other line on top of this one.
    pub fn admits(&mut self, line: u64, asked: &Insertion, decision: &InsertDecision) -> bool {
        let touched = rows_of(asked, decision);
        if touched.iter().any(|key| self.touched.get(key).is_some_and(|other| *other != line)) {
            return false;
        }
        self.touched.extend(touched.into_iter().map(|key| (key, line)));
        true
    }

    pub fn clear(&mut self) {
        self.touched.clear();
    }
}

fn rows_of(asked: &Insertion, decision: &InsertDecision) -> Vec<Key> {
    let (changes, outcome) = match decision {
        // These decisions write nothing.
        InsertDecision::Read(_) | InsertDecision::Look | InsertDecision::Refused(_) => return Vec::new(),
        InsertDecision::Write { changes, outcome } => (changes.as_slice(), outcome),
        InsertDecision::Done(outcome) => ([].as_slice(), outcome),
    };
    let slots = [asked.primary_slot(), asked.secondary_slot(), Some(outcome.row.entry_id.clone())];
    let slots = slots.iter().flatten().map(keys::entry);
    slots.chain(changes.iter().map(|change| change.key.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::FieldProblem;

    fn settled(line: u64, result: LineResult) -> SettledLine {
        let after = Position { next_line: line + 1, next_byte: line * 10, skipping: false };
        SettledLine { line, result, after }
    }

    fn failed() -> LineResult {
        LineResult::Failed(vec![FieldError::new("text", FieldProblem::Missing, "is required"); 7])
    }

    #[test]
    fn a_checkpoint_counts_every_line_once() {
        let results = [
            LineResult::Done(Action::Inserted),
            LineResult::Blank,
            LineResult::Done(Action::Updated),
            LineResult::Done(Action::Skipped),
            failed(),
        ];
        let lines = (1..).zip(results).map(|(line, result)| settled(line, result)).collect();
        let next = Progress::start().checkpoint(lines).expect("in step");
        assert_eq!(next.counts, Counts { inserted: 1, skipped: 1, updated: 1, failed: 1, blank: 1 });
        assert_eq!(next.counts.lines(), next.position.next_line - 1);
        assert_eq!((next.errors[0].line, next.errors[0].errors.len(), next.position.next_byte), (5, 5, 50));
    }

    #[test]
    fn a_checkpoint_of_a_worker_that_is_behind_or_ahead_is_refused() {
        let one = Progress::start().checkpoint(vec![settled(1, LineResult::Blank)]).expect("in step");
        assert_eq!(one.checkpoint(vec![settled(1, LineResult::Blank)]), None);
        assert_eq!(one.checkpoint(vec![settled(3, LineResult::Blank)]), None);
        assert_eq!(one.checkpoint(vec![settled(2, LineResult::Blank), settled(4, LineResult::Blank)]), None);
        assert_eq!(one.checkpoint(Vec::new()), Some(one));
    }

    #[test]
    fn errors_are_stored_up_to_a_limit_and_only_counted_beyond() {
        let most = MOST_ERRORS as u64;
        let next = Progress::start().checkpoint((1..=most + 3).map(|line| settled(line, failed())).collect());
        let next = next.expect("in step");
        assert_eq!((next.errors.len(), next.errors_left_out, next.counts.failed), (MOST_ERRORS, 3, most + 3));
        let json = serde_json::to_value(&next).expect("json");
        assert!(json.to_string().len() < 100_000, "the progress must fit into a row");
        assert_eq!(serde_json::from_value::<Progress>(json).expect("read back"), next);
    }
}
