//! Mailings and their entries as callers see them.

use serde::Serialize;
use serde_json::{Value, json};

use super::entry::EntryState;
use super::identity::MailingEntryId;
use super::mailing::{EntryCounts, MailingState};
use super::records::UnreadableFile;
use super::rows::{ImportCause, ImportProblem, ImportState, LineRow, MailingEntryRow, MailingRow, ShardRow};
use crate::codes::Reason;
use crate::time::Timestamp;

impl MailingRow {
    /// Returns the mailing as an item of a list. `total` is the number of its entries, as far as it
    /// is imported.
    pub fn summary(&self) -> Value {
        json!({
            "mailingId": self.mailing_id,
            "file_name": self.file_name,
            "status": self.state,
            "list": self.list,
            "total": self.progress.entries(),
            "created_at": self.created_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "updated_at": self.updated_at,
        })
    }

    /// Returns the mailing by itself: the fields of the summary, and more. `shards` are all shards
    /// that exist so far.
    pub fn view(&self, shards: &[ShardRow], now: Timestamp) -> Value {
        let counts: EntryCounts = match shards.is_empty() {
            // The import creates the entries before the rows of the shards.
            true => (0..self.shards).map(|shard| self.progress.of_shard(shard)).sum(),
            false => shards.iter().map(|shard| shard.counts).sum(),
        };
        let total = counts.total();
        let settled = total - counts.open();
        let rate = rate(self, &counts, now);
        let eta = rate.filter(|rate| *rate > 0.0 && counts.open() > 0).map(|rate| seconds(counts.open(), rate));
        let mut view = self.summary();
        view["total"] = json!(total);
        view["unsubscribe"] = json!(self.unsubscribe);
        view["has_content"] = json!(self.content_version > 0);
        view["import"] = self.import_view();
        view["counts"] = json!(counts);
        // The share of settled entries, 0 to 1.
        view["progress"] = json!(if total == 0 { 0.0 } else { ratio(settled, total) });
        // The rate of the current run, or of the last one.
        view["rate_per_second"] = json!(rate);
        view["eta_seconds"] = json!(eta.filter(|_| self.state == MailingState::Processing));
        view["last_attempt"] = json!(self.last_attempt);
        view["same_content_as"] = json!(self.same_content_as);
        view["paused_for"] = json!(self.paused_for);
        view
    }

    fn import_view(&self) -> Value {
        json!({
            "state": self.import,
            "rows": self.progress.rows,
            "recipients": self.progress.recipients,
            "duplicates": self.progress.duplicates,
            "invalid": self.progress.invalid,
            "bytes": if self.import == ImportState::Done { self.size.unwrap_or(0) } else { self.progress.place.next_byte },
            "size": self.size,
            "problem": self.problem_view(),
        })
    }

    /// Returns the problem of the import, if it has one.
    pub fn problem_view(&self) -> Option<Value> {
        let problem = self.problem?;
        Some(json!({"line": problem.line, "code": problem.cause.code(), "detail": sentence(problem)}))
    }
}

/// Describes a problem for the caller.
fn sentence(problem: ImportProblem) -> String {
    match problem.cause {
        ImportCause::File(cause) => UnreadableFile { line: problem.line.unwrap_or(1), problem: cause }.sentence(),
        ImportCause::Object(Reason::InputMissing) => "the file was not uploaded, or was deleted".to_owned(),
        ImportCause::Object(_) => "the file changed after the import began".to_owned(),
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
        let view = row.view(&[ShardRow::new(&row.mailing_id, 0, counts)], NOW);
        (view["rate_per_second"].as_f64(), view["eta_seconds"].as_u64())
    }

    #[test]
    fn the_rate_counts_only_the_current_sending_run() {
        let run = SendingRun { since: NOW.plus_ms(-10_000), sent: 400, tried: 400 };
        let row = processing(Some(run));
        let counts = EntryCounts { pending: 300, sent: 500, ..EntryCounts::default() };
        assert_eq!(view(&row, counts), (Some(10.0), Some(30)), "a hundred recipients in ten seconds");
        let paused = MailingRow { state: MailingState::Paused, run: None, ..row.clone() };
        assert_eq!(view(&paused, counts), (None, None));
        assert_eq!(view(&MailingRow { state: MailingState::Queued, ..row }, counts), (None, None), "not resumed yet");
    }

    #[test]
    fn a_recipient_that_is_sent_to_again_counts_in_the_current_sending_run() {
        let run = SendingRun { since: NOW.plus_ms(-10_000), sent: 900, tried: 1_000 };
        let row = processing(Some(run));
        let counts = EntryCounts { pending: 50, sent: 950, ..EntryCounts::default() };
        assert_eq!(view(&row, counts), (Some(5.0), Some(10)));
        let over = MailingRow { state: MailingState::Completed, finished_at: Some(NOW.plus_ms(-5_000)), ..row };
        let all = EntryCounts { sent: 1_000, ..EntryCounts::default() };
        assert_eq!(view(&over, all), (Some(20.0), None));
    }
}
