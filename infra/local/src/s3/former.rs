//! Keeps an object until an upload over it succeeds. The emulator checks a checksum only after it
//! has replaced the file, so a refused upload must be undone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::functions::random_uuid;

/// The object before an upload.
pub(super) struct Former {
    file: PathBuf,
    /// A hard link to the file; `None` if there was no object.
    kept: Option<PathBuf>,
}

impl Former {
    pub(super) fn of(file: PathBuf, directory: &Path) -> Self {
        // The emulator removes files with such names when it starts.
        let kept = directory.join(format!(".tmp.{}.internal.part", random_uuid()));
        let linked = fs::hard_link(&file, &kept).is_ok();
        Self { file, kept: linked.then_some(kept) }
    }

    /// Restores the object.
    pub(super) fn restore(&self) {
        match &self.kept {
            Some(kept) => {
                if let Err(error) = fs::rename(kept, &self.file) {
                    tracing::warn!(%error, "could not restore an object");
                }
            }
            // The upload may have failed before it created the file.
            None => drop(fs::remove_file(&self.file)),
        }
    }
}

impl Drop for Former {
    fn drop(&mut self) {
        if let Some(kept) = &self.kept {
            let _ = fs::remove_file(kept);
        }
    }
}
