//! Which mailing was the first with a file of certain bytes: the same file under another name would
//! reach everybody again.
//!
//! The row is written by the transaction that makes the mailing, so that of two uploads at once
//! exactly one is the first. If the upload gave no hash, the importer computes it at the end of the
//! file and writes the row then.

use umavez_domain::keys;
use umavez_domain::mailings::{FileRow, MailingId, MailingRow, MailingState};
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Write, Written};

/// Who is known to have a file of the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SameFile {
    /// No mailing has.
    New,
    /// A mailing that failed, and sent nothing to anybody: it does not count, and its row may be
    /// replaced.
    Failed(MailingId),
    /// This one was the first, also if it was canceled: some of its recipients may have been sent
    /// to.
    Earlier(MailingId),
}

impl SameFile {
    /// The earlier mailing that the answer to a new one names.
    pub fn earlier(&self) -> Option<&MailingId> {
        match self {
            Self::Earlier(id) => Some(id),
            Self::New | Self::Failed(_) => None,
        }
    }
}

impl Mailings {
    /// Looks up who was the first with a file of this hash.
    pub async fn same_file(&self, invocation: &Invocation, content_hash: &str) -> Result<SameFile, StoreError> {
        let known: Option<FileRow> = self.store.get(invocation, &self.table, &keys::mailing_file(content_hash)).await?;
        let Some(FileRow { mailing_id, .. }) = known else { return Ok(SameFile::New) };
        Ok(match self.get(invocation, &mailing_id).await? {
            Some(row) if row.state != MailingState::Failed => SameFile::Earlier(mailing_id),
            _ => SameFile::Failed(mailing_id),
        })
    }

    /// The write that makes a new mailing the first with its file. `None` if `seen` has an earlier
    /// one.
    pub(super) fn first_with(&self, row: &MailingRow, seen: &SameFile) -> Result<Option<Write>, StoreError> {
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

    /// Makes a mailing the first with a file whose hash was found while it was imported, unless
    /// another is. Returns that one.
    pub(super) async fn note_file(
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
        // Another was faster, or an importer before this one wrote it.
        let seen = self.same_file(invocation, content_hash).await?;
        Ok(seen.earlier().filter(|first| *first != id).cloned())
    }
}
