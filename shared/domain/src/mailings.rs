//! Mailings. A CSV file becomes a mailing once, each recipient gets it once, and a crash changes
//! neither.
//!
//! [`Format::detect`] detects how a file is written, [`Records`] reads it starting at any record,
//! and [`normalize_email`] brings each recipient's address into its canonical form. A mailing's
//! entries are spread over shards, and a worker (an invocation of the mailing sender) processes one
//! shard at a time. [`ShardRow::take`] decides whether a worker may take a shard, [`next_of_entry`]
//! what the worker does with a recipient, and [`completion`] whether the whole mailing is over.

mod check;
mod content;
mod course;
mod csv;
mod encoding;
mod entry;
pub mod files;
mod format;
mod identity;
mod mailing;
mod page;
mod recipient;
mod records;
mod report;
mod requests;
mod rows;
mod running_hash;
mod shard;
mod shard_groups;
mod shard_turn;
mod template;
mod unsubscribe;
mod upload;
mod views;

pub use check::{Checked, MOST_ROWS, check_file, file_error};
pub use content::{
    ContentRequest, MailingContent, Prepared, Rendered, TooLarge, UNSUBSCRIBE_URL, list_name, list_of, values,
};
pub use course::NotMoved;
pub use encoding::Encoding;
pub use entry::{EntryNext, EntryState, next_of_entry};
pub use format::{Format, ImportOptions, MOST_COLUMNS, Separator};
pub use identity::{
    MOST_SHARDS, MailingEntryId, MailingId, NameMode, content_hash, duplicate_of, email_hash, file_name, judge_upload,
    shard_of_line, shards_of,
};
pub use mailing::{Completion, EntryCounts, MailingEvent, MailingState, Move, completion, move_mailing};
pub use page::{ask_page, done_page, later_page, unknown_page};
pub use recipient::normalize_email;
pub use records::{FileRecipient, LONGEST_RECORD, Record, Records, UnreadableFile};
pub use report::{DUPLICATE, cell as csv_cell, csv as report_csv};
pub use requests::{PreviewRequest, RetryRequest, TestRequest};
pub use rows::{
    FileRow, ImportCause, ImportProblem, ImportProgress, ImportState, KeyRow, KeyedOrder, LineRow,
    MOST_DUPLICATES_REPORTED, MailingEntryRow, MailingRow, NameRow, SendingRun, ShardRow,
};
pub use running_hash::RunningHash;
pub use shard::{LEASE_MS, NotTaken, SUB_BATCH, ShardState, is_abandoned};
pub use shard_groups::{PassEnding, SHARD_GROUPS, Sibling, Tally, end_of_pass, shards_to_enqueue};
pub use shard_turn::ShardTurn;
pub use template::{Target, Template, TemplateError};
pub use unsubscribe::{
    UnsubscribeRow, UnsubscribeSource, unsubscribe_headers, unsubscribe_token, unsubscribe_url, verify_unsubscribe,
};
pub use upload::{LARGEST_INLINE, LARGEST_UPLOAD, UploadRequest};
pub use views::MailingEntryView;
