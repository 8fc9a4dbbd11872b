//! The state that survives a restart: the file of the tables and the objects, and in addition the
//! clock, the positions of the streams, queued messages, and the values of secrets.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::StackError;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    pub clock_offset_ms: i64,
    /// The last sequence number that each stream mapping has handled.
    pub checkpoints: BTreeMap<String, String>,
    pub messages: Vec<Value>,
    /// Rows that TTL removed and whose removal a stream reader may not have seen yet.
    pub removed_by_ttl: Vec<String>,
}

/// A data directory, locked by one stack at a time.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    _lock: File,
}

impl StateDirectory {
    pub fn open(path: &Path) -> Result<Self, StackError> {
        let unusable = |error| StackError::unusable(path, error);
        fs::create_dir_all(path).map_err(unusable)?;
        let lock = File::create(path.join("lock")).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StackError::DataInUse(path.display().to_string())),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    pub fn database(&self) -> PathBuf {
        self.path.join("dynamodb.sqlite")
    }

    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Returns the directory of S3 objects.
    pub fn objects(&self) -> PathBuf {
        self.path.join("s3")
    }

    /// Returns the file of secrets. It is separate because it is written when a secret is put, and
    /// only its owner may read it.
    pub fn secrets(&self) -> PathBuf {
        self.path.join("secrets.json")
    }

    /// Loads the stored state. Returns the default at the first start.
    pub fn load(&self) -> Result<Kept, StackError> {
        let file = self.path.join("state.json");
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Kept::default()),
            read => read.map_err(|error| StackError::unreadable(&file, error))?,
        };
        serde_json::from_str(&text).map_err(|error| StackError::unreadable(&file, error))
    }

    /// Writes a temporary file and renames it, so that a killed stack leaves either the old or the
    /// new state, never a partial one.
    pub fn save(&self, kept: &Kept) -> Result<(), StackError> {
        let text = serde_json::to_string(kept).map_err(|error| StackError::Emulator(error.to_string()))?;
        let (file, beside) = (self.path.join("state.json"), self.path.join("state.json.new"));
        let written = fs::write(&beside, text).and_then(|()| fs::rename(beside, &file));
        written.map_err(|error| StackError::State(format!("{} cannot be written: {error}", file.display())))
    }
}
