//! The row is the outbox: a state change that must cause work carries an [`Emit`] in the same item.
//!
//! The relay sees the row before and after a change, and publishes if and only if `seq` changed. It
//! publishes at least once, so each published message has a deterministic `id` by which consumers
//! recognize duplicates.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::Timestamp;

/// The longest delay that a queue supports. Work that is due later waits in the due index.
pub const MAX_DELAY_SECONDS: i64 = 900;

/// The attribute of a row that holds its [`Emit`].
pub const ATTRIBUTE: &str = "emit";

/// Work that follows from the state of the row that carries it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Emit {
    /// Grows with each emission of the row. The relay compares nothing else.
    pub seq: u64,
    /// The queue's configured name in the relay. It is never a URL, because rows outlive
    /// deployments.
    pub queue: String,
    /// In milliseconds. The message is delivered no earlier.
    pub not_before: Option<i64>,
    /// The message's identity for its consumers.
    pub id: String,
    /// A versioned body, as JSON text.
    pub body: String,
}

/// Returns what the relay must publish after a row changed from `old` to `new`.
pub fn to_publish<'a>(old: Option<&Emit>, new: Option<&'a Emit>) -> Option<&'a Emit> {
    new.filter(|new| old.is_none_or(|old| old.seq != new.seq))
}

/// Returns the seconds of delay for a message, rounded up so that it is never early.
pub fn delay_seconds(not_before: Option<i64>, now: Timestamp) -> i64 {
    let Some(not_before) = not_before else { return 0 };
    let wait_ms = not_before.saturating_sub(now.millis()).max(0);
    (wait_ms.saturating_add(999) / 1_000).min(MAX_DELAY_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emit(seq: u64) -> Emit {
        Emit { seq, queue: "work".into(), not_before: None, id: "a#1".into(), body: "{\"v\":1}".into() }
    }

    #[test]
    fn only_a_new_sequence_number_is_published() {
        let (one, two) = (emit(1), emit(2));
        assert_eq!(to_publish(None, Some(&one)), Some(&one));
        assert_eq!(to_publish(Some(&one), Some(&one)), None);
        assert_eq!(to_publish(Some(&one), Some(&two)), Some(&two));
        assert_eq!(to_publish(Some(&one), None), None);
        assert_eq!(to_publish(None, None), None);
    }

    #[test]
    fn a_delay_is_rounded_up_and_limited_to_the_maximum_of_a_queue() {
        let now = Timestamp::from_millis(10_000);
        assert_eq!(delay_seconds(None, now), 0);
        assert_eq!(delay_seconds(Some(9_000), now), 0);
        assert_eq!(delay_seconds(Some(10_001), now), 1);
        assert_eq!(delay_seconds(Some(15_000), now), 5);
        assert_eq!(delay_seconds(Some(i64::MAX), now), 900);
    }
}
