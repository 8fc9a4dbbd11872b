//! The Evolution API for WhatsApp (<https://doc.evolution-api.com>, version 2): the request that
//! sends a message, and the meaning of the answer.
//!
//! A 400 alone is not a refusal here. The server turns every error that occurs while or *after* it
//! sends (including errors of its database) into a 400 with the text of the exception. So it can
//! answer 400 for a message that it delivered: see issues 978 and 1247 of evolution-api. Only for
//! the 400s that the server raises before it sends is it known that nothing was sent.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::channels::HttpCall;
use crate::channels::call::segment;
use crate::channels::content::{Whatsapp, WhatsappMedia, WhatsappMediaKind};
use crate::codes::texts;
use crate::delivery;
use crate::delivery::{Outcome, ThrottleScope};

texts! {
    code {
        /// The number has no WhatsApp account.
        NOT_ON_WHATSAPP = "not_on_whatsapp",
        /// The server refuses the API key of the instance.
        INSTANCE_UNAUTHORIZED = "instance_unauthorized",
        /// The server has no such instance.
        INSTANCE_UNKNOWN = "instance_unknown",
        /// The server failed while it sent the message, or after that.
        FAILED_SENDING = "provider_failed_sending",
    }
}

/// Builds the call that sends `content` from `instance` to `to` (a number with country code, or a
/// JID).
pub fn request(instance: &str, api_key: &str, to: &str, content: &Whatsapp) -> HttpCall {
    let number = to.strip_prefix('+').unwrap_or(to);
    let text = content.text.as_deref();
    let (method, body) = match &content.media {
        None => ("sendText", json!({ "number": number, "text": text.unwrap_or_default() })),
        Some(media) => ("sendMedia", media_body(number, text, media)),
    };
    let mut call = HttpCall::post_json(format!("/message/{method}/{}", segment(instance)), &body);
    call.headers.push(("apikey", api_key.to_owned()));
    call
}

/// Builds the body for media. Without a file name, the server guesses one from the URL. Some of its
/// versions refuse a document if the URL contains none.
fn media_body(number: &str, caption: Option<&str>, media: &WhatsappMedia) -> Value {
    let mut body = json!({ "number": number, "mediatype": media.kind, "media": media.url });
    let default_name = (media.kind == WhatsappMediaKind::Document).then_some("document");
    let file_name = media.file_name.as_deref().or(default_name);
    for (field, value) in [("mimetype", media.mimetype.as_deref()), ("caption", caption), ("fileName", file_name)] {
        if let Some(value) = value {
            body[field] = value.into();
        }
    }
    body
}

#[derive(Deserialize)]
struct Accepted {
    key: Key,
}

#[derive(Deserialize)]
struct Key {
    id: String,
}

#[derive(Deserialize)]
struct Refused {
    response: Reasons,
}

#[derive(Deserialize)]
struct Reasons {
    message: Value,
}

/// Classifies an answer. `retry_after` is the header of that name: Evolution has no rate limit of
/// its own, so a 429 comes from a proxy in front of it.
pub fn classify(status: u16, retry_after: Option<&str>, body: &[u8]) -> Outcome {
    match status {
        200 | 201 => accepted(body),
        400 => bad_request(body),
        // The message itself is valid: it can still be sent if an operator fixes the key in time.
        401 | 403 => Outcome::Unauthorized { code: code::INSTANCE_UNAUTHORIZED },
        404 => Outcome::Permanent { code: code::INSTANCE_UNKNOWN, suppress: false },
        429 => {
            // The header can also be a date. It is ignored, because this function has no clock.
            let seconds = retry_after.and_then(|value| value.trim().parse().ok());
            Outcome::Throttled { retry_after_ms: delivery::retry_after_ms(seconds), scope: ThrottleScope::Bot }
        }
        _ => delivery::of_unexpected(status),
    }
}

fn accepted(body: &[u8]) -> Outcome {
    match serde_json::from_slice::<Accepted>(body) {
        Ok(accepted) if !accepted.key.id.is_empty() => Outcome::Sent { provider_id: accepted.key.id },
        _ => Outcome::Unknown { code: delivery::code::UNREADABLE },
    }
}

fn bad_request(body: &[u8]) -> Outcome {
    let Ok(refused) = serde_json::from_slice::<Refused>(body) else {
        return Outcome::Unknown { code: delivery::code::UNREADABLE };
    };
    let reason = match &refused.response.message {
        Value::Array(reasons) => reasons.first().unwrap_or(&Value::Null),
        reason => reason,
    };
    match reason {
        Value::Object(number) if number.get("exists") == Some(&Value::Bool(false)) => {
            Outcome::Permanent { code: code::NOT_ON_WHATSAPP, suppress: true }
        }
        // An inner list contains the errors of the request's schema check.
        Value::Array(_) => Outcome::Permanent { code: delivery::code::REJECTED, suppress: false },
        Value::String(text) => of_text(text),
        _ => Outcome::Unknown { code: code::FAILED_SENDING },
    }
}

/// Classifies the text of a 400. The listed texts are those that the server raises before it sends;
/// any other text comes from an exception.
fn of_text(text: &str) -> Outcome {
    match text {
        "Text is required" => Outcome::Permanent { code: delivery::code::REJECTED, suppress: false },
        "Owned media must be a url or base64" | "For base64 the file name must be informed." => {
            Outcome::Permanent { code: delivery::code::MEDIA_REJECTED, suppress: false }
        }
        _ => Outcome::Unknown { code: code::FAILED_SENDING },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::Channel;
    use crate::channels::content::{self, Content};

    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../../../tests/data/providers/evolution_", $name, ".json"))
        };
    }

    fn content(value: Value) -> Whatsapp {
        serde_json::from_value(value).expect("a stored content")
    }

    fn body(call: &HttpCall) -> Value {
        serde_json::from_str(&call.body).expect("a request body is JSON")
    }

    fn permanent(code: &'static str) -> Outcome {
        Outcome::Permanent { code, suppress: false }
    }

    #[test]
    fn a_text_is_sent_with_send_text() {
        let content = content(json!({ "text": "Oi" }));
        let call = request("minha loja", "s3cret", "+5511999999999", &content);
        assert_eq!(call.method, "POST");
        assert_eq!(call.path, "/message/sendText/minha%20loja");
        let headers = [("content-type", "application/json".to_owned()), ("apikey", "s3cret".to_owned())];
        assert_eq!(call.headers, headers);
        assert_eq!(body(&call), json!({ "number": "5511999999999", "text": "Oi" }));
        assert!(!format!("{call:?}").contains("s3cret"));
    }

    #[test]
    fn media_is_sent_with_send_media_and_the_text_as_its_caption() {
        let media = json!({
            "kind": "image", "url": "https://cdn.example/p.png", "mimetype": "image/png", "file_name": "p.png",
        });
        let content = content(json!({ "text": "Hoje só", "media": media }));
        let call = request("loja", "s3cret", "5511999999999", &content);
        assert_eq!(call.path, "/message/sendMedia/loja");
        let expected: Value = serde_json::from_slice(fixture!("request_media")).expect("the fixture is JSON");
        assert_eq!(body(&call), expected);
    }

    #[test]
    fn absent_fields_of_media_are_left_out() {
        let content = content(json!({ "media": { "kind": "video", "url": "https://cdn.example/v.mp4" } }));
        let call = request("loja", "s3cret", "120363040000000000@g.us", &content);
        let expected =
            json!({ "number": "120363040000000000@g.us", "mediatype": "video", "media": "https://cdn.example/v.mp4" });
        assert_eq!(body(&call), expected);
    }

    #[test]
    fn content_of_an_api_request_becomes_the_expected_evolution_call() {
        let asked = json!({"text": "o contrato", "media": {"kind": "document", "url": "https://cdn.example/c"}});
        let mut errors = Vec::new();
        let read = content::read(Channel::Whatsapp, asked.as_object().expect("an object"), &mut errors);
        let Some(Content::Whatsapp(content)) = read else { panic!("{errors:?}") };
        let call = request("loja", "k", "5511912345678", &content);
        assert_eq!(call.path, "/message/sendMedia/loja");
        let sent = json!({
            "number": "5511912345678", "mediatype": "document", "media": "https://cdn.example/c",
            "caption": "o contrato", "fileName": "document",
        });
        assert_eq!(body(&call), sent);
    }

    #[test]
    fn the_key_of_an_accepted_message_is_its_provider_id() {
        let sent = |id: &str| Outcome::Sent { provider_id: id.to_owned() };
        assert_eq!(classify(201, None, fixture!("sent_text")), sent("BAE594145F4C59B4"));
        assert_eq!(classify(200, None, fixture!("sent_text")), sent("BAE594145F4C59B4"));
        assert_eq!(classify(201, None, fixture!("sent_media")), sent("BAE5F5A632EAE722"));
    }

    #[test]
    fn an_acceptance_without_a_key_is_unknown() {
        for body in [&b""[..], b"{}", br#"{"key":{}}"#, br#"{"key":{"id":""}}"#, br#"{"error":{"code":131026}}"#] {
            let outcome = classify(201, None, body);
            assert_eq!(outcome, Outcome::Unknown { code: "provider_answer_unreadable" });
        }
    }

    #[test]
    fn a_number_that_is_not_on_whatsapp_is_suppressed() {
        let suppressing = Outcome::Permanent { code: "not_on_whatsapp", suppress: true };
        assert_eq!(classify(400, None, fixture!("not_on_whatsapp")), suppressing);
        assert_eq!(classify(400, None, fixture!("not_on_whatsapp_lid")), suppressing);
    }

    #[test]
    fn a_request_that_violates_the_schema_is_a_permanent_failure() {
        assert_eq!(classify(400, None, fixture!("schema_rejected")), permanent("provider_rejected"));
        let no_text = br#"{"response":{"message":["Text is required"]}}"#;
        assert_eq!(classify(400, None, no_text), permanent("provider_rejected"));
    }

    #[test]
    fn media_that_is_not_a_url_is_a_permanent_failure() {
        assert_eq!(classify(400, None, fixture!("media_rejected")), permanent("media_rejected"));
    }

    #[test]
    fn a_400_raised_after_the_message_left_is_unknown() {
        let unknown = Outcome::Unknown { code: "provider_failed_sending" };
        assert_eq!(classify(400, None, fixture!("database_failed")), unknown);
    }

    #[test]
    fn a_400_that_does_not_report_the_number_as_missing_suppresses_no_recipient() {
        let unknown = Outcome::Unknown { code: "provider_failed_sending" };
        for number in [json!({ "exists": true }), json!({ "number": "5511999999999" })] {
            let body = json!({ "response": { "message": [number] } }).to_string();
            assert_eq!(classify(400, None, body.as_bytes()), unknown, "{body}");
        }
    }

    #[test]
    fn a_400_for_a_closed_connection_is_unknown() {
        let unknown = Outcome::Unknown { code: "provider_failed_sending" };
        assert_eq!(classify(400, None, fixture!("connection_closed")), unknown);
    }

    #[test]
    fn a_400_that_cannot_be_read_is_unknown() {
        let outcome = classify(400, None, b"<html>400 Bad Request</html>");
        assert_eq!(outcome, Outcome::Unknown { code: "provider_answer_unreadable" });
    }

    #[test]
    fn a_bad_api_key_is_unauthorized() {
        assert_eq!(
            classify(401, None, fixture!("unauthorized")),
            Outcome::Unauthorized { code: "instance_unauthorized" }
        );
        assert_eq!(classify(403, None, b""), Outcome::Unauthorized { code: "instance_unauthorized" });
    }

    #[test]
    fn an_unknown_instance_is_a_permanent_failure() {
        assert_eq!(classify(404, None, fixture!("instance_unknown")), permanent("instance_unknown"));
    }

    #[test]
    fn a_429_waits_for_its_retry_after_or_else_one_second() {
        let throttled = |retry_after_ms| Outcome::Throttled { retry_after_ms, scope: ThrottleScope::Bot };
        assert_eq!(classify(429, Some("33"), b""), throttled(33_000));
        assert_eq!(classify(429, Some("Wed, 21 Oct 2026 07:28:00 GMT"), b""), throttled(1_000));
        assert_eq!(classify(429, None, b""), throttled(1_000));
    }

    #[test]
    fn a_server_error_is_unknown() {
        let unknown = Outcome::Unknown { code: "provider_server_error" };
        assert_eq!(classify(500, None, fixture!("internal_server_error")), unknown);
        assert_eq!(classify(502, None, b""), unknown);
    }

    #[test]
    fn an_undocumented_status_is_unknown() {
        for status in [202, 302, 408, 413] {
            let outcome = classify(status, None, b"");
            assert_eq!(outcome, Outcome::Unknown { code: "provider_answer_unexpected" }, "{status}");
        }
    }
}
