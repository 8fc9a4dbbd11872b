//! `sent`: the messages that the providers got. On this machine a catcher stands in for them.

use clap::Args;
use serde_json::{Value, json};

use super::CliError;
use super::remote::Remote;

/// `--wait` waits for everything that is due within so many seconds: longer than the wait for the
/// end of a burst of messages, and longer than the first retries.
const WAIT_SECONDS: u64 = 30;

#[derive(Args)]
pub struct SentArguments {
    /// Only this channel: telegram, whatsapp or email; or responder, whose questions are not shown
    /// otherwise
    #[arg(long)]
    channel: Option<String>,
    /// Only to this address
    #[arg(long)]
    to: Option<String>,
    /// Wait first until nothing more is due within half a minute; two minutes at most
    #[arg(long)]
    wait: bool,
}

pub async fn run(remote: &Remote, arguments: SentArguments) -> Result<(), CliError> {
    if arguments.wait {
        let drained = remote.post(&format!("/_local/drain?within_seconds={WAIT_SECONDS}"), &json!({})).await;
        match drained {
            // The messages that have been sent by now are shown in any case.
            Err(CliError::Failed(reason)) => eprintln!("umavez: {reason}"),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    let asks_responder = arguments.channel.as_deref() == Some("responder");
    let query = [("channel", arguments.channel), ("to", arguments.to)];
    let query: Vec<_> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let answer = remote.get("/_local/sent", &query).await?;
    remote.print(&answer, |answer| {
        let messages = answer["sent"].as_array().map(Vec::as_slice).unwrap_or_default();
        messages.iter().for_each(|message| println!("{}", line(message)));
        println!("{} sent", messages.len());
        if asks_responder && messages.is_empty() {
            println!("Requests to your own responder go there directly and are not listed.");
        }
    });
    Ok(())
}

/// Returns one line for a message: when, channel, to whom, and its text as a JSON string.
fn line(message: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let to: Vec<_> = message["to"].as_array().into_iter().flatten().map(text).collect();
    let (at, channel) = (text(&message["at"]), text(&message["channel"]));
    format!("{at} {channel} {} {}", to.join(","), content(&message["body"]))
}

/// Returns what a person would read of a request to a provider: the text, or the subject and the
/// text. A request without either is shown whole.
fn content(body: &Value) -> String {
    let mail = &body["Content"]["Simple"];
    if mail.is_object() {
        let part = ["Text", "Html"].iter().map(|part| &mail["Body"][part]["Data"]).find(|data| data.is_string());
        return format!("{} {}", mail["Subject"]["Data"], part.unwrap_or(&Value::Null));
    }
    let text = ["text", "caption"].iter().map(|field| &body[field]).find(|text| text.is_string());
    text.unwrap_or(body).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_with_its_text() {
        let message = json!({"at": "T", "channel": "telegram", "to": ["42"], "body": {"chat_id": 42, "text": "a\nb"}});
        assert_eq!(line(&message), r#"T telegram 42 "a\nb""#);
        let simple = json!({"Subject": {"Data": "Hi"}, "Body": {"Html": {"Data": "<p>x</p>"}}});
        let mail = json!({"at": "T", "channel": "email", "to": ["a@b.c"], "body": {"Content": {"Simple": simple}}});
        assert_eq!(line(&mail), r#"T email a@b.c "Hi" "<p>x</p>""#);
        let photo = json!({"at": "T", "channel": "telegram", "to": ["42"], "body": {"photo": "u"}});
        assert_eq!(line(&photo), r#"T telegram 42 {"photo":"u"}"#);
    }
}
