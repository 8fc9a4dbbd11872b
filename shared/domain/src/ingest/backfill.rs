//! Backfills: insert many items of one source, given as JSON lines, in a job that can stop at any
//! line.
//!
//! A job advances by checkpoints. Between two checkpoints, no two lines touch the same row
//! ([`Unsettled`]), and a row stores the line that wrote it. Lines that a job repeats after a crash
//! therefore end with the same result as the first time, and are counted the same.

mod dry_run;
mod identity;
mod lines;
mod progress;
mod request;
mod row;
mod upload;

pub use dry_run::DryRun;
pub use identity::{BackfillId, LineRef};
pub use lines::{LONGEST_LINE, Line, Lines, read_line};
pub use progress::{Counts, LineError, LineResult, MOST_ERRORS, Progress, SettledLine, Unsettled};
pub use request::{BackfillInput, BackfillOptions, BackfillRequest};
pub use row::{BackfillRow, BackfillState, LEASE_MS};
pub(crate) use upload::backfill_of_object;
pub use upload::{UPLOAD_PREFIX, upload_key};
