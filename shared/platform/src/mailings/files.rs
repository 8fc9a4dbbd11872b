//! Records which mailing was the first with a file of certain bytes, because the same file under
//! another name would reach all its recipients again.
//!
//! The transaction that creates the mailing writes the row, so exactly one of two concurrent
//! uploads is the first. If the upload gave no hash, the importer computes it at the end of the
//! file and writes the row then.

use umavez_domain::keys;
use umavez_domain::mailings::{FileRow, MailingId, MailingRow, MailingState};
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Write, Written};

/// Which mailing is known to have a file with the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SameFile {
    /// No mailing has such a file.
    New,
    /// A mailing with this file failed and sent nothing. It does not count, and a new mailing may
    /// replace its row.
    Failed(MailingId),
    /// This mailing was the first. A canceled mailing counts too, because some of its recipients
    /// may have received it.
    Earlier(MailingId),
}

impl SameFile {
    /// Returns the earlier mailing, which the answer to a new upload names.
    pub fn earlier(&self) -> Option<&MailingId> {
        match self {
            Self::Earlier(id) => Some(id),
            Self::New | Self::Failed(_) => None,
        }
    }
}

impl Mailings {
    /// Looks up which mailing was the first with a file of this hash.
    pub async fn same_file(&self, invocation: &Invocation, content_hash: &str) -> Result<SameFile, StoreError> {
        let known: Option<FileRow> = self.store.get(invocation, &self.table, &keys::mailing_file(content_hash)).await?;
        let Some(FileRow { mailing_id, .. }) = known else { return Ok(SameFile::New) };
        Ok(match self.get(invocation, &mailing_id).await? {
            Some(row) if row.state != MailingState::Failed => SameFile::Earlier(mailing_id),
            _ => SameFile::Failed(mailing_id),
        })
    }

    /// Builds the write that makes a new mailing the first with its file. Returns `None` if `seen`
    /// is an earlier mailing, or if the hash is not known yet.
    pub(super) fn claim_new_file(&self, row: &MailingRow, seen: &SameFile) -> Result<Option<Write>, StoreError> {
        let Some(content_hash) = &row.content_hash else { return Ok(None) };
        self.file_claim(content_hash, &row.mailing_id, seen, row.created_at)
    }

    fn file_claim(
        &self,
        content_hash: &str,
        id: &MailingId,
        seen: &SameFile,
        now: Timestamp,
    ) -> Result<Option<Write>, StoreError> {
        let unclaimed = match seen {
            SameFile::New => Condition::Absent,
            SameFile::Failed(failed) => Condition::is("mailing_id", failed.as_str()),
            SameFile::Earlier(_) => return Ok(None),
        };
        let file = FileRow { mailing_id: id.clone(), created_at: now };
        Ok(Some(Write::put(&self.table, keys::mailing_file(content_hash), &file)?.when(unclaimed)))
    }

    /// Makes a mailing the first with a file whose hash the importer computed, unless another
    /// mailing is. Returns that other mailing.
    pub(super) async fn claim_file(
        &self,
        invocation: &Invocation,
        content_hash: &str,
        id: &MailingId,
    ) -> Result<Option<MailingId>, StoreError> {
        let seen = self.same_file(invocation, content_hash).await?;
        if let Some(write) = self.file_claim(content_hash, id, &seen, invocation.current())?
            && !matches!(self.store.write(invocation, write).await?, Written::Refused(_))
        {
            return Ok(None);
        }
        // Another mailing was faster, or an earlier importer of this mailing has already written
        // the row.
        let seen = self.same_file(invocation, content_hash).await?;
        Ok(seen.earlier().filter(|first| *first != id).cloned())
    }
}
