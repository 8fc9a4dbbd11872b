//! Parses the content of a message from a request, per channel. The checks accept only what the
//! provider accepts, so that invalid content fails the caller's request and not an attempt hours
//! later.

mod types;

use serde_json::{Map, Value};

pub use self::types::{
    Button, Content, Email, ParseMode, Telegram, TelegramMedia, TelegramMediaKind, Whatsapp, WhatsappMedia,
    WhatsappMediaKind,
};
use crate::channels::telegram::{html, markdown_v2};
use crate::channels::{Channel, normalize_to};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};

/// Telegram counts visible text in UTF-16 code units.
const TELEGRAM_TEXT: usize = 4096;
const TELEGRAM_CAPTION: usize = 1024;
/// The maximum size in bytes of a text with its markup.
const TELEGRAM_SOURCE: usize = 32 * 1024;
const TELEGRAM_BUTTONS: usize = 100;
const TELEGRAM_BUTTONS_IN_ROW: usize = 8;
const TELEGRAM_BUTTON_TEXT: usize = 256;
const WHATSAPP_TEXT: usize = 65_536;
const FILE_NAME: usize = 255;
const MIMETYPE: usize = 127;
const EMAIL_SUBJECT: usize = 998;
const EMAIL_BODY: usize = 200 * 1024;
const EMAIL_MAILBOX: usize = 320;
const URL: usize = 2048;

/// Reads a request's `content`. Adds each problem to `errors`, with a path that starts with
/// `content`. `None` if there is a problem.
pub fn read(channel: Channel, object: &Map<String, Value>, errors: &mut Vec<FieldError>) -> Option<Content> {
    let mut fields = Fields::of(object);
    let content = match channel {
        Channel::Email => read_email(&mut fields).map(Content::Email),
        Channel::Telegram => read_telegram(&mut fields).map(Content::Telegram),
        Channel::Whatsapp => read_whatsapp(&mut fields).map(Content::Whatsapp),
    };
    let named = |error: FieldError| FieldError { field: format!("content.{}", error.field), ..error };
    fields.finish(content).map_err(|found| errors.extend(found.into_iter().map(named))).ok()
}

/// Reads the content of an email. Mailings use the same content and the same checks.
pub(crate) fn read_email(fields: &mut Fields<'_>) -> Option<Email> {
    let from = fields.text("from");
    let subject = fields.text("subject");
    let text = body(fields, "text");
    let html = body(fields, "html");
    let reply_to = fields.optional_text("reply_to");
    if let Some(subject) = subject {
        header(fields, "subject", subject, EMAIL_SUBJECT);
    }
    for (name, mailbox) in [("from", from), ("reply_to", reply_to)] {
        let Some(mailbox) = mailbox else { continue };
        if header(fields, name, mailbox, EMAIL_MAILBOX) && address_of_mailbox(mailbox).is_none() {
            fields.refuse(name, FieldProblem::Malformed, "must be an address, or a name and an <address>");
        }
    }
    require_one(fields, "text", text.is_some(), "html", html.is_some());
    if text.map_or(0, str::len) + html.map_or(0, str::len) > EMAIL_BODY {
        let name = if html.is_some() { "html" } else { "text" };
        fields.refuse(name, FieldProblem::OutOfRange, "text and html together must not be larger than 200 KB");
    }
    Some(Email {
        from: from?.to_owned(),
        subject: subject?.to_owned(),
        text: text.map(str::to_owned),
        html: html.map(str::to_owned),
        reply_to: reply_to.map(str::to_owned),
        headers: Vec::new(),
    })
}

fn read_telegram(fields: &mut Fields<'_>) -> Option<Telegram> {
    let text = body(fields, "text");
    let parse_mode = fields.optional_text("parse_mode");
    let parse_mode = parse_mode.and_then(|mode| fields.one_of("parse_mode", mode, ParseMode::ALL, ParseMode::as_str));
    let media_given = fields.optional_object("media");
    let media = media_given.and_then(|object| fields.nested("media", object, telegram_media));
    let buttons = fields.optional_array("buttons").map(|rows| read_buttons(fields, rows));
    require_one(fields, "text", text.is_some(), "media", media_given.is_some());
    if let Some(text) = text
        && !fields.refused("parse_mode")
    {
        check_telegram_text(fields, text, parse_mode, media_given.is_some());
    }
    Some(Telegram { text: text.map(str::to_owned), parse_mode, media, buttons })
}

fn check_telegram_text(fields: &mut Fields<'_>, text: &str, parse_mode: Option<ParseMode>, caption: bool) {
    if text.len() > TELEGRAM_SOURCE {
        return fields.refuse("text", FieldProblem::OutOfRange, "must not be larger than 32 KB with its markup");
    }
    let visible = match parse_mode {
        Some(ParseMode::MarkdownV2) => {
            markdown_v2::visible(text).map_err(|invalid| format!("is not valid MarkdownV2 at {invalid}"))
        }
        Some(ParseMode::Html) => html::visible(text).map_err(|invalid| format!("is not valid HTML at {invalid}")),
        None => Ok(markdown_v2::Visible { units: text.encode_utf16().count(), blank: false }),
    };
    match visible {
        Err(detail) => fields.refuse("text", FieldProblem::Malformed, detail),
        Ok(visible) if visible.blank => fields.refuse("text", FieldProblem::Missing, "is blank without its markup"),
        Ok(visible) if caption && visible.units > TELEGRAM_CAPTION => {
            fields.refuse(
                "text",
                FieldProblem::OutOfRange,
                "with media must not be longer than 1024 UTF-16 code units",
            );
        }
        Ok(visible) if visible.units > TELEGRAM_TEXT => {
            fields.refuse("text", FieldProblem::OutOfRange, "must not be longer than 4096 UTF-16 code units");
        }
        Ok(_) => {}
    }
}

fn telegram_media(fields: &mut Fields<'_>) -> Option<TelegramMedia> {
    let kind = fields.text("kind");
    let kind = kind.and_then(|kind| fields.one_of("kind", kind, TelegramMediaKind::ALL, TelegramMediaKind::as_str));
    let url = url(fields, "url");
    Some(TelegramMedia { kind: kind?, url: url? })
}

fn read_buttons<'a>(fields: &mut Fields<'a>, rows: &'a [Value]) -> Vec<Vec<Button>> {
    let mut buttons = Vec::new();
    let count: usize = rows.iter().filter_map(Value::as_array).map(Vec::len).sum();
    if rows.is_empty() || rows.len() > TELEGRAM_BUTTONS || count > TELEGRAM_BUTTONS {
        fields.refuse("buttons", FieldProblem::OutOfRange, "must be 1 to 100 buttons");
        return buttons;
    }
    for (y, row) in rows.iter().enumerate() {
        let name = format!("buttons[{y}]");
        let Some(row) = row.as_array() else {
            fields.refuse(name, FieldProblem::WrongType, "must be an array of buttons");
            continue;
        };
        if row.is_empty() || row.len() > TELEGRAM_BUTTONS_IN_ROW {
            fields.refuse(name, FieldProblem::OutOfRange, "must be 1 to 8 buttons");
            continue;
        }
        let mut read = Vec::new();
        for (x, cell) in row.iter().enumerate() {
            let name = format!("{name}[{x}]");
            match cell.as_object() {
                Some(object) => read.extend(fields.nested(&name, object, button)),
                None => fields.refuse(name, FieldProblem::WrongType, "must be an object"),
            }
        }
        buttons.push(read);
    }
    buttons
}

fn button(fields: &mut Fields<'_>) -> Option<Button> {
    let text = fields.text("text");
    let url = url(fields, "url");
    let is_too_long = text.is_some_and(|text| text.encode_utf16().count() > TELEGRAM_BUTTON_TEXT);
    fields.refuse_if(is_too_long, "text", FieldProblem::OutOfRange, "must not be longer than 256 UTF-16 code units");
    Some(Button { text: text?.to_owned(), url: url? })
}

fn read_whatsapp(fields: &mut Fields<'_>) -> Option<Whatsapp> {
    let text = body(fields, "text");
    let media_given = fields.optional_object("media");
    let media = media_given.and_then(|object| fields.nested("media", object, whatsapp_media));
    require_one(fields, "text", text.is_some(), "media", media_given.is_some());
    let is_too_large = text.is_some_and(|text| text.len() > WHATSAPP_TEXT);
    fields.refuse_if(is_too_large, "text", FieldProblem::OutOfRange, "must not be larger than 65536 bytes");
    // WhatsApp's audio message has no field for a caption: Evolution would drop the text silently.
    let is_lost = text.is_some() && media.as_ref().is_some_and(|media| media.kind == WhatsappMediaKind::Audio);
    fields.refuse_if(is_lost, "text", FieldProblem::Conflicting, "is not shown with audio; send it on its own");
    Some(Whatsapp { text: text.map(str::to_owned), media })
}

fn whatsapp_media(fields: &mut Fields<'_>) -> Option<WhatsappMedia> {
    let kind = fields.text("kind");
    let kind = kind.and_then(|kind| fields.one_of("kind", kind, WhatsappMediaKind::ALL, WhatsappMediaKind::as_str));
    let url = url(fields, "url");
    let mimetype = fields.optional_text("mimetype");
    let is_malformed = mimetype.is_some_and(|mimetype| !is_mimetype(mimetype));
    fields.refuse_if(is_malformed, "mimetype", FieldProblem::Malformed, "must be a type such as application/pdf");
    let file_name = fields.optional_text("file_name");
    if let Some(name) = file_name
        && header(fields, "file_name", name, FILE_NAME)
        && name.contains(['/', '\\'])
    {
        fields.refuse("file_name", FieldProblem::Malformed, "must be a name without a path");
    }
    let (mimetype, file_name) = (mimetype.map(str::to_owned), file_name.map(str::to_owned));
    Some(WhatsappMedia { kind: kind?, url: url?, mimetype, file_name })
}

/// Reads a text that may have several lines. NUL is refused: no provider shows it, and some stop
/// reading there.
fn body<'a>(fields: &mut Fields<'a>, name: &'static str) -> Option<&'a str> {
    let text = fields.optional_text(name);
    let has_nul = text.is_some_and(|text| text.contains('\0'));
    fields.refuse_if(has_nul, name, FieldProblem::Malformed, "must not contain NUL");
    text
}

/// Checks a text of one line: a line break in it would start another header. Returns `false` if the
/// text is refused.
fn header(fields: &mut Fields<'_>, name: &'static str, text: &str, longest: usize) -> bool {
    if text.chars().any(char::is_control) {
        fields.refuse(name, FieldProblem::Malformed, "must not contain line ends or control characters");
        return false;
    }
    if text.len() > longest {
        fields.refuse(name, FieldProblem::OutOfRange, format!("must not be longer than {longest} bytes"));
        return false;
    }
    true
}

fn require_one(fields: &mut Fields<'_>, first: &'static str, has_first: bool, other: &'static str, has_other: bool) {
    if !has_first && !has_other && !fields.refused(first) && !fields.refused(other) {
        fields.refuse(first, FieldProblem::Missing, format!("{first} or {other} is required"));
    }
}

fn url(fields: &mut Fields<'_>, name: &'static str) -> Option<String> {
    let url = fields.text(name).map(str::to_owned)?;
    let detail = "must be an http or https URL of at most 2048 bytes";
    fields.or_refuse(name, Some(url).filter(|url| is_url(url)), FieldProblem::Malformed, detail)
}

fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https"))
        && text.len() <= URL
        && host.starts_with(|c: char| c.is_alphanumeric() || c == '[')
        && !text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\')
}

fn is_mimetype(text: &str) -> bool {
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
    };
    text.len() <= MIMETYPE && text.split_once('/').is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
}

/// Returns the normalized address of a mailbox: an address, or a name before an address in angle
/// brackets. A name with commas or other special characters must be in quotes, or it would read as
/// several mailboxes. `None` if the mailbox is not valid.
pub(crate) fn address_of_mailbox(text: &str) -> Option<String> {
    let text = text.trim();
    let (name, address) = match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((name, address)) => (name.trim(), address),
        None => ("", text),
    };
    let quoted = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    let named = match quoted {
        Some(inner) => !inner.contains(['"', '\\']),
        None => !name.contains(['"', ',', ':', ';', '<', '>', '@', '(', ')', '[', ']', '\\']),
    };
    if named { normalize_to(Channel::Email, address).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn take(channel: Channel, value: &Value) -> Result<Content, Vec<FieldError>> {
        let mut errors = Vec::new();
        let content = read(channel, value.as_object().expect("an object"), &mut errors);
        assert_eq!(content.is_none(), !errors.is_empty(), "{value}");
        content.ok_or(errors)
    }

    fn refusals(channel: Channel, value: &Value) -> Vec<(String, FieldProblem)> {
        let errors = take(channel, value).err().unwrap_or_default();
        errors.into_iter().map(|error| (error.field, error.code)).collect()
    }

    fn email(field: &str, value: Value) -> Value {
        let mut object = json!({"from": "a@b.co", "subject": "s", "text": "t"});
        object[field] = value;
        object
    }

    fn media(field: &str, value: Value) -> Value {
        let mut object = json!({"media": {"kind": "video", "url": "https://x.co"}});
        object["media"][field] = value;
        object
    }

    fn buttons(buttons: Value) -> Value {
        json!({"text": "x", "buttons": buttons})
    }

    #[test]
    fn accepted_content_is_stored_and_read_back_unchanged() {
        let cases = [
            (Channel::Email, json!({"from": "a@b.co", "subject": "Olá", "text": "x\ny", "html": "<p>x</p>"})),
            (
                Channel::Email,
                json!({"from": "\"Loja, a\" <a@b.co>", "subject": "s", "html": "h", "reply_to": "é <r@b.co>"}),
            ),
            (Channel::Telegram, json!({"text": "1.5 > 1!"})),
            (Channel::Telegram, json!({"text": "*a* 1\\.5", "parse_mode": "MarkdownV2"})),
            (Channel::Telegram, json!({"text": "<b>a</b>", "parse_mode": "HTML"})),
            (Channel::Telegram, json!({"media": {"kind": "photo", "url": "https://x.co/a.png?b=c#d"}})),
            (
                Channel::Telegram,
                json!({"text": "x", "media": {"kind": "video", "url": "http://x.co"},
                    "buttons": [[{"text": "Pay", "url": "https://x.co"}], [{"text": "👍", "url": "https://[::1]:8/"}]]}),
            ),
            (Channel::Whatsapp, json!({"text": "x"})),
            (Channel::Whatsapp, json!({"media": {"kind": "audio", "url": "https://x.co/a.ogg"}})),
            (
                Channel::Whatsapp,
                json!({"media": {"kind": "document", "url": "https://x.co/a", "mimetype": "application/pdf",
                    "file_name": "conta de março.pdf"}}),
            ),
        ];
        for (channel, value) in cases {
            let content = take(channel, &value).expect("accepted");
            assert_eq!(content.channel(), channel);
            assert_eq!(content.text(), value["text"].as_str());
            let mut stored = serde_json::to_value(&content).expect("json");
            assert_eq!(serde_json::from_value::<Content>(stored.clone()).expect("content"), content);
            let tag = stored.as_object_mut().and_then(|object| object.remove("channel"));
            assert_eq!(tag, Some(json!(channel)));
            assert_eq!(stored, value);
        }
    }

    #[test]
    fn invalid_content_is_refused_with_the_name_of_its_field() {
        use Channel::{Email, Telegram, Whatsapp};
        use FieldProblem::{Conflicting, Malformed, Missing, NotAllowed, OutOfRange, Unknown, WrongType};
        let marked = |text: &str| json!({"text": text, "parse_mode": "MarkdownV2"});
        let cases = [
            (Email, email("from", json!("a@b.co\r\nBcc: c@d.co")), "from", Malformed),
            (Email, email("from", json!("a@b.co, c@d.co")), "from", Malformed),
            (Email, email("from", json!("A, B <a@b.co>")), "from", Malformed),
            (Email, email("from", json!("A <B> <a@b.co>")), "from", Malformed),
            (Email, email("from", json!("A <a@b.co")), "from", Malformed),
            (Email, email("from", json!(format!("{} <a@b.co>", "x".repeat(320)))), "from", OutOfRange),
            (Email, email("from", Value::Null), "from", Missing),
            (Email, email("subject", json!("a\nb")), "subject", Malformed),
            (Email, email("subject", json!("a\0b")), "subject", Malformed),
            (Email, email("subject", json!("é".repeat(500))), "subject", OutOfRange),
            (Email, email("subject", json!(" ")), "subject", Missing),
            (Email, email("reply_to", json!("x\rY")), "reply_to", Malformed),
            (Email, email("text", Value::Null), "text", Missing),
            (Email, email("headers", json!({})), "headers", Unknown),
            (Telegram, json!({}), "text", Missing),
            (Telegram, json!({"text": " \n"}), "text", Missing),
            (Telegram, json!({"text": 1}), "text", WrongType),
            (Telegram, json!({"text": "a\0"}), "text", Malformed),
            (Telegram, marked("1.5"), "text", Malformed),
            (Telegram, marked("* *"), "text", Missing),
            (Telegram, json!({"text": "<b>Oferta", "parse_mode": "HTML"}), "text", Malformed),
            (Telegram, json!({"text": "<b> </b>", "parse_mode": "HTML"}), "text", Missing),
            (Telegram, json!({"text": "x", "parse_mode": "Markdown"}), "parse_mode", NotAllowed),
            (Telegram, media("kind", json!("document")), "media.kind", NotAllowed),
            (Telegram, media("url", json!("ftp://x.co")), "media.url", Malformed),
            (Telegram, media("mimetype", json!("a/b")), "media.mimetype", Unknown),
            (Telegram, json!({"media": "x"}), "media", WrongType),
            (Telegram, buttons(json!({})), "buttons", WrongType),
            (Telegram, buttons(json!([])), "buttons", OutOfRange),
            (Telegram, buttons(json!([1])), "buttons[0]", WrongType),
            (Telegram, buttons(json!([[]])), "buttons[0]", OutOfRange),
            (Telegram, buttons(json!([[1]])), "buttons[0][0]", WrongType),
            (Telegram, buttons(json!([[{"text": "x", "url": "tg://x"}]])), "buttons[0][0].url", Malformed),
            (Telegram, buttons(json!([[{"url": "https://x.co"}]])), "buttons[0][0].text", Missing),
            (Whatsapp, json!({}), "text", Missing),
            (Whatsapp, json!({"text": "é".repeat(32_769)}), "text", OutOfRange),
            (Whatsapp, json!({"text": "x", "buttons": []}), "buttons", Unknown),
            (Whatsapp, json!({"text": "x", "media": {"kind": "audio", "url": "https://x.co"}}), "text", Conflicting),
            (Whatsapp, media("mimetype", json!("pdf")), "media.mimetype", Malformed),
            (Whatsapp, media("mimetype", json!("/pdf")), "media.mimetype", Malformed),
            (Whatsapp, media("mimetype", json!("application/")), "media.mimetype", Malformed),
            (Whatsapp, media("mimetype", json!("text/html; a=b")), "media.mimetype", Malformed),
            (Whatsapp, media("file_name", json!("../x")), "media.file_name", Malformed),
            (Whatsapp, media("kind", Value::Null), "media.kind", Missing),
        ];
        for (channel, value, field, code) in cases {
            assert_eq!(refusals(channel, &value), [(format!("content.{field}"), code)], "{field} {code}");
        }
    }

    #[test]
    fn content_at_a_limit_is_accepted_and_content_above_it_is_refused() {
        use Channel::{Email, Telegram, Whatsapp};
        use FieldProblem::{Malformed, OutOfRange};
        let x = |length: usize| json!("x".repeat(length));
        let mailbox = |length: usize| json!(format!("{} <a@b.co>", "x".repeat(length - 9)));
        let url = |length: usize| json!(format!("https://x.co/{}", "x".repeat(length - 13)));
        let mimetype = |length: usize| json!(format!("x/{}", "x".repeat(length - 2)));
        let marked =
            |length: usize| json!({"text": format!("<b{}>x</b>", " ".repeat(length - 8)), "parse_mode": "HTML"});
        let rows = |count: usize, in_a_row: usize| {
            let all = vec![json!({"text": "x", "url": "https://x.co"}); count];
            buttons(json!(all.chunks(in_a_row).collect::<Vec<_>>()))
        };
        let titled = |length: usize| buttons(json!([[{"text": "é".repeat(length), "url": "https://x.co"}]]));
        let cases = [
            (Email, [998, 999].map(|n| email("subject", x(n))), "subject", OutOfRange),
            (Email, [320, 321].map(|n| email("from", mailbox(n))), "from", OutOfRange),
            (Email, [204_800, 204_801].map(|n| email("text", x(n))), "text", OutOfRange),
            // The text of this email has one byte.
            (Email, [204_799, 204_800].map(|n| email("html", x(n))), "html", OutOfRange),
            (Telegram, [32_768, 32_769].map(marked), "text", OutOfRange),
            (Telegram, [100, 101].map(|n| rows(n, 1)), "buttons", OutOfRange),
            (Telegram, [100, 101].map(|n| rows(n, 8)), "buttons", OutOfRange),
            (Telegram, [8, 9].map(|n| rows(n, n)), "buttons[0]", OutOfRange),
            (Telegram, [256, 257].map(titled), "buttons[0][0].text", OutOfRange),
            (Whatsapp, [65_536, 65_537].map(|n| json!({"text": x(n)})), "text", OutOfRange),
            (Whatsapp, [2_048, 2_049].map(|n| media("url", url(n))), "media.url", Malformed),
            (Whatsapp, [127, 128].map(|n| media("mimetype", mimetype(n))), "media.mimetype", Malformed),
            (Whatsapp, [255, 256].map(|n| media("file_name", x(n))), "media.file_name", OutOfRange),
        ];
        for (channel, [at_limit, above], field, code) in cases {
            assert!(take(channel, &at_limit).is_ok(), "{channel} {field}");
            assert_eq!(refusals(channel, &above), [(format!("content.{field}"), code)], "{channel} {field}");
        }
    }

    #[test]
    fn the_error_for_invalid_markup_names_the_position() {
        for (text, mode, at) in [("👍 1.5", "MarkdownV2", 3), ("👍 <b>1.5", "HTML", 2)] {
            let errors = take(Channel::Telegram, &json!({"text": text, "parse_mode": mode})).expect_err("invalid");
            let detail = &errors[0].detail;
            assert!(detail.starts_with(&format!("is not valid {mode} at character {at}: ")), "{detail}");
        }
    }

    #[test]
    fn telegram_limits_count_visible_text_in_utf16_units() {
        let fits = |text: String, mode: Option<&str>, caption: bool| {
            let media = caption.then(|| json!({"kind": "photo", "url": "https://x.co"}));
            take(Channel::Telegram, &json!({"text": text, "parse_mode": mode, "media": media})).is_ok()
        };
        assert!(fits("👍".repeat(2048), None, false));
        assert!(!fits("👍".repeat(2049), None, false));
        assert!(fits("é".repeat(4096), None, false));
        assert!(fits("👍".repeat(512), None, true));
        assert!(!fits("👍".repeat(513), None, true));
        assert!(fits(format!("*{}*", "\\.".repeat(4096)), Some("MarkdownV2"), false));
        assert!(!fits(format!("*{}*", "\\.".repeat(4097)), Some("MarkdownV2"), false));
        assert!(fits(format!("<b>{}</b>", "&lt;".repeat(1024)), Some("HTML"), true));
        assert!(!fits(format!("<b>{}</b>", "&lt;".repeat(1025)), Some("HTML"), true));
        assert!(!fits("[x](https://x.co)".repeat(2000), Some("MarkdownV2"), false));
    }

    #[test]
    fn a_url_must_have_a_scheme_and_a_host() {
        let long = format!("https://x.co/{}", "a".repeat(2048));
        for text in ["https://x.co", "HTTP://x", "https://u:p@x.co:1/a", "https://bücher.example/é"] {
            assert!(is_url(text), "{text}");
        }
        let refused = [
            "",
            "x.co",
            "https:/x.co",
            "https://",
            "https:///a",
            "https://?a",
            "https://:80",
            "https://u@/",
            "javascript://x",
            "https://x .co",
            "https://x.co/\n",
            "https://x.co\\@y",
            "https://.",
            &long,
        ];
        for text in refused {
            assert!(!is_url(text), "{text:?}");
        }
    }

    #[test]
    fn random_content_never_panics() {
        let alphabet: Vec<char> = "_*[]()~`>#<&;b/\\\n\r\0 aé👍@.:\"".chars().collect();
        let mut seed: u64 = 3;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        let names = ["text", "from", "subject", "html", "reply_to", "media", "buttons", "parse_mode", "kind", "url"];
        for _ in 0..20_000 {
            let mut object = Map::new();
            for _ in 0..next() % 6 {
                let text: String = (0..next() % 20).map(|_| alphabet[next() % alphabet.len()]).collect();
                let value = match next() % 6 {
                    0 => json!([[{"text": text, "url": text}], text]),
                    1 => json!({"kind": text, "url": text, "file_name": text, "mimetype": text}),
                    2 => json!(["MarkdownV2", "HTML"][next() % 2]),
                    _ => json!(text),
                };
                object.insert(names[next() % names.len()].to_owned(), value);
            }
            for channel in Channel::ALL {
                let _ = take(*channel, &Value::Object(object.clone()));
            }
        }
    }
}
