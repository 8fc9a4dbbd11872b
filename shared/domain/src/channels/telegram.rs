//! The Telegram Bot API (<https://core.telegram.org/bots/api>): the request that sends a message,
//! and the meaning of the answer.

pub mod html;
pub mod markdown_v2;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::channels::HttpCall;
use crate::channels::call::segment;
use crate::delivery;
use crate::delivery::{Outcome, ThrottleScope};

pub mod code {
    pub const BOT_BLOCKED: &str = "bot_blocked";
    pub const USER_DEACTIVATED: &str = "user_deactivated";
    pub const BOT_KICKED: &str = "bot_kicked";
    pub const CHAT_DELETED: &str = "chat_deleted";
    pub const BOT_NOT_MEMBER: &str = "bot_not_member";
    /// The user never wrote to the bot. The address is not suppressed: messages succeed once the
    /// user writes to the bot.
    pub const CONVERSATION_NOT_STARTED: &str = "conversation_not_started";
    pub const FORBIDDEN: &str = "chat_forbidden";
    pub const CHAT_NOT_FOUND: &str = "chat_not_found";
    pub const CHAT_MIGRATED: &str = "chat_migrated";
    pub const NO_RIGHTS: &str = "bot_has_no_rights";
    pub const ENTITIES_INVALID: &str = "entities_invalid";
    pub const TOO_LONG: &str = "message_too_long";
    pub const EMPTY: &str = "message_empty";
    pub const BUTTON_INVALID: &str = "button_invalid";
    pub const MEDIA_UNREACHABLE: &str = "media_unreachable";
    pub const BOT_UNAUTHORIZED: &str = "bot_unauthorized";

    pub const ALL: &[&str] = &[
        BOT_BLOCKED,
        USER_DEACTIVATED,
        BOT_KICKED,
        CHAT_DELETED,
        BOT_NOT_MEMBER,
        CONVERSATION_NOT_STARTED,
        FORBIDDEN,
        CHAT_NOT_FOUND,
        CHAT_MIGRATED,
        NO_RIGHTS,
        ENTITIES_INVALID,
        TOO_LONG,
        EMPTY,
        BUTTON_INVALID,
        MEDIA_UNREACHABLE,
        BOT_UNAUTHORIZED,
    ];
}

/// A message's content. With media, `text` is the caption.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TelegramContent<'a> {
    pub text: Option<&'a str>,
    pub parse_mode: Option<&'a str>,
    pub media: Option<(MediaKind, &'a str)>,
    /// The rows of the inline keyboard. If empty, the message has no keyboard.
    pub buttons: Vec<Vec<Button<'a>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    Photo,
    Video,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Button<'a> {
    pub text: &'a str,
    pub action: ButtonAction<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ButtonAction<'a> {
    Url(&'a str),
    CallbackData(&'a str),
}

/// Builds the call that sends `content` to chat `to` (a number, or `@name`).
pub fn request(token: &str, to: &str, content: &TelegramContent<'_>) -> HttpCall {
    let mut body = Map::new();
    body.insert("chat_id".to_owned(), chat_id(to));
    let (method, text_field) = match content.media {
        None => ("sendMessage", "text"),
        Some((MediaKind::Photo, url)) => {
            body.insert("photo".to_owned(), url.into());
            ("sendPhoto", "caption")
        }
        Some((MediaKind::Video, url)) => {
            body.insert("video".to_owned(), url.into());
            ("sendVideo", "caption")
        }
    };
    if let Some(text) = content.text {
        body.insert(text_field.to_owned(), text.into());
        if let Some(parse_mode) = content.parse_mode {
            body.insert("parse_mode".to_owned(), parse_mode.into());
        }
    }
    if !content.buttons.is_empty() {
        let rows: Vec<Vec<Value>> = content.buttons.iter().map(|row| row.iter().map(button).collect()).collect();
        body.insert("reply_markup".to_owned(), json!({ "inline_keyboard": rows }));
    }
    HttpCall::post_json(format!("/bot{}/{method}", segment(token)), &Value::Object(body))
}

fn chat_id(to: &str) -> Value {
    to.parse::<i64>().map_or_else(|_| Value::from(to), Value::from)
}

fn button(button: &Button<'_>) -> Value {
    match button.action {
        ButtonAction::Url(url) => json!({ "text": button.text, "url": url }),
        ButtonAction::CallbackData(data) => json!({ "text": button.text, "callback_data": data }),
    }
}

#[derive(Deserialize)]
struct Answer {
    ok: bool,
    result: Option<Message>,
    #[serde(default)]
    description: String,
    parameters: Option<Parameters>,
}

#[derive(Deserialize)]
struct Message {
    message_id: i64,
}

#[derive(Deserialize)]
struct Parameters {
    retry_after: Option<i64>,
    migrate_to_chat_id: Option<i64>,
}

/// Classifies an answer. A 4xx counts as a refusal only in Telegram's own envelope: a 404 page from
/// a proxy says nothing about the message. The exception is 429: the message was not sent, no
/// matter who answered.
pub fn classify(status: u16, body: &[u8]) -> Outcome {
    let answer = serde_json::from_slice::<Answer>(body).ok();
    match (status, answer) {
        (200, Some(Answer { ok: true, result: Some(message), .. })) => {
            Outcome::Sent { provider_id: message.message_id.to_string() }
        }
        (200, _) => Outcome::Unknown { code: delivery::code::UNREADABLE },
        (429, answer) => throttled(answer.and_then(|answer| answer.parameters)),
        (400..=499, Some(answer)) if !answer.ok => refused(status, &answer),
        _ => delivery::of_unexpected(status),
    }
}

/// Telegram does not say whether the bot or the chat exceeded its limit, so the wider scope, the
/// bot, is throttled.
fn throttled(parameters: Option<Parameters>) -> Outcome {
    let seconds = parameters.and_then(|parameters| parameters.retry_after);
    Outcome::Throttled { retry_after_ms: delivery::retry_after_ms(seconds), scope: ThrottleScope::Bot }
}

fn refused(status: u16, answer: &Answer) -> Outcome {
    let description = reason(&answer.description);
    let migrated = answer.parameters.as_ref().is_some_and(|parameters| parameters.migrate_to_chat_id.is_some());
    match status {
        400 if migrated => Outcome::Permanent { code: code::CHAT_MIGRATED, suppress: false },
        400 => bad_request(&description),
        // The message itself is valid: it can still be sent if an operator fixes the token in time.
        401 | 404 => Outcome::Transient { code: code::BOT_UNAUTHORIZED },
        403 => forbidden(&description),
        413 => Outcome::Permanent { code: code::TOO_LONG, suppress: false },
        _ => delivery::of_unexpected(status),
    }
}

/// Returns the description without its class ("Forbidden: ", "[Error]: Bad Request: "), in lower
/// case.
fn reason(description: &str) -> String {
    let description = description.to_ascii_lowercase();
    let mut reason = description.as_str();
    for class in ["[error]: ", "bad request: ", "forbidden: "] {
        reason = reason.strip_prefix(class).unwrap_or(reason);
    }
    reason.to_owned()
}

/// Maps a description to a code by its first words: the rest may quote the message.
fn bad_request(reason: &str) -> Outcome {
    const CODES: &[(&str, &str)] = &[
        ("can't parse entities", code::ENTITIES_INVALID),
        ("can't parse message", code::ENTITIES_INVALID),
        ("message is too long", code::TOO_LONG),
        ("message caption is too long", code::TOO_LONG),
        ("text is too long", code::TOO_LONG),
        ("entities too long", code::TOO_LONG),
        ("message text is empty", code::EMPTY),
        ("text must be non-empty", code::EMPTY),
        ("chat not found", code::CHAT_NOT_FOUND),
        ("user not found", code::CHAT_NOT_FOUND),
        ("chat_id is empty", code::CHAT_NOT_FOUND),
        ("peer_id_invalid", code::CHAT_NOT_FOUND),
        ("group chat was upgraded", code::CHAT_MIGRATED),
        ("group chat was migrated", code::CHAT_MIGRATED),
        ("group is deactivated", code::CHAT_DELETED),
        ("not enough rights", code::NO_RIGHTS),
        ("have no rights", code::NO_RIGHTS),
        ("need administrator rights", code::NO_RIGHTS),
        ("button_", code::BUTTON_INVALID),
        ("inline keyboard button", code::BUTTON_INVALID),
        ("can't parse inline keyboard button", code::BUTTON_INVALID),
        ("wrong file identifier", delivery::code::MEDIA_REJECTED),
        ("wrong remote file", delivery::code::MEDIA_REJECTED),
        ("invalid file id", delivery::code::MEDIA_REJECTED),
        ("wrong type of the web page content", delivery::code::MEDIA_REJECTED),
        ("file is too big", delivery::code::MEDIA_REJECTED),
    ];
    // Telegram fetches the media itself; the media's host may be back at the next attempt.
    if reason.starts_with("failed to get http url content") {
        return Outcome::Transient { code: code::MEDIA_UNREACHABLE };
    }
    let code =
        CODES.iter().find(|(start, _)| reason.starts_with(start)).map_or(delivery::code::REJECTED, |(_, code)| code);
    Outcome::Permanent { code, suppress: code == code::CHAT_DELETED }
}

fn forbidden(reason: &str) -> Outcome {
    const CODES: &[(&str, &str, bool)] = &[
        ("bot was blocked by the user", code::BOT_BLOCKED, true),
        ("user is deactivated", code::USER_DEACTIVATED, true),
        ("bot was kicked", code::BOT_KICKED, true),
        ("the group chat was deleted", code::CHAT_DELETED, true),
        ("bot is not a member", code::BOT_NOT_MEMBER, false),
        ("bot can't initiate conversation", code::CONVERSATION_NOT_STARTED, false),
    ];
    // A description that is not listed never suppresses: "bot can't send messages to the user" has
    // been seen to go away without any action.
    let (code, suppress) = CODES
        .iter()
        .find(|(start, ..)| reason.starts_with(start))
        .map_or((code::FORBIDDEN, false), |(_, code, suppress)| (*code, *suppress));
    Outcome::Permanent { code, suppress }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../../tests/data/providers/telegram_", $name, ".json"))
        };
    }

    fn body(call: &HttpCall) -> Value {
        serde_json::from_str(&call.body).expect("a request body is JSON")
    }

    fn refusal(status: u16, description: &str) -> Outcome {
        let answer = json!({ "ok": false, "error_code": status, "description": description });
        classify(status, answer.to_string().as_bytes())
    }

    fn permanent(code: &'static str) -> Outcome {
        Outcome::Permanent { code, suppress: false }
    }

    fn suppressing(code: &'static str) -> Outcome {
        Outcome::Permanent { code, suppress: true }
    }

    #[test]
    fn a_text_goes_out_by_send_message() {
        let content = TelegramContent { text: Some("*Oi*"), parse_mode: Some("MarkdownV2"), ..Default::default() };
        let call = request(TOKEN, "987654321", &content);
        assert_eq!(call.method, "POST");
        assert_eq!(call.path, format!("/bot{TOKEN}/sendMessage"));
        assert_eq!(call.headers, [("content-type", "application/json".to_owned())]);
        assert_eq!(body(&call), json!({ "chat_id": 987654321, "text": "*Oi*", "parse_mode": "MarkdownV2" }));
        assert!(!format!("{call:?}").contains("AAHdq"));
    }

    #[test]
    fn a_photo_has_the_text_as_its_caption_and_buttons_below() {
        let content = TelegramContent {
            text: Some("Hoje <b>só</b>"),
            parse_mode: Some("HTML"),
            media: Some((MediaKind::Photo, "https://cdn.example/p.jpg")),
            buttons: vec![
                vec![Button { text: "Comprar", action: ButtonAction::Url("https://example.com/buy") }],
                vec![Button { text: "Sair", action: ButtonAction::CallbackData("stop") }],
            ],
        };
        let call = request(TOKEN, "-1001234567890", &content);
        assert_eq!(call.path, format!("/bot{TOKEN}/sendPhoto"));
        let expected: Value = serde_json::from_slice(fixture!("request_photo")).expect("the fixture is JSON");
        assert_eq!(body(&call), expected);
    }

    #[test]
    fn a_video_without_text_has_neither_caption_nor_parse_mode() {
        let content = TelegramContent {
            parse_mode: Some("HTML"),
            media: Some((MediaKind::Video, "https://cdn.example/v.mp4")),
            ..Default::default()
        };
        let call = request(TOKEN, "@canal", &content);
        assert_eq!(call.path, format!("/bot{TOKEN}/sendVideo"));
        assert_eq!(body(&call), json!({ "chat_id": "@canal", "video": "https://cdn.example/v.mp4" }));
    }

    #[test]
    fn an_accepted_message_is_sent_under_its_message_id() {
        assert_eq!(classify(200, fixture!("sent")), Outcome::Sent { provider_id: "1365".to_owned() });
    }

    #[test]
    fn a_200_that_cannot_be_read_is_unknown() {
        let unknown = Outcome::Unknown { code: "provider_answer_unreadable" };
        let cut = fixture!("sent").get(..40).expect("the fixture is longer");
        for body in [&b""[..], b"<html>", cut, br#"{"ok":true}"#, br#"{"ok":true,"result":true}"#, br#"{"ok":false}"#] {
            assert_eq!(classify(200, body), unknown, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn a_429_waits_as_long_as_it_says() {
        let throttled = Outcome::Throttled { retry_after_ms: 33_000, scope: ThrottleScope::Bot };
        assert_eq!(classify(429, fixture!("too_many_requests")), throttled);
    }

    #[test]
    fn a_429_that_does_not_say_waits_a_second() {
        let throttled = Outcome::Throttled { retry_after_ms: 1_000, scope: ThrottleScope::Bot };
        assert_eq!(classify(429, b""), throttled);
        assert_eq!(refusal(429, "Too Many Requests"), throttled);
    }

    #[test]
    fn a_user_who_blocked_the_bot_is_suppressed() {
        assert_eq!(classify(403, fixture!("bot_blocked")), suppressing("bot_blocked"));
    }

    #[test]
    fn a_deactivated_user_is_suppressed() {
        assert_eq!(classify(403, fixture!("user_deactivated")), suppressing("user_deactivated"));
    }

    #[test]
    fn a_group_that_kicked_the_bot_is_suppressed() {
        assert_eq!(classify(403, fixture!("bot_kicked")), suppressing("bot_kicked"));
        assert_eq!(refusal(403, "Forbidden: bot was kicked from the channel chat"), suppressing("bot_kicked"));
    }

    #[test]
    fn a_deleted_group_is_suppressed() {
        assert_eq!(refusal(403, "Forbidden: the group chat was deleted"), suppressing("chat_deleted"));
        assert_eq!(refusal(400, "Bad Request: group is deactivated"), suppressing("chat_deleted"));
    }

    #[test]
    fn a_user_who_never_wrote_to_the_bot_is_not_suppressed() {
        assert_eq!(classify(403, fixture!("cant_initiate")), permanent("conversation_not_started"));
    }

    #[test]
    fn other_refusals_of_a_chat_do_not_suppress_it() {
        assert_eq!(refusal(403, "Forbidden: bot is not a member of the channel chat"), permanent("bot_not_member"));
        assert_eq!(refusal(403, "Forbidden: bot can't send messages to the user"), permanent("chat_forbidden"));
    }

    #[test]
    fn a_chat_that_does_not_exist_is_permanent() {
        assert_eq!(classify(400, fixture!("chat_not_found")), permanent("chat_not_found"));
        assert_eq!(refusal(400, "Bad Request: PEER_ID_INVALID"), permanent("chat_not_found"));
        assert_eq!(refusal(400, "[Error]: Bad Request: user not found"), permanent("chat_not_found"));
    }

    #[test]
    fn broken_markup_is_permanent_even_when_it_quotes_another_reason() {
        assert_eq!(classify(400, fixture!("cant_parse_entities")), permanent("entities_invalid"));
        let quoting = "Bad Request: can't parse entities: Unsupported start tag \"chat not found\" at byte offset 0";
        assert_eq!(refusal(400, quoting), permanent("entities_invalid"));
    }

    #[test]
    fn a_text_or_caption_that_is_too_long_is_permanent() {
        assert_eq!(classify(400, fixture!("message_too_long")), permanent("message_too_long"));
        assert_eq!(refusal(400, "Bad Request: message caption is too long"), permanent("message_too_long"));
        assert_eq!(refusal(413, "Request Entity Too Large"), permanent("message_too_long"));
    }

    #[test]
    fn a_group_that_became_a_supergroup_is_permanent() {
        assert_eq!(classify(400, fixture!("chat_migrated")), permanent("chat_migrated"));
    }

    #[test]
    fn content_and_rights_refused_have_their_codes() {
        for (description, code) in [
            ("Bad Request: message text is empty", "message_empty"),
            ("Bad Request: BUTTON_URL_INVALID", "button_invalid"),
            ("Bad Request: not enough rights to send photos to the chat", "bot_has_no_rights"),
            ("Bad Request: wrong file identifier/HTTP URL specified", "media_rejected"),
            ("Bad Request: wrong type of the web page content", "media_rejected"),
            ("Bad Request: something new", "provider_rejected"),
        ] {
            assert_eq!(refusal(400, description), permanent(code), "{description}");
        }
    }

    #[test]
    fn media_that_telegram_could_not_fetch_is_tried_again() {
        let outcome = refusal(400, "Bad Request: failed to get HTTP URL content");
        assert_eq!(outcome, Outcome::Transient { code: "media_unreachable" });
    }

    #[test]
    fn a_bad_token_is_permanent_and_suppresses_nobody() {
        assert_eq!(classify(401, fixture!("unauthorized")), Outcome::Transient { code: "bot_unauthorized" });
        assert_eq!(classify(404, fixture!("not_found")), Outcome::Transient { code: "bot_unauthorized" });
    }

    #[test]
    fn a_refusal_that_is_not_telegrams_own_is_unknown() {
        for status in [301, 400, 403, 404, 408] {
            let outcome = classify(status, b"<html><title>Not Found</title></html>");
            assert_eq!(outcome, Outcome::Unknown { code: "provider_answer_unexpected" }, "{status}");
        }
        assert_eq!(refusal(409, "Conflict"), Outcome::Unknown { code: "provider_answer_unexpected" });
    }

    #[test]
    fn a_server_error_is_unknown() {
        let unknown = Outcome::Unknown { code: "provider_server_error" };
        assert_eq!(classify(500, fixture!("internal_server_error")), unknown);
        assert_eq!(classify(502, b"<html>502 Bad Gateway</html>"), unknown);
        assert_eq!(classify(504, fixture!("sent")), unknown);
    }
}
