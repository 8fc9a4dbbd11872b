//! `explain`: every decision about a message, an address or a client.

use clap::Args;
use serde_json::Value;
use umavez_domain::fields::parse_uuid;

use super::CliError;
use super::remote::{Remote, client};
use super::start::FIRST_KEY;

#[derive(Args)]
pub struct ExplainArguments {
    /// A message id (msg_…), a client id (a UUID), or the address, chat id or phone number of a
    /// contact
    subject: String,
    /// The API key to ask with
    #[arg(long, env = "UMAVEZ_KEY", default_value = FIRST_KEY, hide_env_values = true)]
    key: String,
}

pub async fn run(remote: &Remote, arguments: ExplainArguments) -> Result<(), CliError> {
    let subject = arguments.subject;
    let mut url = reqwest::Url::parse(&remote.url("/explain")).map_err(|error| CliError::Failed(error.to_string()))?;
    url.query_pairs_mut().append_pair(parameter(&subject), &subject);
    let answer = remote.send(client().get(url).bearer_auth(arguments.key)).await?;
    remote.print(&answer, |answer| {
        let rows = |name: &str| answer[name].as_array().map(Vec::as_slice).unwrap_or_default().to_vec();
        if rows("messages").is_empty() && rows("decisions").is_empty() {
            println!("nothing is known about {subject}");
        }
        rows("decisions").iter().for_each(|decision| println!("{}", line(decision)));
        for message in rows("messages") {
            let part = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
            println!("{} {} is {}", part("channel"), part("message_id"), part("status"));
        }
        if !answer["cursor"].is_null() {
            println!("There are older ones; `GET /explain` pages through them.");
        }
    });
    Ok(())
}

/// Returns the parameter of `GET /explain` that takes this subject.
fn parameter(subject: &str) -> &'static str {
    if subject.starts_with("msg_") {
        "message"
    } else if parse_uuid(subject).is_some() {
        "client_id"
    } else {
        "to"
    }
}

/// Returns one line for a decision: its time, its code, and its other fields by name.
fn line(decision: &Value) -> String {
    let part = |name: &str| decision[name].as_str().unwrap_or_default();
    let mut line = format!("{} {:<10}", part("at"), part("code"));
    for (name, value) in decision.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "at" | "code") {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            line.push_str(&format!(" {name}={value}"));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_form_of_a_subject_says_what_it_is() {
        assert_eq!(parameter("msg_56550f169b16dce688867201a3e36b9a"), "message");
        assert_eq!(parameter("91b7584a-d8f1-4cd6-b0e1-414c1027c4d1"), "client_id");
        assert_eq!(parameter("987654321"), "to");
        assert_eq!(parameter("ana@example.com"), "to");
    }

    #[test]
    fn a_decision_is_one_line() {
        let decision = json!({"at": "T", "code": "claimed", "attempt": 1, "message_id": "msg_1"});
        assert_eq!(line(&decision), "T claimed    attempt=1 message_id=msg_1");
    }
}
