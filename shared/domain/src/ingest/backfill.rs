//! Backfills: many items of one source as JSON lines, inserted under a job that can be stopped at
//! any line.
//!
//! A job goes forward by checkpoints. Between two of them no two lines touch the same row
//! ([`Unsettled`]), and a row knows the line that wrote it; so whatever a crash makes the job do
//! again ends as it did the first time, and is counted so.

mod dry_run;
mod identity;
mod lines;
mod progress;
mod request;
mod row;
mod upload;

pub use dry_run::DryRun;
pub use identity::{BackfillId, LineRef};
pub use lines::{LONGEST_LINE, Line, Lines, Position, read_line};
pub use progress::{Counts, LineError, LineResult, MOST_ERRORS, Progress, Settled, Unsettled};
pub use request::{BackfillInput, BackfillOptions, BackfillRequest};
pub use row::{BackfillRow, BackfillState, BackfillView};
pub use upload::{UPLOAD_PREFIX, Upload, upload_key};
