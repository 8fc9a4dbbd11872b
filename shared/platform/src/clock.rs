//! The only clock. Configuration can offset it, so that a test or a developer can move the time of
//! all functions at once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use umavez_domain::time::Timestamp;

use crate::config::{self, ConfigError};
use crate::host;

/// The milliseconds that this process runs ahead of its machine. If it is not set, the offset is
/// zero.
pub const OFFSET_VARIABLE: &str = "CLOCK_OFFSET_MS";

#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    offset_ms: i64,
    /// An instant, and the milliseconds since 1970 at that instant, if the time is not the
    /// machine's.
    epoch: Option<(Instant, i64)>,
}

impl Clock {
    pub fn from_env() -> Result<Self, ConfigError> {
        let offset_ms = config::optional(OFFSET_VARIABLE, "a number of milliseconds")?.unwrap_or(0);
        Ok(Self { offset_ms, epoch: host::provided(|host| host.epoch) })
    }

    pub fn now(self) -> Timestamp {
        let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let ms = match self.epoch {
            Some((instant, ms)) => ms.saturating_add(millis(instant.elapsed())),
            // Neither Lambda nor a developer's machine has a clock before 1970, so zero is good
            // enough then.
            None => millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
        };
        Timestamp::from_millis(ms).plus_ms(self.offset_ms)
    }
}
