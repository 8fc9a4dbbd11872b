//! Mailings and their entries as callers see them.

use serde::Serialize;

use super::entry::EntryState;
use super::identity::{MailingEntryId, MailingId};
use super::mailing::{EntryCounts, MailingState};
use super::records::UnreadableFile;
use super::rows::{ImportCause, ImportProblem, ImportState, LineRow, MailingEntryRow, MailingRow, ShardRow};
use crate::codes::{Reason, SendingHold};
use crate::time::Timestamp;

/// A mailing as an item of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MailingSummary {
    #[serde(rename = "mailingId")]
    pub mailing_id: MailingId,
    pub file_name: String,
    pub status: MailingState,
    pub list: Option<String>,
    /// The number of its entries, as far as it is imported.
    pub total: u64,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub updated_at: Timestamp,
}

/// A mailing by itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MailingView {
    /// Its `total` is that of `counts`.
    #[serde(flatten)]
    pub summary: MailingSummary,
    pub unsubscribe: bool,
    pub has_content: bool,
    pub import: ImportView,
    pub counts: EntryCounts,
    /// The share of settled entries, 0 to 1.
    pub progress: f64,
    /// The rate of the current run, or of the last one.
    pub rate_per_second: Option<f64>,
    pub eta_seconds: Option<u64>,
    pub last_attempt: Option<Timestamp>,
    /// An earlier mailing with the same bytes under another name.
    pub same_content_as: Option<MailingId>,
    /// Why the mailing paused by itself.
    pub paused_for: Option<SendingHold>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImportView {
    pub state: ImportState,
    pub rows: u64,
    pub recipients: u64,
    pub duplicates: u64,
    pub invalid: u64,
    pub bytes: u64,
    pub size: Option<u64>,
    pub problem: Option<ProblemView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProblemView {
    pub line: Option<u64>,
    pub code: &'static str,
    pub detail: String,
}

/// Describes a problem for the caller.
fn sentence(problem: ImportProblem) -> String {
    match problem.cause {
        ImportCause::File(cause) => UnreadableFile { line: problem.line.unwrap_or(1), problem: cause }.sentence(),
        ImportCause::Object(Reason::InputMissing) => "the file was not uploaded, or is gone".to_owned(),
        ImportCause::Object(_) => "the file is not the one any more that the import began with".to_owned(),
    }
}

impl ImportView {
    pub fn of(row: &MailingRow) -> Self {
        let problem = row.problem.map(|problem| ProblemView {
            line: problem.line,
            code: problem.cause.code(),
            detail: sentence(problem),
        });
        Self {
            state: row.import,
            rows: row.progress.rows,
            recipients: row.progress.recipients,
            duplicates: row.progress.duplicates,
            invalid: row.progress.invalid,
            bytes: if row.import == ImportState::Done { row.size.unwrap_or(0) } else { row.progress.place.next_byte },
            size: row.size,
            problem,
        }
    }
}

impl MailingSummary {
    pub fn of(row: &MailingRow) -> Self {
        Self {
            mailing_id: row.mailing_id.clone(),
            file_name: row.file_name.clone(),
            status: row.state,
            list: row.list.clone(),
            total: row.progress.entries(),
            created_at: row.created_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
            updated_at: row.updated_at,
        }
    }
}

impl MailingView {
    /// `shards` are all shards that exist so far.
    pub fn of(row: &MailingRow, shards: &[ShardRow], now: Timestamp) -> Self {
        let counts: EntryCounts = match shards.is_empty() {
            // The import creates the entries before the rows of the shards.
            true => (0..row.shards).map(|shard| row.progress.of_shard(shard)).sum(),
            false => shards.iter().map(|shard| shard.counts).sum(),
        };
        let total = counts.total();
        let settled = total - counts.open();
        let rate = rate(row, &counts, now);
        let eta = rate.filter(|rate| *rate > 0.0 && counts.open() > 0).map(|rate| seconds(counts.open(), rate));
        Self {
            summary: MailingSummary { total, ..MailingSummary::of(row) },
            unsubscribe: row.unsubscribe,
            has_content: row.content_version > 0,
            import: ImportView::of(row),
            counts,
            progress: if total == 0 { 0.0 } else { ratio(settled, total) },
            rate_per_second: rate,
            eta_seconds: eta.filter(|_| row.state == MailingState::Processing),
            last_attempt: row.last_attempt,
            same_content_as: row.same_content_as.clone(),
            paused_for: row.paused_for,
        }
    }
}

/// Returns how many entries were sent or tried per second in the current run. Time between runs
/// does not count.
fn rate(row: &MailingRow, counts: &EntryCounts, now: Timestamp) -> Option<f64> {
    let run = row.run.filter(|_| row.state == MailingState::Processing || row.finished_at.is_some())?;
    let to = row.finished_at.unwrap_or(now);
    let elapsed_ms = u64::try_from(to.millis() - run.since.millis()).ok().filter(|ms| *ms > 0)?;
    // `tried` does not grow for an entry that failed in an earlier run and is sent in this one;
    // `sent` does.
    let done = counts.tried().saturating_sub(run.tried).max(counts.sent.saturating_sub(run.sent));
    Some((ratio(done * 1_000, elapsed_ms) * 100.0).round() / 100.0)
}

#[expect(clippy::cast_precision_loss, reason = "counts of rows and milliseconds are far below 2^52")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rough time"
)]
fn seconds(open: u64, rate: f64) -> u64 {
    (open as f64 / rate).ceil() as u64
}

/// A recipient or an invalid row as an item of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MailingEntryView {
    pub entry_id: Option<String>,
    pub email: Option<String>,
    pub status: EntryState,
    pub line: u64,
    pub attempts: u32,
    pub last_attempt: Option<Timestamp>,
    pub external_id: Option<String>,
    pub sent_at: Option<Timestamp>,
    pub reason: Option<String>,
    pub delivered_at: Option<Timestamp>,
    pub bounced_at: Option<Timestamp>,
    pub complained_at: Option<Timestamp>,
}

impl MailingEntryView {
    pub fn of(id: &MailingEntryId, row: MailingEntryRow) -> Self {
        Self {
            entry_id: Some(id.to_string()),
            email: Some(row.email.clone()),
            status: row.state(),
            line: row.line,
            attempts: row.delivery.attempt,
            last_attempt: row.last_attempt,
            external_id: row.delivery.provider_id,
            sent_at: row.delivery.sent_at,
            reason: row.delivery.reason,
            delivered_at: row.marks.delivered_at,
            bounced_at: row.marks.bounced_at,
            complained_at: row.marks.complained_at,
        }
    }

    /// Returns the view of an invalid line. `None` for a duplicate line, which is not an entry.
    pub fn of_line(row: LineRow) -> Option<Self> {
        Some(Self { status: row.state?, line: row.line, reason: Some(row.reason), ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::KeyId;
    use crate::mailings::{SendingRun, UploadRequest};

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn processing(run: Option<SendingRun>) -> MailingRow {
        let asked = UploadRequest::of_csv([("filename", "a.csv")]).expect("a request");
        let row =
            MailingRow::new(&asked, 0, &KeyId::parse("0123456789abcdef").expect("an id"), NOW.plus_ms(-86_400_000));
        MailingRow { state: MailingState::Processing, started_at: Some(NOW.plus_ms(-86_400_000)), run, ..row }
    }

    fn view(row: &MailingRow, counts: EntryCounts) -> (Option<f64>, Option<u64>) {
        let view = MailingView::of(row, &[ShardRow::new(&row.mailing_id, 0, counts)], NOW);
        (view.rate_per_second, view.eta_seconds)
    }

    #[test]
    fn a_rate_is_of_the_present_run_and_not_of_the_pause_before_it() {
        let run = SendingRun { since: NOW.plus_ms(-10_000), sent: 400, tried: 400 };
        let row = processing(Some(run));
        let counts = EntryCounts { pending: 300, sent: 500, ..EntryCounts::default() };
        assert_eq!(view(&row, counts), (Some(10.0), Some(30)), "a hundred in ten seconds");
        let paused = MailingRow { state: MailingState::Paused, run: None, ..row.clone() };
        assert_eq!(view(&paused, counts), (None, None));
        assert_eq!(view(&MailingRow { state: MailingState::Queued, ..row }, counts), (None, None), "not begun again");
    }

    #[test]
    fn what_had_failed_and_is_sent_again_counts_in_the_run_that_sends_it() {
        let run = SendingRun { since: NOW.plus_ms(-10_000), sent: 900, tried: 1_000 };
        let row = processing(Some(run));
        let counts = EntryCounts { pending: 50, sent: 950, ..EntryCounts::default() };
        assert_eq!(view(&row, counts), (Some(5.0), Some(10)));
        let over = MailingRow { state: MailingState::Completed, finished_at: Some(NOW.plus_ms(-5_000)), ..row };
        let all = EntryCounts { sent: 1_000, ..EntryCounts::default() };
        assert_eq!(view(&over, all), (Some(20.0), None));
    }
}
