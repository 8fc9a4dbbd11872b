//! One turn at an import: under its lease, from its last checkpoint, for as long as there is time.
//! Memory use is bounded by one piece of the file and the lines between two checkpoints, however
//! large the file is.
//!
//! After a crash between two checkpoints, the next importer reads those lines again. The result is
//! the same, because each entry stores its line.

use std::time::Duration;

use umavez_domain::codes::{Event, FileProblem, Reason};
use umavez_domain::lease::Lease;
use umavez_domain::mailings::{
    Format, ImportCause, ImportProblem, ImportProgress, LONGEST_RECORD, MOST_ROWS, MailingId, MailingRow, MailingState,
    Place, Records, RunningHash, Unreadable,
};
use umavez_platform::batch::Worked;
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{Checkpoint, Importing, Line, Mailings};
use umavez_platform::store::StoreError;

use crate::Deps;

/// The maximum number of lines between two checkpoints, and the bytes per read of the file.
const LINES_AT_ONCE: usize = 2_000;
const PIECE: u64 = 512 * 1024;
/// With less time left than this, the importer hands the rest over to another invocation.
const LOW_TIME: Duration = Duration::from_secs(20);

pub async fn run(deps: &Deps, invocation: &Invocation, id: &MailingId) -> Result<Worked, StoreError> {
    let (held, row) = match deps.mailings.import_turn(invocation, id).await? {
        Importing::Mine(held, row) => (held, *row),
        Importing::Busy(until) => return Ok(Worked::busy(until)),
        Importing::NothingToDo => return Ok(Worked::Done("nothing_to_do")),
    };
    let mut importer = Importer { deps, invocation, held, row };
    let ended = importer.read().await?;
    importer.end(ended).await
}

struct Importer<'a> {
    deps: &'a Deps,
    invocation: &'a Invocation,
    held: Lease,
    /// The mailing as of the last checkpoint.
    row: MailingRow,
}

enum Ended {
    Whole(ImportProgress),
    /// The mailing is canceled, and no importer continues. The progress is the furthest that any
    /// importer can have reached.
    Canceled(ImportProgress),
    OutOfTime,
    /// Another importer has the lease.
    Lost,
    /// The file cannot be read any further.
    Bad(ImportProblem, ImportProgress),
}

impl Importer<'_> {
    async fn read(&mut self) -> Result<Ended, StoreError> {
        let mut longer = 0;
        loop {
            let place = self.row.progress.place;
            let (piece, at_end) = match self.piece(place, PIECE + longer).await? {
                Ok(piece) => piece,
                Err(reason) => return Ok(self.bad(Mailings::missing(reason))),
            };
            let format = match self.format(&piece, at_end) {
                Ok(format) => format,
                Err(problem) => return Ok(self.bad(problem)),
            };
            let start = self.row.progress.format.as_ref().map_or(format.start, |_| place);
            let skipped = usize::try_from(start.next_byte - place.next_byte).unwrap_or(usize::MAX).min(piece.len());
            let mut records = Records::of(&piece[skipped..], &format, start, at_end);
            let begun = records.place();
            loop {
                let mut lines = Vec::new();
                let mut bad = None;
                for record in records.by_ref().take(LINES_AT_ONCE) {
                    match record {
                        Ok(record) => lines.push(Line::of(&self.row.mailing_id, record, self.row.shards)),
                        Err(unreadable) => {
                            bad = Some(problem(unreadable));
                            break;
                        }
                    }
                }
                let read_all = lines.len() < LINES_AT_ONCE;
                let mut progress = ImportProgress { format: Some(format.clone()), ..self.row.progress.clone() };
                if self.row.progress.format.is_none() {
                    progress.place = start;
                }
                let inserted = self.deps.mailings.insert_lines(self.invocation, &self.row, lines, &progress).await?;
                progress = inserted.progress;
                // The lines before the bad one are stored and counted, whichever importer wrote
                // them: one that crashed may have got as far.
                if let Some(bad) = bad {
                    return Ok(Ended::Bad(bad, progress));
                }
                if read_all {
                    progress.place = records.place();
                }
                let read_to = if read_all && at_end { self.row.size.unwrap_or(0) } else { progress.place.next_byte };
                progress.hash = self.hash(&piece, place, read_to);
                if progress.rows > MOST_ROWS {
                    let line = Some(progress.place.next_line);
                    let problem = ImportProblem { line, cause: ImportCause::File(FileProblem::TooManyRows) };
                    return Ok(Ended::Bad(problem, progress));
                }
                if read_all && at_end {
                    return Ok(self.whole(progress));
                }
                // Stop at the same checkpoint as the importer that saw the cancellation, so that
                // both insert the same rows.
                if self.row.state == MailingState::Canceled {
                    return Ok(Ended::Canceled(progress));
                }
                match self.deps.mailings.checkpoint(self.invocation, &self.held, &self.row, progress.clone()).await? {
                    Checkpoint::Kept(kept) => (self.held, self.row) = *kept,
                    Checkpoint::Canceled => return Ok(Ended::Canceled(progress)),
                    Checkpoint::Lost => return Ok(Ended::Lost),
                }
                if self.invocation.time_left() < LOW_TIME {
                    return Ok(Ended::OutOfTime);
                }
                if read_all {
                    break;
                }
            }
            // If no record was complete, the next record is longer than the piece: read a longer
            // piece.
            longer = if records.place() == begun { longer + LONGEST_RECORD as u64 + 4 } else { 0 };
        }
    }

    fn whole(&self, progress: ImportProgress) -> Ended {
        match progress.rows {
            0 => {
                let line = Some(progress.place.next_line);
                self.bad(ImportProblem { line, cause: ImportCause::File(FileProblem::Empty) })
            }
            _ => Ended::Whole(progress),
        }
    }

    /// Returns `Ended::Bad` with the progress of the last checkpoint.
    fn bad(&self, problem: ImportProblem) -> Ended {
        Ended::Bad(problem, self.row.progress.clone())
    }

    /// Returns the bytes from `at` on, and whether the file ends with them. The inner error is the
    /// reason why the file can never be read.
    async fn piece(&self, at: Place, length: u64) -> Result<Result<(Vec<u8>, bool), Reason>, StoreError> {
        let (Some(etag), Some(size)) = (&self.row.etag, self.row.size) else { return Ok(Err(Reason::InputMissing)) };
        let to = at.next_byte.saturating_add(length).min(size);
        let read = self.deps.uploads.read(self.invocation, &self.row.object, etag, at.next_byte, to).await?;
        Ok(read.map(|bytes| (bytes, to == size)))
    }

    /// Returns the hash of the file up to `to`. Returns `None` if the mailing already has its
    /// content hash. `piece` begins at `place` and must contain the last checkpoint.
    fn hash(&self, piece: &[u8], place: Place, to: u64) -> Option<RunningHash> {
        let progress = &self.row.progress;
        let from = progress.place.next_byte;
        let before = match &progress.hash {
            Some(before) => before.clone(),
            None if from == 0 && self.row.content_hash.is_none() => RunningHash::default(),
            None => return None,
        };
        let at = |byte: u64| usize::try_from(byte.checked_sub(place.next_byte)?).ok();
        Some(before.and(piece.get(at(from)?..at(to)?)?))
    }

    /// Returns the format that was detected at the beginning of the file, or detects it now.
    fn format(&self, head: &[u8], at_end: bool) -> Result<Format, ImportProblem> {
        if let Some(format) = &self.row.progress.format {
            return Ok(format.clone());
        }
        Format::detect(head, at_end, &self.row.options).map_err(problem)
    }

    async fn end(self, ended: Ended) -> Result<Worked, StoreError> {
        let (mailings, invocation, id) = (&self.deps.mailings, self.invocation, &self.row.mailing_id);
        Ok(Worked::Done(match ended {
            Ended::Lost => "lost_the_lease",
            Ended::OutOfTime => match mailings.hand_on_import(invocation, &self.held, id).await? {
                true => "handed_over",
                false => "lost_the_lease",
            },
            Ended::Bad(problem, progress) => {
                let found = Some((&self.held, &progress));
                match mailings.import_failed(invocation, found, id, problem).await? {
                    Some(row) => {
                        log_import(invocation, &row, Event::MailingImportFailed, problem.cause.code());
                        "failed"
                    }
                    // The mailing may have been canceled: record the rows that exist all the same.
                    None => return self.canceled(progress).await,
                }
            }
            Ended::Canceled(progress) => return self.canceled(progress).await,
            Ended::Whole(progress) => match mailings.imported(invocation, &self.held, id, &progress).await? {
                Some(row) => {
                    log_import(invocation, &row, Event::MailingImported, row.state.as_str());
                    metrics::counter!("MailingRows").increment(row.progress.rows);
                    "imported"
                }
                None => "lost_the_lease",
            },
        }))
    }

    /// Ends the import of a canceled mailing: records the part of the file that was read.
    async fn canceled(&self, progress: ImportProgress) -> Result<Worked, StoreError> {
        let (mailings, progress) = (&self.deps.mailings, ImportProgress { partial: true, ..progress });
        let ended = mailings.imported(self.invocation, &self.held, &self.row.mailing_id, &progress).await?;
        Ok(Worked::Done(match ended {
            Some(row) => {
                log_import(self.invocation, &row, Event::MailingImported, row.state.as_str());
                metrics::counter!("MailingRows").increment(row.progress.rows);
                "canceled"
            }
            None => "lost_the_lease",
        }))
    }
}

fn problem(unreadable: Unreadable) -> ImportProblem {
    ImportProblem { line: Some(unreadable.line), cause: ImportCause::File(unreadable.problem) }
}

fn log_import(invocation: &Invocation, row: &MailingRow, event: Event, code: &str) {
    tracing::info!(
        event = event.as_str(),
        mailing_id = row.mailing_id.as_str(),
        code,
        rows = row.progress.rows,
        recipients = row.progress.recipients,
        duplicates = row.progress.duplicates,
        invalid = row.progress.invalid,
        request_id = invocation.request_id,
    );
}
