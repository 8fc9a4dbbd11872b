//! The lines of a job, read piece by piece, so that a whole file is never in memory.

use umavez_domain::codes::Reason;
use umavez_domain::ingest::{Position, upload_key};
use umavez_platform::ingest::Job;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::StoreError;

use crate::Deps;

const PIECE: u64 = 1024 * 1024;

/// Bytes from a position on. `at_end` says that the input ends with them.
pub struct Piece {
    pub bytes: Vec<u8>,
    pub at_end: bool,
}

pub enum Input {
    Inline(String),
    Upload { key: String, etag: String, size: u64 },
}

impl Input {
    pub async fn open(deps: &Deps, invocation: &Invocation, job: &Job) -> Result<Result<Self, Reason>, StoreError> {
        let id = &job.row.backfill_id;
        if !job.row.upload {
            return Ok(deps.backfills.lines(invocation, id).await?.map(Self::Inline).ok_or(Reason::InputMissing));
        }
        let of = |(etag, size): (&String, u64)| Self::Upload { key: upload_key(id), etag: etag.clone(), size };
        Ok(job.etag.as_ref().zip(job.size).map(of).ok_or(Reason::InputMissing))
    }

    /// Reads the bytes from `at` on. The inner error is the reason why the input can never be read.
    pub async fn piece(
        &self,
        deps: &Deps,
        invocation: &Invocation,
        at: Position,
    ) -> Result<Result<Piece, Reason>, StoreError> {
        match self {
            Self::Inline(lines) => {
                let from = usize::try_from(at.next_byte).unwrap_or(usize::MAX).min(lines.len());
                Ok(Ok(Piece { bytes: lines.as_bytes()[from..].to_vec(), at_end: true }))
            }
            Self::Upload { key, etag, size } => {
                let to = at.next_byte.saturating_add(PIECE).min(*size);
                let read = deps.uploads.read(invocation, key, etag, at.next_byte, to).await?;
                Ok(read.map(|bytes| Piece { bytes, at_end: to == *size }))
            }
        }
    }
}
