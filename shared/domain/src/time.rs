//! Points in time. Rules take `now` as an argument; only `platform::clock` reads it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds since 1970-01-01T00:00:00Z. As text, it is always RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

pub const SECOND_MS: i64 = 1_000;
pub const DAY_MS: i64 = 86_400 * SECOND_MS;

/// The proleptic Gregorian ordinal of 1970-01-01, where 0001-01-01 is 1.
const EPOCH_ORDINAL: i64 = 719_163;

impl Timestamp {
    /// A time after every other one, for what waits without an end.
    pub const NEVER: Self = Self(999_999_999_999_999);

    pub const fn from_millis(ms: i64) -> Self {
        Self(ms)
    }

    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds * SECOND_MS)
    }

    /// Returns midnight UTC at the start of the day with this ordinal.
    pub const fn from_ordinal(ordinal: i64) -> Self {
        Self((ordinal - EPOCH_ORDINAL) * DAY_MS)
    }

    /// Parses RFC 3339 with any offset. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if !has_rfc3339_shape(text) {
            return None;
        }
        text.parse::<jiff::Timestamp>().ok().and_then(|at| Self::of_calendar(at.as_millisecond()))
    }

    /// Returns a time from the year 1 to the last days of 9999. `None` for any other, because its
    /// text form could not be parsed again.
    pub fn of_calendar(ms: i64) -> Option<Self> {
        const FIRST_MS: i64 = Timestamp::from_ordinal(1).0;
        const LAST_MS: i64 = Timestamp::from_ordinal(3_652_058).0;
        (FIRST_MS..=LAST_MS).contains(&ms).then_some(Self(ms))
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Returns whole seconds, rounded down: the unit of DynamoDB's TTL.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(SECOND_MS)
    }

    /// Returns the proleptic Gregorian ordinal of this point's UTC day.
    pub const fn ordinal(self) -> i64 {
        self.0.div_euclid(DAY_MS) + EPOCH_ORDINAL
    }

    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    pub const fn plus_days(self, days: i64) -> Self {
        self.plus_ms(days * DAY_MS)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(at) => at.fmt(f),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

/// Returns whether the text has the form of RFC 3339. The parser accepts more forms (no seconds, a
/// zone in brackets); callers may use only this one.
fn has_rfc3339_shape(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |from: usize, to: usize| bytes[from..to].iter().all(u8::is_ascii_digit);
    if bytes.len() < 20 || !text.is_ascii() || !matches!(bytes[10], b'T' | b't') {
        return false;
    }
    let date_and_time =
        digits(0, 4) && digits(5, 7) && digits(8, 10) && digits(11, 13) && digits(14, 16) && digits(17, 19);
    let zone = bytes[19..].iter().position(|byte| matches!(byte, b'Z' | b'z' | b'+' | b'-'));
    let Some(zone) = zone.map(|at| at + 19) else { return false };
    let zone_fits =
        matches!(bytes.len() - zone, 1 | 6) && (bytes.len() - zone == 1) == matches!(bytes[zone], b'Z' | b'z');
    date_and_time && zone_fits && (zone == 19 || (bytes[19] == b'.' && zone > 20 && digits(20, zone)))
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not an RFC 3339 time"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_whose_text_could_not_be_parsed_again_is_refused() {
        assert_eq!(Timestamp::parse("0000-01-01T00:00:00+01:00"), None);
        for text in ["0001-01-01T00:00:00Z", "9999-12-30T00:00:00Z"] {
            let at = Timestamp::parse(text).expect("a time");
            assert_eq!(Timestamp::parse(&at.to_string()), Some(at), "{text}");
        }
        assert_eq!(Timestamp::of_calendar(253_402_300_800_000), None);
    }

    #[test]
    fn the_ordinal_counts_days_from_the_year_one() {
        assert_eq!(Timestamp::from_seconds(0).ordinal(), 719_163);
        assert_eq!(Timestamp::from_seconds(-1).ordinal(), 719_162);
        assert_eq!(Timestamp::parse("0001-01-01T00:00:00Z").expect("parses").ordinal(), 1);
        assert_eq!(Timestamp::from_ordinal(719_164).seconds(), 86_400);
    }

    #[test]
    fn a_time_with_an_offset_is_converted_to_utc() {
        let at = Timestamp::parse("2025-01-04T22:30:00-03:00").expect("parses");
        assert_eq!(at.to_string(), "2025-01-05T01:30:00Z");
    }

    #[test]
    fn text_that_is_not_an_rfc3339_time_is_refused() {
        let others = [
            "",
            "2025-01-04",
            "yesterday",
            "2025-13-01T00:00:00Z",
            "1736035200",
            "2025-01-04T00:00Z",
            "2025-01-04T00:00:00Z[UTC]",
            "2025-01-04 00:00:00Z",
            "2025-01-04T00:00:00",
            "2025-01-04T00:00:00.Z",
            "2025-01-04T00:00:00+03",
            "2025-01-04T00:00:00é",
        ];
        for text in others {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn all_forms_of_rfc3339_are_accepted() {
        for text in [
            "2025-01-04T00:00:00Z",
            "2025-01-04t00:00:00z",
            "2025-01-04T03:00:00.000+03:00",
            "2025-01-03T21:00:00-03:00",
        ] {
            assert_eq!(Timestamp::parse(text), Some(Timestamp::from_seconds(1_735_948_800)), "{text}");
        }
    }

    #[test]
    fn milliseconds_are_kept_in_the_text_of_a_time() {
        let at = Timestamp::from_millis(1_700_000_000_123);
        assert_eq!(Timestamp::parse(&at.to_string()), Some(at));
    }
}
