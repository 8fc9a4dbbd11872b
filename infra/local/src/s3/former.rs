//! What a refused upload must not replace: the emulator looks at a checksum only when the file is
//! in its place.

use std::fs;
use std::path::{Path, PathBuf};

use crate::functions::random_uuid;

/// The object as it was before an upload.
pub(super) struct Former {
    file: PathBuf,
    /// A second name of the same file; none if there was no object.
    kept: Option<PathBuf>,
}

impl Former {
    pub(super) fn of(file: PathBuf, directory: &Path) -> Self {
        // The emulator clears away what is called so when it starts.
        let kept = directory.join(format!(".tmp.{}.internal.part", random_uuid()));
        let linked = fs::hard_link(&file, &kept).is_ok();
        Self { file, kept: linked.then_some(kept) }
    }

    /// Puts it back.
    pub(super) fn restore(&self) {
        match &self.kept {
            Some(kept) => {
                if let Err(error) = fs::rename(kept, &self.file) {
                    tracing::warn!(%error, "an object could not be put back");
                }
            }
            // It may not even have got into its place.
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
