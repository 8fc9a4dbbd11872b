//! Commands for a stack that runs already, over its `/_local` routes.

use serde_json::{Value, json};

use super::CliError;

const UNITS: &[(u64, &str)] = &[(1, "s"), (60, "m"), (3_600, "h"), (86_400, "d")];
/// What `sent --wait` takes for soon: longer than a burst of messages is waited for, and than the
/// first tries again.
const WAIT_SECONDS: u64 = 30;

pub async fn about(port: u16) -> Result<Value, CliError> {
    read(port, client().get(url(port, "")).send().await).await
}

pub async fn advance(duration: &str, port: u16) -> Result<(), CliError> {
    let seconds = seconds(duration)
        .ok_or_else(|| CliError::Usage(format!("{duration:?} is not a duration such as 45s, 20m, 12h or 7d")))?;
    let body = json!({"advance_seconds": seconds});
    let answer = read(port, client().post(url(port, "/clock")).json(&body).send().await).await?;
    print_clock(&answer);
    Ok(())
}

pub async fn clock(unix: bool, port: u16) -> Result<(), CliError> {
    let answer = read(port, client().get(url(port, "/clock")).send().await).await?;
    if unix {
        println!("{}", answer["unix"]);
    } else {
        print_clock(&answer);
    }
    Ok(())
}

pub async fn reset_clock(port: u16) -> Result<(), CliError> {
    let request = client().post(url(port, "/clock")).json(&json!({"reset": true}));
    let answer = read(port, request.send().await).await?;
    print_clock(&answer);
    println!("Rows stay as they are: what was scheduled for a later time, or is held until then, stays so.");
    Ok(())
}

fn print_clock(answer: &Value) {
    println!("now {}", answer["now"].as_str().unwrap_or_default());
    match ahead(answer["offset_seconds"].as_i64().unwrap_or(0)) {
        Some(ahead) => println!("{ahead}"),
        None => println!("That is the machine's time."),
    }
}

/// How far the stack's time is ahead of the machine's, if it is, and how it is set back.
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

pub async fn sent(channel: Option<String>, to: Option<String>, wait: bool, port: u16) -> Result<(), CliError> {
    if wait {
        let drained = client().post(url(port, &format!("/drain?within_seconds={WAIT_SECONDS}"))).send().await;
        // What has been sent by now is shown in any case.
        if let Err(CliError::Failed(why)) = read(port, drained).await {
            eprintln!("umavez: {why}");
        }
    }
    let asks_responder = channel.as_deref() == Some("responder");
    let query: Vec<_> = [("channel", channel), ("to", to)].into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
    let mut address = reqwest::Url::parse(&url(port, "/sent")).map_err(|error| CliError::Failed(error.to_string()))?;
    address.query_pairs_mut().extend_pairs(&query);
    let answer = read(port, client().get(address).send().await).await?;
    let messages = answer["sent"].as_array().map(Vec::as_slice).unwrap_or_default();
    for message in messages {
        let (at, channel) = (&message["at"], &message["channel"]);
        println!(
            "{} {} {} {}",
            at.as_str().unwrap_or_default(),
            channel.as_str().unwrap_or_default(),
            message["to"],
            message["body"]
        );
    }
    println!("{} sent", messages.len());
    if asks_responder && messages.is_empty() {
        println!("A responder of your own is asked directly; what it was asked is not kept here.");
    }
    Ok(())
}

/// Seconds of `45s`, `20m`, `12h`, `7d`. A plain number could be meant as anything.
pub fn seconds(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let (unit, _) = UNITS.iter().find(|(_, name)| *name == &text[digits.len()..])?;
    digits.parse::<u64>().ok()?.checked_mul(*unit)
}

async fn read(port: u16, sent: Result<reqwest::Response, reqwest::Error>) -> Result<Value, CliError> {
    let nobody = |_| CliError::Failed(format!("no stack answers on port {port}; start one with `cargo run`"));
    let response = sent.map_err(nobody)?;
    let status = response.status();
    let body: Value = response.json().await.map_err(nobody)?;
    if status.is_success() {
        return Ok(body);
    }
    Err(CliError::Failed(body["message"].as_str().unwrap_or("the stack refused").to_owned()))
}

fn url(port: u16, path: &str) -> String {
    format!("http://127.0.0.1:{port}/_local{path}")
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap_or_default()
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
    fn a_clock_that_was_moved_is_told_with_the_way_back() {
        assert_eq!(ahead(0), None);
        let told = ahead(7 * 86_400 + 65).expect("moved");
        assert!(told.starts_with("The stack's time is 7d 1m 5s ahead of the machine's."), "{told}");
        assert!(told.contains("clock --reset"), "{told}");
    }
}
