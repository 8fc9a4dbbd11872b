//! The Telegram Bot API (<https://core.telegram.org/bots/api>): the request that sends a message,
//! and the meaning of the answer.

pub mod html;
pub mod markdown_v2;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::channels::call::segment;
use crate::channels::content::{Telegram, TelegramMediaKind};
use crate::channels::{Channel, HttpCall, is_group};
use crate::codes::texts;
use crate::delivery;
use crate::delivery::{Outcome, ThrottleScope};

texts! {
    code {
        /// The user blocked the bot. Suppressed for this bot.
        BOT_BLOCKED = "bot_blocked",
        /// The user deleted the account. Suppressed.
        USER_DEACTIVATED = "user_deactivated",
        /// The bot was removed from the group. Suppressed for this bot.
        BOT_KICKED = "bot_kicked",
        /// The chat was deleted.
        CHAT_DELETED = "chat_deleted",
        /// The bot is not a member of the channel or group.
        BOT_NOT_MEMBER = "bot_not_member",
        /// The user never wrote to the bot. The address is not suppressed: messages succeed once
        /// the user writes to the bot.
        CONVERSATION_NOT_STARTED = "conversation_not_started",
        /// Telegram forbids the bot to write to the chat.
        FORBIDDEN = "chat_forbidden",
        /// Telegram knows no such chat.
        CHAT_NOT_FOUND = "chat_not_found",
        /// The group became a supergroup with another id.
        CHAT_MIGRATED = "chat_migrated",
        /// The bot may not send this to the chat.
        NO_RIGHTS = "bot_has_no_rights",
        /// Telegram cannot parse the formatting.
        ENTITIES_INVALID = "entities_invalid",
        /// The text is longer than Telegram allows.
        TOO_LONG = "message_too_long",
        /// The text is empty.
        EMPTY = "message_empty",
        /// Telegram refuses a button.
        BUTTON_INVALID = "button_invalid",
        /// Telegram cannot load the media from its URL.
        MEDIA_UNREACHABLE = "media_unreachable",
        /// Telegram refuses the token of the bot (401).
        BOT_UNAUTHORIZED = "bot_unauthorized",
    }
}

/// Builds the call that sends `content` to chat `to` (a number, or `@name`).
pub fn request(token: &str, to: &str, content: &Telegram) -> HttpCall {
    let mut body = json!({ "chat_id": chat_id(to) });
    let (method, text_field) = match content.media.as_ref().map(|media| media.kind) {
        None => ("sendMessage", "text"),
        Some(TelegramMediaKind::Photo) => ("sendPhoto", "caption"),
        Some(TelegramMediaKind::Video) => ("sendVideo", "caption"),
    };
    if let Some(media) = &content.media {
        body[media.kind.as_str()] = media.url.as_str().into();
    }
    if let Some(text) = &content.text {
        body[text_field] = text.as_str().into();
        if let Some(parse_mode) = content.parse_mode {
            body["parse_mode"] = parse_mode.as_str().into();
        }
    }
    if let Some(rows) = content.buttons.as_ref().filter(|rows| !rows.is_empty()) {
        body["reply_markup"] = json!({ "inline_keyboard": rows });
    }
    HttpCall::post_json(format!("/bot{}/{method}", segment(token)), &body)
}

fn chat_id(to: &str) -> Value {
    to.parse::<i64>().map_or_else(|_| Value::from(to), Value::from)
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

/// Classifies the answer to a message for chat `to`. Telegram does not say which limit a 429
/// applies to. The limit of a group is the lowest and is reached first, so a 429 for a group
/// throttles the group, and any other 429 throttles the bot.
pub fn classify_for(to: &str, status: u16, body: &[u8]) -> Outcome {
    match classify(status, body) {
        Outcome::Throttled { retry_after_ms, .. } if is_group(Channel::Telegram, to) => {
            Outcome::Throttled { retry_after_ms, scope: ThrottleScope::Chat }
        }
        outcome => outcome,
    }
}

/// Classifies an answer. A 4xx counts as a refusal only in Telegram's own envelope: a 404 page from
/// a proxy says nothing about the message. The exception is 429: the message was not sent, no
/// matter who answered.
fn classify(status: u16, body: &[u8]) -> Outcome {
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
        401 | 404 => Outcome::Unauthorized { code: code::BOT_UNAUTHORIZED },
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
        // A group where only administrators may write, or send this kind of media.
        ("chat_write_forbidden", code::NO_RIGHTS),
        ("chat_send_", code::NO_RIGHTS),
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
    use crate::channels::content::{self, Content};

    const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../../tests/data/providers/telegram_", $name, ".json"))
        };
    }

    fn content(value: Value) -> Telegram {
        serde_json::from_value(value).expect("a stored content")
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
    fn a_text_is_sent_with_send_message() {
        let content = content(json!({ "text": "*Oi*", "parse_mode": "MarkdownV2" }));
        let call = request(TOKEN, "987654321", &content);
        assert_eq!(call.method, "POST");
        assert_eq!(call.path, format!("/bot{TOKEN}/sendMessage"));
        assert_eq!(call.headers, [("content-type", "application/json".to_owned())]);
        assert_eq!(body(&call), json!({ "chat_id": 987654321, "text": "*Oi*", "parse_mode": "MarkdownV2" }));
        assert!(!format!("{call:?}").contains("AAHdq"));
    }

    #[test]
    fn a_photo_has_the_text_as_its_caption_and_buttons_below() {
        let content = content(json!({
            "text": "Hoje <b>só</b>",
            "parse_mode": "HTML",
            "media": { "kind": "photo", "url": "https://cdn.example/p.jpg" },
            "buttons": [
                [{ "text": "Comprar", "url": "https://example.com/buy" }],
                [{ "text": "Sair", "url": "https://example.com/stop" }],
            ],
        }));
        let call = request(TOKEN, "-1001234567890", &content);
        assert_eq!(call.path, format!("/bot{TOKEN}/sendPhoto"));
        let expected: Value = serde_json::from_slice(fixture!("request_photo")).expect("the fixture is JSON");
        assert_eq!(body(&call), expected);
    }

    #[test]
    fn a_video_without_text_has_neither_caption_nor_parse_mode() {
        let media = json!({ "kind": "video", "url": "https://cdn.example/v.mp4" });
        let content = content(json!({ "parse_mode": "HTML", "media": media }));
        let call = request(TOKEN, "@canal", &content);
        assert_eq!(call.path, format!("/bot{TOKEN}/sendVideo"));
        assert_eq!(body(&call), json!({ "chat_id": "@canal", "video": "https://cdn.example/v.mp4" }));
    }

    #[test]
    fn content_of_an_api_request_becomes_the_expected_telegram_call() {
        let asked = json!({
            "text": "<b>Oi</b>", "parse_mode": "HTML",
            "media": {"kind": "photo", "url": "https://cdn.example/p.jpg"},
            "buttons": [[{"text": "Comprar", "url": "https://example.com/buy"}]],
        });
        let mut errors = Vec::new();
        let read = content::read(Channel::Telegram, asked.as_object().expect("an object"), &mut errors);
        let Some(Content::Telegram(content)) = read else { panic!("{errors:?}") };
        let call = request("1:a", "42", &content);
        assert_eq!(call.path, "/bot1:a/sendPhoto");
        let sent = json!({
            "chat_id": 42, "photo": "https://cdn.example/p.jpg", "caption": "<b>Oi</b>", "parse_mode": "HTML",
            "reply_markup": {"inline_keyboard": [[{"text": "Comprar", "url": "https://example.com/buy"}]]},
        });
        assert_eq!(body(&call), sent);
    }

    #[test]
    fn a_429_for_a_group_throttles_that_group_and_not_the_bot() {
        let scope = |to| match classify_for(to, 429, fixture!("too_many_requests")) {
            Outcome::Throttled { retry_after_ms: 33_000, scope } => scope,
            other => panic!("{other:?}"),
        };
        assert_eq!(scope("-1001234567890"), ThrottleScope::Chat);
        assert_eq!(scope("987654321"), ThrottleScope::Bot);
    }

    #[test]
    fn the_message_id_of_an_accepted_message_is_its_provider_id() {
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
    fn a_429_waits_for_its_retry_after() {
        let throttled = Outcome::Throttled { retry_after_ms: 33_000, scope: ThrottleScope::Bot };
        assert_eq!(classify(429, fixture!("too_many_requests")), throttled);
    }

    #[test]
    fn a_429_without_retry_after_waits_one_second() {
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
    fn other_refusals_of_a_chat_do_not_suppress_the_recipient() {
        assert_eq!(refusal(403, "Forbidden: bot is not a member of the channel chat"), permanent("bot_not_member"));
        assert_eq!(refusal(403, "Forbidden: bot can't send messages to the user"), permanent("chat_forbidden"));
    }

    #[test]
    fn a_missing_chat_is_a_permanent_failure() {
        assert_eq!(classify(400, fixture!("chat_not_found")), permanent("chat_not_found"));
        assert_eq!(refusal(400, "Bad Request: PEER_ID_INVALID"), permanent("chat_not_found"));
        assert_eq!(refusal(400, "[Error]: Bad Request: user not found"), permanent("chat_not_found"));
    }

    #[test]
    fn broken_markup_is_a_permanent_failure_even_if_it_quotes_another_reason() {
        assert_eq!(classify(400, fixture!("cant_parse_entities")), permanent("entities_invalid"));
        let quoting = "Bad Request: can't parse entities: Unsupported start tag \"chat not found\" at byte offset 0";
        assert_eq!(refusal(400, quoting), permanent("entities_invalid"));
    }

    #[test]
    fn a_text_or_caption_that_is_too_long_is_a_permanent_failure() {
        assert_eq!(classify(400, fixture!("message_too_long")), permanent("message_too_long"));
        assert_eq!(refusal(400, "Bad Request: message caption is too long"), permanent("message_too_long"));
        assert_eq!(refusal(413, "Request Entity Too Large"), permanent("message_too_long"));
    }

    #[test]
    fn a_group_that_became_a_supergroup_is_a_permanent_failure() {
        assert_eq!(classify(400, fixture!("chat_migrated")), permanent("chat_migrated"));
        let only_in_parameters = br#"{"ok":false,"description":"new","parameters":{"migrate_to_chat_id":-100}}"#;
        assert_eq!(classify(400, only_in_parameters), permanent("chat_migrated"));
    }

    #[test]
    fn refused_content_and_missing_rights_have_their_codes() {
        for (description, code) in [
            ("Bad Request: message text is empty", "message_empty"),
            ("Bad Request: BUTTON_URL_INVALID", "button_invalid"),
            ("Bad Request: not enough rights to send photos to the chat", "bot_has_no_rights"),
            ("Bad Request: CHAT_WRITE_FORBIDDEN", "bot_has_no_rights"),
            ("Bad Request: CHAT_SEND_PHOTOS_FORBIDDEN", "bot_has_no_rights"),
            ("Bad Request: wrong file identifier/HTTP URL specified", "media_rejected"),
            ("Bad Request: wrong type of the web page content", "media_rejected"),
            ("Bad Request: something new", "provider_rejected"),
        ] {
            assert_eq!(refusal(400, description), permanent(code), "{description}");
        }
    }

    #[test]
    fn media_that_telegram_could_not_fetch_is_retried() {
        let outcome = refusal(400, "Bad Request: failed to get HTTP URL content");
        assert_eq!(outcome, Outcome::Transient { code: "media_unreachable" });
    }

    #[test]
    fn a_bad_token_is_unauthorized_and_suppresses_no_recipient() {
        assert_eq!(classify(401, fixture!("unauthorized")), Outcome::Unauthorized { code: "bot_unauthorized" });
        assert_eq!(classify(404, fixture!("not_found")), Outcome::Unauthorized { code: "bot_unauthorized" });
    }

    #[test]
    fn a_refusal_that_does_not_come_from_telegram_is_unknown() {
        for status in [301, 400, 403, 404, 408] {
            for body in [&b"<html><title>Not Found</title></html>"[..], fixture!("sent")] {
                let outcome = classify(status, body);
                assert_eq!(outcome, Outcome::Unknown { code: "provider_answer_unexpected" }, "{status}");
            }
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
