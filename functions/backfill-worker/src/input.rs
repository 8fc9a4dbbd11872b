//! The lines of a job, read piece by piece, so that a whole file is never in memory.

use umavez_domain::codes::Reason;
use umavez_domain::ingest::{BackfillRow, upload_key};
use umavez_domain::uploaded::Position;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::StoreError;
use umavez_platform::uploads::{Piece, UploadedObject};

use crate::Deps;

const PIECE: u64 = 1024 * 1024;

pub enum Input {
    Inline(String),
    Upload(UploadedObject),
}

impl Input {
    pub async fn open(
        deps: &Deps,
        invocation: &Invocation,
        job: &BackfillRow,
    ) -> Result<Result<Self, Reason>, StoreError> {
        let id = &job.backfill_id;
        if !job.upload {
            return Ok(deps.backfills.lines(invocation, id).await?.map(Self::Inline).ok_or(Reason::InputMissing));
        }
        let of = |(etag, size)| Self::Upload(UploadedObject { key: upload_key(id), etag, size });
        Ok(job.etag.clone().zip(job.size).map(of).ok_or(Reason::InputMissing))
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
            Self::Upload(object) => deps.uploads.read(invocation, object, at.next_byte, PIECE).await,
        }
    }
}
