//! Reads a responder's answer and splits it into messages that fit the channel.

use serde_json::Value;

use super::identity::Via;
use crate::codes::codes;

/// The maximum length of a reply in bytes. A longer reply is an error of the responder.
pub const LONGEST_REPLY: usize = 32 * 1024;

/// The maximum length of a Telegram message, in UTF-16 code units. WhatsApp accepts twice as many
/// bytes as the longest reply has.
const TELEGRAM_UNITS: usize = 4_096;

codes! {
    /// Why a responder's answer cannot be used.
    ResponderProblem {
        /// No connection to the responder: it has read nothing.
        NotConnected = "responder_not_connected",
        /// The responder did not answer within `responder_timeout_seconds`.
        TimedOut = "responder_timed_out",
        /// The connection ended before an answer. The responder may have read the request.
        Broken = "responder_connection_broken",
        /// The status is neither 200 nor 202.
        Status = "responder_status",
        /// The body is not JSON.
        NotJson = "responder_not_json",
        /// The JSON has no `reply`, or it is neither text nor null.
        NoReply = "responder_no_reply",
        /// The reply is too long, or the body could not be read to its end.
        TooLong = "responder_reply_too_long",
        /// There is no URL to call, or no key to sign the request with.
        NotConfigured = "responder_not_configured",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponderAnswer {
    /// `None` means that the responder has nothing to say.
    Reply(Option<String>),
    /// The responder answers later.
    Later,
    Problem(ResponderProblem),
}

/// Reads a responder's answer: 200 `{"reply": "…"}`, 200 `{"reply": null}`, or 202.
pub fn read_answer(status: u16, body: &[u8]) -> ResponderAnswer {
    match status {
        202 => ResponderAnswer::Later,
        200 => match serde_json::from_slice::<Value>(body) {
            Err(_) => ResponderAnswer::Problem(ResponderProblem::NotJson),
            // A missing `reply` is an error; only null means that there is nothing to say.
            Ok(answer) => match answer.get("reply").map(read_reply) {
                None => ResponderAnswer::Problem(ResponderProblem::NoReply),
                Some(Err(problem)) => ResponderAnswer::Problem(problem),
                Some(Ok(reply)) => ResponderAnswer::Reply(reply),
            },
        },
        _ => ResponderAnswer::Problem(ResponderProblem::Status),
    }
}

/// Reads a reply: text or null. `Ok(None)` means that there is nothing to say: null or blank text.
pub fn read_reply(value: &Value) -> Result<Option<String>, ResponderProblem> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.len() > LONGEST_REPLY => Err(ResponderProblem::TooLong),
        Value::String(text) => Ok(clean(text)),
        _ => Err(ResponderProblem::NoReply),
    }
}

fn clean(text: &str) -> Option<String> {
    let text = text.replace('\0', "");
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the texts of the messages that a reply is sent as, in order.
pub fn split(via: Via, text: &str) -> Vec<String> {
    match via {
        Via::Telegram => parts(text, TELEGRAM_UNITS),
        Via::Whatsapp | Via::Api => vec![text.to_owned()],
    }
}

/// Cuts the text after a paragraph, a line, a sentence or a word, and within a word only if there
/// is no other way.
fn parts(text: &str, limit: usize) -> Vec<String> {
    let (mut parts, mut rest) = (Vec::new(), text.trim());
    while units(rest) > limit {
        let longest = prefix_of(rest, limit);
        let (part, left) = rest.split_at(cut(longest));
        parts.push(part.trim_end().to_owned());
        rest = left.trim_start();
    }
    if !rest.is_empty() {
        parts.push(rest.to_owned());
    }
    parts
}

fn units(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// Returns the longest prefix that has at most `limit` units.
fn prefix_of(text: &str, limit: usize) -> &str {
    let mut left = limit;
    let end = text.char_indices().find(|(_, c)| match left.checked_sub(c.len_utf16()) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// Returns where to cut. A cut in the first half does not count, so that no part is very short.
fn cut(longest: &str) -> usize {
    let far_enough = longest.len() / 2;
    let after = |mark: &str| longest.rfind(mark).map(|at| at + mark.len()).filter(|at| *at > far_enough);
    after("\n\n").or_else(|| after("\n")).or_else(|| after(". ")).or_else(|| after(" ")).unwrap_or(longest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_answer_of_the_responder_is_recognized() {
        assert_eq!(read_answer(200, br#"{"reply": " Oi! "}"#), ResponderAnswer::Reply(Some("Oi!".into())));
        assert_eq!(read_answer(200, br#"{"reply": null, "why": "spam"}"#), ResponderAnswer::Reply(None));
        assert_eq!(read_answer(200, br#"{"reply": "  "}"#), ResponderAnswer::Reply(None));
        assert_eq!(read_answer(202, b""), ResponderAnswer::Later);
        for (status, body, problem) in [
            (200, &b"Oi"[..], ResponderProblem::NotJson),
            (200, b"{}", ResponderProblem::NoReply),
            (200, br#"{"reply": 7}"#, ResponderProblem::NoReply),
            (200, b"[]", ResponderProblem::NoReply),
            (404, br#"{"reply": "Oi"}"#, ResponderProblem::Status),
            (500, b"", ResponderProblem::Status),
            (301, b"", ResponderProblem::Status),
        ] {
            assert_eq!(read_answer(status, body), ResponderAnswer::Problem(problem), "{status}");
        }
        let of_length = |length| {
            let body = serde_json::json!({"reply": "x".repeat(length)}).to_string();
            read_answer(200, body.as_bytes())
        };
        assert_eq!(of_length(LONGEST_REPLY), ResponderAnswer::Reply(Some("x".repeat(LONGEST_REPLY))));
        assert_eq!(of_length(LONGEST_REPLY + 1), ResponderAnswer::Problem(ResponderProblem::TooLong));
    }

    #[test]
    fn a_reply_that_fits_is_one_message() {
        assert_eq!(split(Via::Telegram, "Oi\n\ntudo bem?"), ["Oi\n\ntudo bem?"]);
        assert_eq!(split(Via::Telegram, &"x".repeat(4_096)).len(), 1);
        let words = format!("{} {}", "a".repeat(4_000), "b".repeat(95));
        assert_eq!(split(Via::Telegram, &words), [words.as_str()], "a text of exactly the limit is not split");
        assert_eq!(split(Via::Api, &"x".repeat(9_000)).len(), 1);
    }

    #[test]
    fn a_long_reply_is_split_between_paragraphs_or_words() {
        let text = format!("{}\n\n{}", "a".repeat(3_000), "b".repeat(3_000));
        assert_eq!(split(Via::Telegram, &text), ["a".repeat(3_000), "b".repeat(3_000)]);
        let words = "palavra ".repeat(1_000);
        let parts = split(Via::Telegram, &words);
        assert_eq!(parts.join(" "), words.trim());
        assert!(parts.iter().all(|part| units(part) <= TELEGRAM_UNITS && part.ends_with("palavra")));
    }

    #[test]
    fn a_cut_in_the_first_half_does_not_count() {
        for (first, expected) in [(2_047, 4_096), (2_048, 2_048)] {
            let text = format!("{} {}", "a".repeat(first), "b".repeat(4_096));
            assert_eq!(split(Via::Telegram, &text)[0].len(), expected, "{first}");
        }
    }

    #[test]
    fn a_long_reply_without_spaces_is_split_without_loss() {
        let emoji = "😀".repeat(3_000);
        let parts = split(Via::Telegram, &emoji);
        assert_eq!(parts.concat(), emoji);
        assert!(parts.iter().all(|part| units(part) <= TELEGRAM_UNITS));
    }
}
