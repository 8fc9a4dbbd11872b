//! The only clock. Configuration can offset it, so that a test or a developer can move the time of
//! all functions at once.

use std::time::{SystemTime, UNIX_EPOCH};

use umavez_domain::time::Timestamp;

use crate::config::{self, ConfigError};

/// The milliseconds that this process runs ahead of its machine. If it is not set, the offset is
/// zero.
pub const OFFSET_VARIABLE: &str = "CLOCK_OFFSET_MS";

#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    offset_ms: i64,
}

impl Clock {
    pub fn from_env() -> Result<Self, ConfigError> {
        let offset_ms = config::optional(OFFSET_VARIABLE, "a number of milliseconds")?.unwrap_or(0);
        Ok(Self { offset_ms })
    }

    pub fn now(self) -> Timestamp {
        // Neither Lambda nor a developer's machine has a clock before 1970, so zero is good enough
        // then.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(ms).plus_ms(self.offset_ms)
    }
}
