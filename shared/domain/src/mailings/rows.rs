//! The rows of a mailing: its name, its own row, its shards and its entries.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_with::skip_serializing_none;

use super::content::list_of;
use super::entry::EntryState;
use super::files::uploaded_object;
use super::format::{Format, ImportOptions};
use super::identity::{MOST_SHARDS, MailingEntryId, MailingId, shards_of};
use super::mailing::{EntryCounts, MailingState};
use super::records::FileRecipient;
use super::report::DUPLICATE;
use super::running_hash::RunningHash;
use super::shard::ShardState;
use super::upload::UploadRequest;
use crate::absent::is_default;
use crate::access::KeyId;
use crate::change::{Fence, Row};
use crate::codes::{FileProblem, Reason, RowProblem, SendingHold, codes};
use crate::delivery::{Delivered, Delivery, Marks};
use crate::keys::{self, Key, Wake};
use crate::lease::Lease;
use crate::queue::{emit_hand_out, emit_import, emit_shard};
use crate::time::Timestamp;
use crate::uploaded::Position;
use crate::work::{Work, check_after_ms};

/// The most duplicate lines that are reported one by one. Further ones are only counted.
pub const MOST_DUPLICATES_REPORTED: u64 = 10_000;

/// Which mailing has a file's name.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRow {
    pub file_name: String,
    /// `None` after the file proved unreadable, which releases the name.
    pub mailing_id: Option<MailingId>,
    pub turn: u32,
}

impl NameRow {
    /// Returns the name after its file proved unreadable.
    #[must_use]
    pub fn released(&self) -> Self {
        Self { mailing_id: None, turn: self.turn + 1, ..self.clone() }
    }
}

impl Row for NameRow {
    fn key(&self) -> Key {
        keys::mailing_name(&self.file_name)
    }

    /// The same mailing has the name, or none has it, in the same turn.
    fn fence(&self) -> Fence {
        Fence::same(&json!({"mailing_id": self.mailing_id, "turn": self.turn}))
    }
}

/// The first mailing whose file has certain bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRow {
    pub mailing_id: MailingId,
    pub created_at: Timestamp,
}

codes! {
    ImportState {
        /// The file was not uploaded yet.
        AwaitingUpload = "AWAITING_UPLOAD",
        /// It waits for a worker.
        Queued = "QUEUED",
        /// The file is being read.
        Running = "RUNNING",
        /// Every row of the file was read.
        Done = "DONE",
        /// The file cannot be read, or not to its end: see `import.problem`.
        Failed = "FAILED",
    }
}

/// The import's checkpoint: a record boundary, and what was found before it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportProgress {
    pub place: Position,
    /// Detected with the first piece.
    pub format: Option<Format>,
    pub rows: u64,
    pub recipients: u64,
    pub duplicates: u64,
    pub invalid: u64,
    /// Recipients and invalid rows of each shard, until the rows of the shards hold these counts.
    #[serde(default)]
    pub by_shard: Vec<(u64, u64)>,
    /// The hash of the bytes before the place, if the caller did not announce the file's hash.
    pub hash: Option<RunningHash>,
    /// The import stopped before the end of the file and will not continue: only the rows that
    /// exist count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl Default for ImportProgress {
    fn default() -> Self {
        Self {
            place: Position::START,
            format: None,
            rows: 0,
            recipients: 0,
            duplicates: 0,
            invalid: 0,
            by_shard: Vec::new(),
            hash: None,
            partial: false,
        }
    }
}

impl ImportProgress {
    pub fn add_recipient(&mut self, shard: u32) {
        self.recipients += 1;
        self.shard(shard).0 += 1;
    }

    pub fn add_invalid(&mut self, shard: u32) {
        self.invalid += 1;
        self.shard(shard).1 += 1;
    }

    fn shard(&mut self, shard: u32) -> &mut (u64, u64) {
        let at = shard.min(MOST_SHARDS) as usize;
        if self.by_shard.len() <= at {
            self.by_shard.resize(at + 1, (0, 0));
        }
        &mut self.by_shard[at]
    }

    /// Returns the counts of a shard before any of its entries is processed.
    pub fn of_shard(&self, shard: u32) -> EntryCounts {
        let (pending, invalid) = self.by_shard.get(shard as usize).copied().unwrap_or_default();
        EntryCounts { pending, invalid, ..EntryCounts::default() }
    }

    /// Corrects the counts of a file that was not read to its end, from the rows that a pass over
    /// all of them found. An importer that crashed may have inserted rows after its last
    /// checkpoint.
    pub fn correct(&mut self, found: &EntryCounts) {
        (self.recipients, self.invalid) = (found.total() - found.invalid, found.invalid);
        self.rows = self.entries() + self.duplicates;
    }

    /// Returns how many entries the import has created.
    pub fn entries(&self) -> u64 {
        self.recipients + self.invalid
    }
}

/// Why a file was not imported.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportProblem {
    pub line: Option<u64>,
    #[serde(flatten)]
    pub cause: ImportCause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportCause {
    File(FileProblem),
    /// The object is missing, or it is no longer the same one.
    Object(Reason),
}

impl ImportProblem {
    pub fn in_file(line: Option<u64>, problem: FileProblem) -> Self {
        Self { line, cause: ImportCause::File(problem) }
    }

    pub fn of_object(reason: Reason) -> Self {
        Self { line: None, cause: ImportCause::Object(reason) }
    }
}

impl ImportCause {
    pub fn code(self) -> &'static str {
        match self {
            Self::File(problem) => problem.as_str(),
            Self::Object(reason) => reason.as_str(),
        }
    }
}

/// An order that came with an `Idempotency-Key`. It stores hashes, because callers choose the text
/// of their keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedOrder {
    pub key: String,
    pub body: String,
    /// The number of entries that the order applied to.
    #[serde(default)]
    pub entries: u64,
}

/// The mailing that a request with an `Idempotency-Key` created or got as its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRow {
    pub mailing_id: MailingId,
    pub body: String,
}

/// When the mailing last started sending, and how many entries were sent and tried by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingRun {
    pub since: Timestamp,
    pub sent: u64,
    pub tried: u64,
}

/// The row of a mailing. `version` grows with every change of its state; checkpoints of the import
/// do not change it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailingRow {
    pub mailing_id: MailingId,
    pub file_name: String,
    pub turn: u32,
    /// The API key that uploaded the file.
    pub caller: String,
    /// The SHA-256 of the file. If the upload did not announce it, it is set once the file was read
    /// to its end.
    pub content_hash: Option<String>,
    /// An earlier mailing with the same bytes under another name.
    pub same_content_as: Option<MailingId>,
    pub object: String,
    pub etag: Option<String>,
    pub size: Option<u64>,
    #[serde(default)]
    pub options: ImportOptions,
    /// The list that the caller named, and the list in effect: without a name, that of the from
    /// address.
    pub named_list: Option<String>,
    pub list: Option<String>,
    pub unsubscribe: bool,
    /// The version of the content that is in effect; 0 if there is none.
    pub content_version: u32,
    pub state: MailingState,
    pub import: ImportState,
    #[serde(default)]
    pub progress: ImportProgress,
    pub problem: Option<ImportProblem>,
    /// Over how many shards the entries are spread; 0 while the file's size is not known.
    pub shards: u32,
    /// The number of orders to retry failed entries, and the latest such order that included
    /// unknown entries.
    #[serde(default)]
    pub retry: u32,
    #[serde(default)]
    pub retry_unknown: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<KeyedOrder>,
    #[serde(flatten)]
    pub work: Work,
    /// The lease of the importer.
    #[serde(flatten)]
    pub lease: Option<Lease>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub last_attempt: Option<Timestamp>,
    /// The current run, from which the rate is measured. It begins when the mailing is started,
    /// resumed or retried. `None` while the mailing is paused.
    pub run: Option<SendingRun>,
    /// Why the mailing paused by itself; `None` if a person paused it.
    pub paused_for: Option<SendingHold>,
    pub version: u64,
}

impl MailingRow {
    /// A mailing whose file is imported as soon as it is uploaded. `turn` is that of its name.
    pub fn new(asked: &UploadRequest, turn: u32, caller: &KeyId, now: Timestamp) -> Self {
        let mailing_id = MailingId::of(&asked.file_name, turn);
        let from = asked.content.as_ref().map(|content| content.from.as_str());
        Self {
            object: uploaded_object(&mailing_id),
            mailing_id,
            file_name: asked.file_name.clone(),
            turn,
            caller: caller.to_string(),
            content_hash: asked.sha256.clone(),
            same_content_as: None,
            etag: None,
            size: None,
            options: asked.options.clone(),
            named_list: asked.list.clone(),
            list: list_of(asked.list.as_deref(), from),
            unsubscribe: asked.unsubscribe,
            content_version: u32::from(asked.content.is_some()),
            state: MailingState::Pending,
            import: ImportState::AwaitingUpload,
            progress: ImportProgress::default(),
            problem: None,
            shards: 0,
            retry: 0,
            retry_unknown: 0,
            orders: Vec::new(),
            work: Work::default(),
            lease: None,
            created_at: now,
            updated_at: now,
            started_at: None,
            finished_at: None,
            last_attempt: None,
            run: None,
            paused_for: None,
            version: 1,
        }
    }

    /// Returns the row of its name.
    pub fn name(&self) -> NameRow {
        let mailing_id = Some(self.mailing_id.clone());
        NameRow { file_name: self.file_name.clone(), mailing_id, turn: self.turn }
    }

    /// Records that the file is stored, and enqueues its import.
    pub fn file_uploaded(&mut self, etag: String, size: u64, now: Timestamp) {
        self.import = ImportState::Queued;
        (self.etag, self.size, self.shards) = (Some(etag), Some(size), shards_of(size));
        self.enqueue_import(now);
    }

    /// Returns whether the mailing can be sent: it is imported and has content.
    pub fn is_ready(&self) -> bool {
        self.import == ImportState::Done && self.content_version > 0
    }

    /// Enqueues the import of its file.
    pub fn enqueue_import(&mut self, now: Timestamp) {
        let id = &self.mailing_id;
        self.work.hand_over(id.as_str(), None, now, |seq| emit_import(id, seq));
    }

    /// Enqueues the job that enqueues its shards.
    pub fn enqueue_hand_out(&mut self, now: Timestamp) {
        let id = &self.mailing_id;
        self.work.hand_over(id.as_str(), None, now, |seq| emit_hand_out(id, seq));
    }

    /// Schedules a check by recovery.
    pub fn wait_until(&mut self, until: Timestamp) {
        self.work.wait_until(Wake::Check, self.mailing_id.as_str(), until);
    }

    /// Schedules the regular check by recovery while the mailing is sent.
    pub fn watch(&mut self, now: Timestamp) {
        self.wait_until(now.plus_ms(check_after_ms(0)));
    }

    /// The import's state has not changed since the row was read.
    pub fn importing_as_read(&self) -> Fence {
        Fence::same(&json!({"import": self.import}))
    }

    /// Returns whether senders must go through the shards of the mailing: to send the entries, or
    /// to mark them as not to be sent.
    pub fn needs_senders(&self) -> bool {
        let canceled = self.state == MailingState::Canceled;
        let open = matches!(self.state, MailingState::Pending | MailingState::Queued | MailingState::Processing);
        match self.import {
            ImportState::Done => canceled || open && self.is_ready(),
            // The import had determined the shards, and there may be entries in them.
            ImportState::Failed => self.shards > 0 && self.progress.partial,
            ImportState::AwaitingUpload | ImportState::Queued | ImportState::Running => false,
        }
    }

    /// Returns whether this turn of an importer still holds the mailing's lease.
    pub fn is_held_by(&self, held: &Lease) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_same_turn(held))
    }

    /// Returns the row after a change of its state.
    pub fn changed(self, before: &Self, now: Timestamp) -> Self {
        Self { version: before.version + 1, updated_at: now, ..self }
    }
}

impl Row for MailingRow {
    fn key(&self) -> Key {
        keys::mailing(&self.mailing_id)
    }

    /// Neither the mailing's state nor its lease has changed since it was read. Checkpoints of its
    /// import may have been written.
    fn fence(&self) -> Fence {
        let lease = self.lease.as_ref();
        Fence::same(&json!({
            "version": self.version,
            "lease_owner": lease.map(|lease| &lease.lease_owner),
            "lease_epoch": lease.map(|lease| lease.lease_epoch),
        }))
    }
}

/// The row of a shard.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRow {
    pub mailing_id: MailingId,
    pub shard: u32,
    pub state: ShardState,
    #[serde(flatten)]
    pub counts: EntryCounts,
    #[serde(flatten)]
    pub lease: Option<Lease>,
    /// The pass has processed the entries up to this place.
    pub cursor: Option<String>,
    /// The retry order of the pass that wrote the cursor.
    #[serde(default)]
    pub cursor_order: u32,
    /// The shard was enqueued at least once.
    pub begun: bool,
    /// When the next entry is due, after a pass over the shard.
    pub due: Option<Timestamp>,
    /// The latest retry order that the shard follows, and the latest one that included unknown
    /// entries.
    #[serde(default)]
    pub retried: u32,
    #[serde(default)]
    pub retried_unknown: u32,
    /// Grows when an event changes one of the shard's entries: a recount that began before is not
    /// final.
    #[serde(default)]
    pub touched: u64,
    pub last_attempt: Option<Timestamp>,
    #[serde(flatten)]
    pub work: Work,
}

impl ShardRow {
    pub fn new(mailing: &MailingId, shard: u32, counts: EntryCounts) -> Self {
        Self {
            mailing_id: mailing.clone(),
            shard,
            state: ShardState::Pending,
            counts,
            lease: None,
            cursor: None,
            cursor_order: 0,
            begun: false,
            due: None,
            retried: 0,
            retried_unknown: 0,
            touched: 0,
            last_attempt: None,
            work: Work::default(),
        }
    }

    /// Enqueues the shard for a worker, no earlier than `not_before`. `id` replaces the default id
    /// of the emitted message.
    pub fn enqueue(&mut self, not_before: Option<Timestamp>, id: Option<String>, now: Timestamp) {
        self.begun = true;
        let (mailing, shard, wake_id) =
            (&self.mailing_id, self.shard, keys::mailing_shard_id(&self.mailing_id, self.shard));
        self.work.hand_over(&wake_id, not_before, now, |seq| emit_shard(mailing, shard, seq, not_before, id));
    }

    /// Schedules a check by recovery.
    pub fn wait_until(&mut self, until: Timestamp) {
        self.work.wait_until(Wake::Check, &keys::mailing_shard_id(&self.mailing_id, self.shard), until);
    }

    /// Returns whether the shard is enqueued or with a worker, so that recovery checks on it. A
    /// shard that is not active is enqueued by its group.
    pub fn is_active(&self) -> bool {
        self.state != ShardState::Finished && self.work.wake.is_some()
    }
}

impl Row for ShardRow {
    fn key(&self) -> Key {
        keys::mailing_shard(&self.mailing_id, self.shard)
    }

    /// Since the row was read, the shard has not been enqueued, taken or finished, its lease has
    /// not been renewed, no event has changed one of its entries, and no retry was ordered.
    fn fence(&self) -> Fence {
        let lease = self.lease.as_ref();
        Fence::same(&json!({
            "state": self.state,
            "lease_epoch": lease.map(|lease| lease.lease_epoch),
            "lease_until": lease.map(|lease| lease.lease_until),
            "emits": Some(self.work.emits).filter(|emits| *emits > 0),
            "touched": self.touched,
            "retried": self.retried,
            "retried_unknown": self.retried_unknown,
        }))
    }
}

/// The row of a recipient.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailingEntryRow {
    pub pk: String,
    pub sk: String,
    pub email: String,
    /// The line of the file that has the address. A replayed import recognizes its own rows by it.
    pub line: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    #[serde(flatten)]
    pub delivery: Delivery,
    #[serde(flatten)]
    pub marks: Marks,
    /// The latest retry order that is done for this entry: the entry followed it, or the order was
    /// given before the entry's latest attempt and does not apply to it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retried: u32,
    pub last_attempt: Option<Timestamp>,
}

impl MailingEntryRow {
    /// A recipient of a file, before any attempt. An empty variable means the same as an absent
    /// one.
    pub fn new(id: &MailingEntryId, line: u64, recipient: FileRecipient) -> Self {
        let Key { pk, sk } = keys::mailing_entry(id);
        let FileRecipient { email, mut variables } = recipient;
        variables.retain(|_, value| !value.is_empty());
        Self {
            pk,
            sk,
            email,
            line,
            variables,
            delivery: Delivery::default(),
            marks: Marks::default(),
            retried: 0,
            last_attempt: None,
        }
    }
}

impl Row for MailingEntryRow {
    fn key(&self) -> Key {
        Key { pk: self.pk.clone(), sk: self.sk.clone() }
    }

    fn fence(&self) -> Fence {
        self.delivery.fence()
    }
}

impl Delivered for MailingEntryRow {
    fn delivery(&self) -> &Delivery {
        &self.delivery
    }
}

/// The row of a line that is not a recipient. An invalid line is an entry; a duplicate line is only
/// reported.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineRow {
    pub line: u64,
    pub state: Option<EntryState>,
    /// The code of a [`RowProblem`], or [`DUPLICATE`].
    pub reason: String,
    /// The line where a duplicate's address occurs first.
    pub of_line: Option<u64>,
}

impl LineRow {
    pub fn invalid(line: u64, problem: RowProblem) -> Self {
        Self { line, state: Some(EntryState::Invalid), reason: problem.as_str().to_owned(), of_line: None }
    }

    pub fn duplicate(line: u64, of_line: u64) -> Self {
        Self { line, state: None, reason: DUPLICATE.to_owned(), of_line: Some(of_line) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::tests::assert_fence_holds;

    fn lease() -> Option<Lease> {
        Some(Lease { lease_owner: "a".into(), lease_epoch: 4, lease_until: 5_000 })
    }

    /// These rows are most of the cost of an import.
    #[test]
    fn a_new_entry_stores_only_the_attributes_that_it_needs() {
        let id = MailingEntryId::of(&MailingId::of("a.csv", 0), "a@example.com", 1);
        let variables = BTreeMap::from([("nome".to_owned(), String::new())]);
        let row = MailingEntryRow::new(&id, 7, FileRecipient { email: "a@example.com".into(), variables });
        let stored = serde_json::to_value(&row).expect("a row");
        let key = row.key();
        let expected = json!({"pk": key.pk, "sk": key.sk, "email": "a@example.com", "line": 7, "state": "QUEUED"});
        assert_eq!(stored, expected);
        assert_eq!(serde_json::from_value::<MailingEntryRow>(stored).expect("read back"), row);
    }

    #[test]
    fn the_fences_list_the_attributes_that_the_rows_store() {
        let name = NameRow { file_name: "a.csv".into(), mailing_id: Some(MailingId::of("a.csv", 0)), turn: 2 };
        [&name.released(), &name].into_iter().for_each(assert_fence_holds);
        let mut shard = ShardRow::new(&MailingId::of("a.csv", 0), 7, EntryCounts::default());
        assert_fence_holds(&shard);
        (shard.lease, shard.touched, shard.retried, shard.retried_unknown) = (lease(), 2, 3, 3);
        shard.enqueue(None, None, Timestamp::from_seconds(1));
        assert_fence_holds(&shard);
        let request = UploadRequest::of_csv([("filename", "a.csv")]).expect("a request");
        let key = KeyId::parse("0123456789abcdef").expect("a key");
        let mailing = MailingRow::new(&request, 0, &key, Timestamp::from_seconds(1));
        assert_fence_holds(&mailing);
        let leased = MailingRow { lease: lease(), ..mailing };
        assert_fence_holds(&leased);
        let stored = serde_json::to_value(&leased).expect("a row");
        assert_eq!(serde_json::from_value::<MailingRow>(stored).expect("read back"), leased);
    }

    #[test]
    fn entries_are_counted_by_shard() {
        let mut progress = ImportProgress::default();
        progress.add_recipient(2);
        progress.add_invalid(2);
        assert_eq!(progress.entries(), 2);
        assert_eq!(
            (progress.of_shard(2).total(), progress.of_shard(0).total(), progress.of_shard(9).total()),
            (2, 0, 0)
        );
    }

    #[test]
    fn an_import_that_stopped_halfway_counts_the_entries_that_exist() {
        let mut progress = ImportProgress { rows: 4, recipients: 2, duplicates: 1, invalid: 1, ..Default::default() };
        progress.correct(&EntryCounts { canceled: 5, invalid: 2, ..EntryCounts::default() });
        assert_eq!((progress.rows, progress.recipients, progress.invalid, progress.entries()), (8, 5, 2, 7));
    }

    #[test]
    fn recovery_checks_an_enqueued_shard_later_after_each_recovery() {
        let now = Timestamp::from_seconds(1_000_000);
        let mut shard = ShardRow::new(&MailingId::of("a.csv", 0), 7, EntryCounts::default());
        assert!(!shard.begun && shard.work.wake.is_none());
        let mut waits = Vec::new();
        for recoveries in [0, 1, 20] {
            shard.work.recoveries = recoveries;
            shard.enqueue(Some(now.plus_ms(5)), None, now);
            let at = shard.work.wake_at.as_deref().and_then(keys::time_of).expect("a time");
            waits.push((at.millis() - now.millis()) / 60_000);
        }
        assert_eq!(waits, [10, 20, 640]);
        assert_eq!(
            (shard.work.emits, shard.work.emit.and_then(|emit| emit.not_before)),
            (3, Some(now.plus_ms(5).millis()))
        );
    }

    #[test]
    fn an_import_problem_is_read_back_unchanged() {
        for problem in [
            ImportProblem { line: Some(7), cause: ImportCause::File(FileProblem::QuoteNeverCloses) },
            ImportProblem { line: None, cause: ImportCause::Object(Reason::InputMissing) },
        ] {
            let text = serde_json::to_string(&problem).expect("JSON");
            assert_eq!(serde_json::from_str::<ImportProblem>(&text).expect("read back"), problem, "{text}");
        }
    }
}
