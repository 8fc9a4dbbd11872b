//! Removes objects that are older than the lifecycle rules of their bucket allow. (AWS removes them
//! some hours after the next midnight.)

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::S3;
use crate::StackError;
use crate::model::Bucket;

impl S3 {
    /// Removes the objects that have expired by the stack's clock. Returns how many there were.
    pub fn expire(&self) -> Result<usize, StackError> {
        let now = UNIX_EPOCH + Duration::from_millis(u64::try_from(self.0.clock.now_ms()).unwrap_or(0));
        let mut removed = 0;
        for bucket in self.0.buckets.iter().filter(|bucket| !bucket.expirations.is_empty()) {
            let root = self.0.directory.path.join(&bucket.name);
            remove(bucket, &root, &root, now, &mut removed)?;
        }
        Ok(removed)
    }
}

fn remove(
    bucket: &Bucket,
    root: &Path,
    directory: &Path,
    now: SystemTime,
    removed: &mut usize,
) -> Result<(), StackError> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // Another caller may have removed it meanwhile.
        let Ok(about) = fs::metadata(&path) else { continue };
        if about.is_dir() {
            remove(bucket, root, &path, now, removed)?;
            continue;
        }
        let key = path.strip_prefix(root).map(|key| key.to_string_lossy().into_owned()).unwrap_or_default();
        let age = now.duration_since(about.modified()?).unwrap_or_default();
        if bucket.expirations.iter().any(|rule| key.starts_with(&rule.prefix) && age >= rule.after)
            && fs::remove_file(&path).is_ok()
        {
            *removed += 1;
        }
    }
    Ok(())
}
