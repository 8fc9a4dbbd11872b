//! Mailings. A CSV file becomes a mailing once, each recipient gets it once, and a crash changes
//! neither.
//!
//! [`Format::detect`] detects how a file is written, [`Records`] reads it starting at any record,
//! and [`normalize_email`] brings each recipient's address into its canonical form. A mailing's
//! entries are spread over shards, and a worker (an invocation of the mailing sender) processes one
//! shard at a time. [`take`] decides whether a worker may take a shard, [`next_of_entry`] what the
//! worker does with a recipient, and [`completion`] whether the whole mailing is over.

mod check;
mod content;
mod csv;
mod encoding;
mod entry;
pub mod files;
mod format;
mod identity;
mod lanes;
mod mailing;
mod page;
mod recipient;
mod records;
mod report;
mod requests;
mod rows;
mod running_hash;
mod shard;
mod template;
mod unsubscribe;
mod upload;
mod views;

pub use check::{Checked, MOST_ROWS, check_file, file_error};
pub use content::{
    ContentRequest, MailingContent, Prepared, Rendered, TooLarge, UNSUBSCRIBE_URL, list_name, list_of, values,
};
pub use encoding::Encoding;
pub use entry::{EntryNext, EntryState, next_of_entry};
pub use format::{Format, ImportOptions, MOST_COLUMNS, Separator};
pub use identity::{
    Inserted, MOST_SHARDS, MailingEntryId, MailingId, NameMode, Upload, content_hash, email_hash, file_name,
    judge_entry, judge_upload, shard_of_line, shards_of,
};
pub use lanes::{LANES, Lane, first_in_lanes, lane_of, to_hand_out};
pub use mailing::{Completion, EntryCounts, MailingEvent, MailingState, Move, completion, move_mailing};
pub use page::{ask_page, done_page, later_page, unknown_page};
pub use recipient::normalize_email;
pub use records::{LONGEST_RECORD, Place, Record, Records, Row, Unreadable};
pub use report::{DUPLICATE, ReportLine, cell as csv_cell, csv as report_csv};
pub use requests::{PreviewRequest, RetryRequest, TestRequest};
pub use rows::{
    EntryRow, FileRow, ImportCause, ImportProblem, ImportProgress, ImportState, KeyRow, LineRow, MOST_DUPLICATES_TOLD,
    MailingRow, NameRow, Order, SendingRun, ShardRow, UPLOAD_MS,
};
pub use running_hash::RunningHash;
pub use shard::{
    AfterPass, LEASE_MS, Recover, SUB_BATCH, ShardState, Take, after_pass, is_abandoned, recover_shard, take,
};
pub use template::{Target, Template, TemplateError};
pub use unsubscribe::{
    UnsubscribeRow, UnsubscribeSource, unsubscribe_headers, unsubscribe_token, unsubscribe_url, verify_unsubscribe,
};
pub use upload::{LARGEST_INLINE, LARGEST_UPLOAD, UploadRequest};
pub use views::{EntryView, ImportView, MailingSummary, MailingView, ProblemView};
