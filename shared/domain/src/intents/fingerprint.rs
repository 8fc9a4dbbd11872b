//! The fingerprint of an intent. It is byte for byte the one of the first system, so that the rows
//! of that system stay valid.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::id::is_hex;
use crate::time::Timestamp;

/// Returns the number of the window that contains a moment: the ordinal of the UTC day divided by
/// the days of the window, rounded down.
pub fn bucket(at: Timestamp, window_days: u32) -> i64 {
    at.ordinal().div_euclid(i64::from(window_days))
}

/// Returns when the next window begins.
pub fn bucket_end(bucket: i64, window_days: u32) -> Timestamp {
    Timestamp::from_ordinal((bucket + 1) * i64::from(window_days))
}

/// Returns 32 hex digits of the hash over client, type, reference (or `none`) and bucket. The parts
/// cannot contain a colon: they are UUIDs, type names and numbers.
pub fn fingerprint(client: Uuid, intent_type: &str, reference: Option<Uuid>, bucket: i64) -> String {
    let reference = reference.map_or_else(|| "none".to_owned(), |id| id.hyphenated().to_string());
    let raw = format!("{}:{intent_type}:{reference}:{bucket}", client.hyphenated());
    hex::encode(&Sha256::digest(raw.as_bytes())[..16])
}

pub fn is_fingerprint(text: &str) -> bool {
    is_hex(text, 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        for window in [1, 2, 3, 7] {
            let at = Timestamp::from_seconds(1_736_035_199);
            let end = bucket_end(bucket(at, window), window);
            assert!(end > at);
            assert_eq!(bucket(end, window), bucket(at, window) + 1);
            assert_eq!(bucket(end.plus_ms(-1), window), bucket(at, window));
        }
    }

    #[test]
    fn only_lower_case_hex_is_a_fingerprint() {
        assert!(is_fingerprint("2bdd443f4557c5c11347908ce89063c4"));
        assert!(!is_fingerprint("2BDD443F4557C5C11347908CE89063C4"));
        assert!(!is_fingerprint("2bdd443f"));
    }
}
