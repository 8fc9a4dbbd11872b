//! When a message leaves: at once through the outbox if a queue can hold it that long, else by the due index.

use crate::outbox::MAX_DELAY_SECONDS;
use crate::time::{SECOND_MS, Timestamp};

/// A sweep takes out of the index what is due within this: what a queue can hold, less a tick of the schedule.
pub const LOOK_AHEAD_MS: i64 = (MAX_DELAY_SECONDS - 60) * SECOND_MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Emitted with this message; delivered no earlier than the time, if there is one.
    Emitted { not_before: Option<i64> },
    /// In the due index under this time, until a sweep emits it.
    Indexed { due_at: i64 },
}

pub fn due(send_at: Option<Timestamp>, now: Timestamp) -> Due {
    match send_at {
        Some(at) if at.millis() > now.millis() + LOOK_AHEAD_MS => Due::Indexed { due_at: at.millis() },
        Some(at) if at > now => Due::Emitted { not_before: Some(at.millis()) },
        _ => Due::Emitted { not_before: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::delay_seconds;

    #[test]
    fn what_a_queue_can_hold_is_emitted_and_the_rest_is_indexed() {
        let now = Timestamp::from_seconds(1_000_000);
        assert_eq!(due(None, now), Due::Emitted { not_before: None });
        assert_eq!(due(Some(now.plus_ms(-1)), now), Due::Emitted { not_before: None });
        let soon = now.plus_ms(LOOK_AHEAD_MS);
        assert_eq!(due(Some(soon), now), Due::Emitted { not_before: Some(soon.millis()) });
        assert!(delay_seconds(Some(soon.millis()), now) < MAX_DELAY_SECONDS, "a queue holds it to its time");
        let later = soon.plus_ms(1);
        assert_eq!(due(Some(later), now), Due::Indexed { due_at: later.millis() });
    }
}
