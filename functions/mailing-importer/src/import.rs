//! One turn at an import: under its lease, from its last checkpoint, for as long as there is time.
//! Memory use is bounded by one piece of the file and the lines between two checkpoints, however
//! large the file is.
//!
//! After a crash between two checkpoints, the next importer reads those lines again. The result is
//! the same, because each entry stores its line.

use std::time::Duration;

use umavez_domain::codes::{FileProblem, Reason};
use umavez_domain::lease::Lease;
use umavez_domain::mailings::{
    Format, ImportProblem, ImportProgress, LONGEST_RECORD, MOST_ROWS, MailingId, MailingRow, MailingState, Records,
    RunningHash, UnreadableFile,
};
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::batch::Worked;
use umavez_platform::invocation::Invocation;
use umavez_platform::lease::Turn;
use umavez_platform::mailings::Checkpoint;
use umavez_platform::store::StoreError;
use umavez_platform::uploads::{Piece, UploadedObject};

use crate::Deps;

/// The maximum number of lines between two checkpoints, and the bytes per read of the file.
const LINES_AT_ONCE: usize = 2_000;
const PIECE: u64 = 512 * 1024;
/// Every piece makes progress.
const _: () = assert!(PIECE as usize > 2 * LONGEST_RECORD, "a piece holds a header and a record");
/// With less time left than this, the importer leaves the rest to another invocation.
const LOW_TIME: Duration = Duration::from_secs(20);

pub async fn run(deps: &Deps, invocation: &Invocation, id: &MailingId) -> Result<Worked, StoreError> {
    let (held, row) = match deps.mailings.import_turn(invocation, id).await? {
        Turn::Mine(held, row) => (held, *row),
        Turn::Busy(until) => return Ok(Worked::busy(until)),
        Turn::NothingToDo | Turn::NoRow => return Ok(Worked::Done("nothing_to_do")),
    };
    let mut importer = Importer { deps, invocation, held, row };
    let ended = importer.read().await?;
    importer.end(ended).await.map(Worked::Done)
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
        loop {
            let piece = match self.object() {
                Some(object) => {
                    let from = self.row.progress.place.next_byte;
                    self.deps.uploads.read(self.invocation, &object, from, PIECE).await?
                }
                None => Err(Reason::InputMissing),
            };
            let piece = match piece {
                Ok(piece) => piece,
                Err(reason) => return Ok(self.bad(ImportProblem::of_object(reason))),
            };
            if let Some(ended) = self.read_piece(&piece).await? {
                return Ok(ended);
            }
        }
    }

    /// Imports the complete records of a piece that begins at the last checkpoint. Returns `None`
    /// if the import continues with the next piece.
    async fn read_piece(&mut self, piece: &Piece) -> Result<Option<Ended>, StoreError> {
        let from = self.row.progress.place.next_byte;
        // The format is detected once, at the beginning of the file.
        let (format, start) = match self.row.progress.format.clone() {
            Some(format) => (format, self.row.progress.place),
            None => match Format::detect(&piece.bytes, piece.at_end, &self.row.options) {
                Ok(format) => (format.clone(), format.start),
                Err(unreadable) => return Ok(Some(self.bad(problem(unreadable)))),
            },
        };
        let skipped = usize::try_from(start.next_byte - from).unwrap_or(usize::MAX).min(piece.bytes.len());
        let mut records = Records::of(&piece.bytes[skipped..], &format, start, piece.at_end);
        loop {
            let mut unreadable = None;
            let readable = |record: Result<_, _>| record.map_err(|error| unreadable = Some(error)).ok();
            let lines: Vec<_> = records.by_ref().take(LINES_AT_ONCE).map_while(readable).collect();
            let read_all = lines.len() < LINES_AT_ONCE;
            let mut progress = ImportProgress { format: Some(format.clone()), ..self.row.progress.clone() };
            if self.row.progress.format.is_none() {
                progress.place = start;
            }
            progress = self.deps.mailings.insert_lines(self.invocation, &self.row, lines, &progress).await?;
            // The lines before the bad one are stored and counted, whichever importer wrote them:
            // one that crashed may have got as far.
            if let Some(unreadable) = unreadable {
                return Ok(Some(Ended::Bad(problem(unreadable), progress)));
            }
            if read_all {
                progress.place = records.place();
            }
            let is_whole = read_all && piece.at_end;
            let read_to = if is_whole { self.row.size.unwrap_or(0) } else { progress.place.next_byte };
            progress.hash = self.hash(&piece.bytes, from, read_to);
            let next_line = Some(progress.place.next_line);
            if progress.rows > MOST_ROWS {
                let problem = ImportProblem::in_file(next_line, FileProblem::TooManyRows);
                return Ok(Some(Ended::Bad(problem, progress)));
            }
            if is_whole && progress.rows == 0 {
                return Ok(Some(self.bad(ImportProblem::in_file(next_line, FileProblem::Empty))));
            }
            if is_whole {
                return Ok(Some(Ended::Whole(progress)));
            }
            // Stop at the same checkpoint as the importer that saw the cancellation, so that both
            // insert the same rows.
            if self.row.state == MailingState::Canceled {
                return Ok(Some(Ended::Canceled(progress)));
            }
            match self.deps.mailings.checkpoint(self.invocation, &self.held, &self.row, progress.clone()).await? {
                Checkpoint::Kept(row) => self.row = *row,
                Checkpoint::Canceled => return Ok(Some(Ended::Canceled(progress))),
                Checkpoint::Lost => return Ok(Some(Ended::Lost)),
            }
            if self.invocation.time_left() < LOW_TIME {
                return Ok(Some(Ended::OutOfTime));
            }
            if read_all {
                return Ok(None);
            }
        }
    }

    /// Returns `Ended::Bad` with the progress of the last checkpoint.
    fn bad(&self, problem: ImportProblem) -> Ended {
        Ended::Bad(problem, self.row.progress.clone())
    }

    /// Returns the file, if the mailing has one.
    fn object(&self) -> Option<UploadedObject> {
        Some(UploadedObject { key: self.row.object.clone(), etag: self.row.etag.clone()?, size: self.row.size? })
    }

    /// Returns the hash of the file up to `to`. Returns `None` if the mailing already has its
    /// content hash. `piece` begins at `piece_from` and must contain the last checkpoint.
    fn hash(&self, piece: &[u8], piece_from: u64, to: u64) -> Option<RunningHash> {
        let progress = &self.row.progress;
        let from = progress.place.next_byte;
        let before = match &progress.hash {
            Some(before) => before.clone(),
            None if from == 0 && self.row.content_hash.is_none() => RunningHash::default(),
            None => return None,
        };
        let at = |byte: u64| usize::try_from(byte.checked_sub(piece_from)?).ok();
        Some(before.and(piece.get(at(from)?..at(to)?)?))
    }

    /// Writes the end of the turn. Returns its outcome as a code.
    async fn end(self, ended: Ended) -> Result<&'static str, StoreError> {
        let (mailings, invocation, id) = (&self.deps.mailings, self.invocation, &self.row.mailing_id);
        let (progress, code) = match ended {
            Ended::Lost => return Ok("lost_the_lease"),
            Ended::OutOfTime => {
                let is_held = mailings.requeue_import(invocation, &self.held, id).await?;
                return Ok(if is_held { "handed_over" } else { "lost_the_lease" });
            }
            Ended::Bad(problem, progress) => {
                let found = Some((&self.held, &progress));
                if let Some(row) = mailings.import_failed(invocation, found, id, problem).await? {
                    log_import(invocation, &row, Event::MailingImportFailed, problem.cause.code());
                    return Ok("failed");
                }
                // The mailing may have been canceled: record the rows that exist all the same.
                (ImportProgress { partial: true, ..progress }, "canceled")
            }
            Ended::Canceled(progress) => (ImportProgress { partial: true, ..progress }, "canceled"),
            Ended::Whole(progress) => (progress, "imported"),
        };
        let Some(row) = mailings.imported(invocation, &self.held, id, &progress).await? else {
            return Ok("lost_the_lease");
        };
        log_import(invocation, &row, Event::MailingImported, row.state.as_str());
        metrics::counter!(Metric::MailingRows.as_str()).increment(row.progress.rows);
        Ok(code)
    }
}

fn problem(unreadable: UnreadableFile) -> ImportProblem {
    ImportProblem::in_file(Some(unreadable.line), unreadable.problem)
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
