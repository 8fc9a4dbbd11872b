//! The lines of a job, a piece at a time.

use umavez_domain::ingest::Position;
use umavez_platform::ingest::Job;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::StoreError;

use crate::Deps;

/// Bytes from a position on; `at_end` says that there are no more.
pub struct Piece {
    pub bytes: Vec<u8>,
    pub at_end: bool,
}

pub enum Input {
    Inline(String),
}

impl Input {
    /// `None`: the lines are not there.
    pub async fn open(deps: &Deps, invocation: &Invocation, job: &Job) -> Result<Option<Self>, StoreError> {
        Ok(deps.backfills.lines(invocation, &job.row.backfill_id).await?.map(Self::Inline))
    }

    pub async fn piece(
        &self,
        _deps: &Deps,
        _invocation: &Invocation,
        at: Position,
    ) -> Result<Option<Piece>, StoreError> {
        match self {
            Self::Inline(lines) => {
                let from = usize::try_from(at.next_byte).unwrap_or(usize::MAX).min(lines.len());
                Ok(Some(Piece { bytes: lines.as_bytes()[from..].to_vec(), at_end: true }))
            }
        }
    }
}
