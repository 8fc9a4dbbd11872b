//! Commands for a stack that runs already, over its `/_local` routes.

use serde_json::{Value, json};

use super::CliError;

pub async fn about(port: u16) -> Result<Value, CliError> {
    read(port, client().get(url(port, "")).send().await).await
}

pub async fn advance(duration: &str, port: u16) -> Result<(), CliError> {
    let seconds = seconds(duration)
        .ok_or_else(|| CliError::Usage(format!("{duration:?} is not a duration such as 45s, 20m, 12h or 7d")))?;
    let body = json!({"advance_seconds": seconds});
    let answer = read(port, client().post(url(port, "/clock")).json(&body).send().await).await?;
    println!("now {}", answer["now"].as_str().unwrap_or_default());
    Ok(())
}

pub async fn sent(channel: Option<String>, to: Option<String>, port: u16) -> Result<(), CliError> {
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
    Ok(())
}

/// Seconds of `45s`, `20m`, `12h`, `7d`. A plain number could be meant as anything.
pub fn seconds(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
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
}
