//! The parts that identify a mail: its Message-ID, the sender's address, and the day it was sent.

use sha2::{Digest, Sha256};

use super::subject::subject_base;
use crate::time::Timestamp;

/// Newsletters of the same sender, subject and day count as one. The day is the day in Chicago.
static CHICAGO: jiff::tz::TimeZone = jiff::tz::get!("America/Chicago");

/// Returns a Message-ID in its canonical form, in angle brackets. Some programs pass it on without
/// them, or folded over two lines. `None` if it is empty.
pub fn message_id(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect();
    let inner = text.strip_prefix('<').unwrap_or(&text);
    let inner = inner.strip_suffix('>').unwrap_or(inner);
    (!inner.is_empty()).then(|| format!("<{inner}>"))
}

/// Returns the address of a `From` header in lower case, without a display name. If there are
/// several addresses, returns the first. `None` if there is no valid address.
pub fn from_addr(from: &str) -> Option<String> {
    let bare = without_quotes_and_comments(from);
    let address = match bare.split_once('<') {
        Some((_, rest)) => rest.split_once('>')?.0.trim(),
        None => bare.split([',', ';']).next()?.trim(),
    };
    let (local, domain) = address.rsplit_once('@')?;
    let broken = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '<' | '>' | ',' | ';');
    if local.is_empty() || domain.is_empty() || address.contains(broken) {
        return None;
    }
    Some(format!("{}@{}", local.to_lowercase(), ascii_domain(domain)))
}

/// Returns the day in Chicago as `YYYY-MM-DD`. `None` outside of the calendar's years.
pub fn date_bucket(at: Timestamp) -> Option<String> {
    let at = jiff::Timestamp::from_millisecond(at.millis()).ok()?;
    Some(CHICAGO.to_datetime(at).date().to_string())
}

/// Parses a mail's date, given as RFC 3339 or as in the `Date` header (RFC 2822).
pub fn date(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    // A wrong weekday is the sender's mistake and does not change the day.
    let header = jiff::fmt::rfc2822::DateTimeParser::new().relaxed_weekday(true);
    let of_header = || header.parse_timestamp(text).ok().and_then(|at| Timestamp::of_calendar(at.as_millisecond()));
    Timestamp::parse(text).or_else(of_header)
}

/// Returns the hash that identifies a newsletter without a Message-ID: sender, subject and day.
pub fn newsletter_hash(from_addr: &str, subject_base: &str, day: &str) -> String {
    sha256(&format!("{from_addr}\n{subject_base}\n{day}"))
}

/// Returns the hash that identifies a thread. Participants are not part of it.
pub fn thread_hash(subject_base: &str) -> String {
    sha256(subject_base)
}

/// Returns the [`newsletter_hash`] of a mail. `None` if one of its parts is missing or empty.
pub(super) fn newsletter_key(from_addr: &str, subject: &str, at: Option<Timestamp>) -> Option<String> {
    let base = subject_base(subject);
    let day = at.and_then(date_bucket)?;
    (!base.is_empty()).then(|| newsletter_hash(from_addr, &base, &day))
}

pub(super) fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// Removes quoted strings and comments: a `<` or `@` inside them is not part of the address. A
/// quoted local part stays in place, without its quotes.
fn without_quotes_and_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let (mut quoted, mut depth, mut escaped) = (String::new(), 0_usize, false);
    let mut in_quotes = false;
    for c in text.chars() {
        if in_quotes {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_quotes = false,
                _ => quoted.push(c),
            }
            continue;
        }
        match c {
            '"' if depth == 0 => {
                in_quotes = true;
                quoted.clear();
            }
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            '@' if kept.is_empty() || kept.ends_with('<') => {
                kept.push_str(&quoted);
                kept.push('@');
            }
            _ => kept.push(c),
        }
    }
    kept
}

/// Returns a domain in ASCII, so that `bücher.example` and its punycode are the same sender.
fn ascii_domain(domain: &str) -> String {
    if domain.is_ascii() {
        return domain.to_ascii_lowercase();
    }
    url::Host::parse(domain).map_or_else(|_| domain.to_lowercase(), |host| host.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).expect("a time")
    }

    #[test]
    fn all_spellings_of_a_message_id_normalize_to_one_form() {
        for text in ["<a.B@c>", "a.B@c", " <a.B@c>\r\n", "<a.B\r\n @c>"] {
            assert_eq!(message_id(text).as_deref(), Some("<a.B@c>"), "{text:?}");
        }
        for text in ["", " ", "<>", "< >", "\r\n"] {
            assert_eq!(message_id(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_address_is_found_in_any_from_header() {
        let cases = [
            ("News <News@Example.com>", "news@example.com"),
            ("news@example.com", "news@example.com"),
            (" <A+b@C.co> ", "a+b@c.co"),
            ("\"Smith, <x@y.z> @ work\" <a@b.co>", "a@b.co"),
            ("\"Say \\\" hi\" <a@b.co>", "a@b.co"),
            ("a@b.co (Ana (from Recife))", "a@b.co"),
            ("A <a@b.co>, C <c@d.co>", "a@b.co"),
            ("a@b.co, c@d.co", "a@b.co"),
            ("Bücher <Info@Bücher.example>", "info@xn--bcher-kva.example"),
            ("\"o dd\"@b.co", ""),
            ("<\"odd\"@b.co>", "odd@b.co"),
            ("News", ""),
            ("", ""),
            ("<>", ""),
            ("a@", ""),
            ("@b.co", ""),
            ("a b@c.co", ""),
            ("News <a@b.co", ""),
        ];
        for (from, address) in cases {
            assert_eq!(from_addr(from).unwrap_or_default(), address, "{from}");
            if !address.is_empty() {
                assert_eq!(from_addr(address).as_deref(), Some(address), "{address} is already normalized");
            }
        }
    }

    #[test]
    fn a_day_begins_at_midnight_in_chicago_by_the_rules_of_its_year() {
        let cases = [
            ("2025-03-09T05:59:59Z", "2025-03-08"),
            ("2025-03-10T04:59:59Z", "2025-03-09"),
            ("2025-03-10T05:00:00Z", "2025-03-10"),
            ("2025-11-03T05:59:59Z", "2025-11-02"),
            // Until 2006, summer time began in April. The day of an old mail follows the rules of
            // its year.
            ("2005-03-20T05:30:00Z", "2005-03-19"),
            ("1969-07-20T04:59:59Z", "1969-07-19"),
            ("2050-07-01T05:00:00Z", "2050-07-01"),
            ("2050-01-15T05:59:59Z", "2050-01-14"),
        ];
        for (text, day) in cases {
            assert_eq!(date_bucket(at(text)).as_deref(), Some(day), "{text}");
        }
        assert_eq!(date_bucket(Timestamp::from_millis(i64::MAX)), None);
    }

    #[test]
    fn a_date_is_read_in_rfc3339_and_in_the_format_of_email_headers() {
        let expected = Some(at("2025-07-01T04:00:00Z"));
        for text in [
            "2025-07-01T04:00:00Z",
            "2025-07-01T01:00:00-03:00",
            "Tue, 01 Jul 2025 04:00:00 +0000",
            "Mon, 1 Jul 2025 01:00:00 -0300 (BRT)",
            "1 Jul 2025 04:00:00 GMT",
        ] {
            assert_eq!(date(text), expected, "{text}");
        }
        for text in ["", "2025-07-01", "July 1st", "1751342400", "2025-07-01T04:00:00", "32 Jul 2025 04:00:00 GMT"] {
            assert_eq!(date(text), None, "{text}");
        }
    }

    #[test]
    fn a_newsletter_without_subject_or_date_has_no_secondary_key() {
        let sent = Some(at("2025-07-01T04:00:00Z"));
        assert!(newsletter_key("a@b.co", "x", sent).is_some());
        assert_eq!(newsletter_key("a@b.co", "[only tag]", sent), None);
        assert_eq!(newsletter_key("a@b.co", "x", None), None);
    }

    #[test]
    fn random_headers_never_panic_and_normalizing_a_message_id_twice_changes_nothing() {
        let parts = ["a", "@", "<", ">", "\"", "(", ")", "\\", ",", " ", "é", "b.co", "\u{0}", ";", "İ", "xn--"];
        let mut dice = fastrand::Rng::with_seed(11);
        for _ in 0..20_000 {
            let text: String = (0..dice.usize(0..10)).map(|_| parts[dice.usize(0..parts.len())]).collect();
            if let Some(id) = message_id(&text) {
                assert_eq!(message_id(&id), Some(id.clone()), "{text:?}");
            }
            date(&text);
            from_addr(&text);
        }
    }
}
