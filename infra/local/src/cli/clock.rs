//! `clock` and `advance`: the running stack's time.

use serde_json::{Value, json};

use super::CliError;
use super::remote::Remote;

const UNITS: &[(u64, &str)] = &[(1, "s"), (60, "m"), (3_600, "h"), (86_400, "d")];

pub async fn advance(remote: &Remote, duration: &str) -> Result<(), CliError> {
    let seconds = seconds(duration)
        .ok_or_else(|| CliError::Usage(format!("{duration:?} is not a duration such as 45s, 20m, 12h or 7d")))?;
    let answer = remote.post("/_local/clock", &json!({"advance_seconds": seconds})).await?;
    remote.print(&answer, print_clock);
    Ok(())
}

pub async fn show(remote: &Remote, unix: bool) -> Result<(), CliError> {
    let answer = remote.get("/_local/clock", &[]).await?;
    if unix {
        println!("{}", answer["unix"]);
    } else {
        remote.print(&answer, print_clock);
    }
    Ok(())
}

pub async fn reset(remote: &Remote) -> Result<(), CliError> {
    let answer = remote.post("/_local/clock", &json!({"reset": true})).await?;
    remote.print(&answer, |answer| {
        print_clock(answer);
        println!("Rows did not change: what was scheduled for a later time, or is held until then, stays so.");
    });
    Ok(())
}

fn print_clock(answer: &Value) {
    println!("now {}", answer["now"].as_str().unwrap_or_default());
    match ahead(answer["offset_seconds"].as_i64().unwrap_or(0)) {
        Some(ahead) => println!("{ahead}"),
        None => println!("That is the machine's time."),
    }
}

/// Returns how far the stack's time is ahead of the machine's, if it is, and how to set it back.
pub fn ahead(offset_seconds: i64) -> Option<String> {
    let mut left = u64::try_from(offset_seconds).ok().filter(|seconds| *seconds > 0)?;
    let mut parts = Vec::new();
    for (unit, name) in UNITS.iter().rev() {
        if left >= *unit {
            parts.push(format!("{}{name}", left / unit));
            left %= unit;
        }
    }
    let parts = parts.join(" ");
    Some(format!("The stack's time is {parts} ahead of the machine's. `cargo run -- clock --reset` sets it back."))
}

/// Returns the seconds of `45s`, `20m`, `12h` or `7d`. A number without a unit is ambiguous.
pub fn seconds(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let (unit, _) = UNITS.iter().find(|(_, name)| *name == &text[digits.len()..])?;
    digits.parse::<u64>().ok()?.checked_mul(*unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(seconds("45s"), Some(45));
        assert_eq!(seconds("20m"), Some(1_200));
        assert_eq!(seconds("12h"), Some(43_200));
        assert_eq!(seconds("7d"), Some(604_800));
        for text in ["", "90", "m", "1w", "-1m", "1.5h", "99999999999999999999d"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn a_clock_that_was_moved_is_shown_with_the_way_back() {
        assert_eq!(ahead(0), None);
        let shown = ahead(7 * 86_400 + 65).expect("moved");
        assert!(shown.starts_with("The stack's time is 7d 1m 5s ahead of the machine's."), "{shown}");
        assert!(shown.contains("clock --reset"), "{shown}");
    }
}
