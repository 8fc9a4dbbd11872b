//! Converts a stored message into the HTTP call that sends it.

use crate::channels::content::{Telegram, TelegramMediaKind, Whatsapp, WhatsappMediaKind};
use crate::channels::is_group;
use crate::channels::telegram;
use crate::channels::telegram::{Button, ButtonAction, TelegramContent};
use crate::channels::whatsapp::evolution;
use crate::channels::whatsapp::evolution::{EvolutionContent, EvolutionMedia};
use crate::channels::{Channel, HttpCall};
use crate::delivery::{Outcome, ThrottleScope};

pub fn to_telegram(token: &str, to: &str, content: &Telegram) -> HttpCall {
    let rows = content.buttons.iter().flatten();
    let wire = TelegramContent {
        text: content.text.as_deref(),
        parse_mode: content.parse_mode.map(|mode| mode.as_str()),
        media: content.media.as_ref().map(|media| {
            let kind = match media.kind {
                TelegramMediaKind::Photo => telegram::MediaKind::Photo,
                TelegramMediaKind::Video => telegram::MediaKind::Video,
            };
            (kind, media.url.as_str())
        }),
        buttons: rows
            .map(|row| row.iter().map(|one| Button { text: &one.text, action: ButtonAction::Url(&one.url) }).collect())
            .collect(),
    };
    telegram::request(token, to, &wire)
}

/// Classifies an answer of Telegram. Telegram does not say which limit a 429 applies to. The limit
/// of a group is the lowest and is reached first, so a 429 for a group throttles the group, and any
/// other 429 throttles the bot.
pub fn of_telegram(to: &str, status: u16, body: &[u8]) -> Outcome {
    match telegram::classify(status, body) {
        Outcome::Throttled { retry_after_ms, .. } if is_group(Channel::Telegram, to) => {
            Outcome::Throttled { retry_after_ms, scope: ThrottleScope::Chat }
        }
        outcome => outcome,
    }
}

pub fn to_evolution(instance: &str, api_key: &str, to: &str, content: &Whatsapp) -> HttpCall {
    let media = content.media.as_ref().map(|media| EvolutionMedia {
        kind: match media.kind {
            WhatsappMediaKind::Image => evolution::MediaKind::Image,
            WhatsappMediaKind::Video => evolution::MediaKind::Video,
            WhatsappMediaKind::Document => evolution::MediaKind::Document,
            WhatsappMediaKind::Audio => evolution::MediaKind::Audio,
        },
        url: &media.url,
        mimetype: media.mimetype.as_deref(),
        // Some versions of the server refuse a document without a name.
        file_name: media.file_name.as_deref().or(match media.kind {
            WhatsappMediaKind::Document => Some("document"),
            _ => None,
        }),
    });
    evolution::request(instance, api_key, to, &EvolutionContent { text: content.text.as_deref(), media })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::content;
    use super::*;

    fn body(call: &HttpCall) -> Value {
        serde_json::from_str(&call.body).expect("JSON")
    }

    fn read(channel: Channel, content: Value) -> content::Content {
        let mut errors = Vec::new();
        let read = content::read(channel, content.as_object().expect("an object"), &mut errors);
        read.unwrap_or_else(|| panic!("{errors:?}"))
    }

    #[test]
    fn what_was_asked_for_is_what_telegram_gets() {
        let asked = json!({
            "text": "<b>Oi</b>", "parse_mode": "HTML",
            "media": {"kind": "photo", "url": "https://cdn.example/p.jpg"},
            "buttons": [[{"text": "Comprar", "url": "https://example.com/buy"}]],
        });
        let content::Content::Telegram(content) = read(Channel::Telegram, asked) else { panic!("another channel") };
        let call = to_telegram("1:a", "42", &content);
        assert_eq!(call.path, "/bot1:a/sendPhoto");
        let sent = json!({
            "chat_id": 42, "photo": "https://cdn.example/p.jpg", "caption": "<b>Oi</b>", "parse_mode": "HTML",
            "reply_markup": {"inline_keyboard": [[{"text": "Comprar", "url": "https://example.com/buy"}]]},
        });
        assert_eq!(body(&call), sent);
    }

    #[test]
    fn what_was_asked_for_is_what_evolution_gets() {
        let asked = json!({"text": "o contrato", "media": {"kind": "document", "url": "https://cdn.example/c"}});
        let content::Content::Whatsapp(content) = read(Channel::Whatsapp, asked) else { panic!("another channel") };
        let call = to_evolution("loja", "k", "5511912345678", &content);
        assert_eq!(call.path, "/message/sendMedia/loja");
        let sent = json!({
            "number": "5511912345678", "mediatype": "document", "media": "https://cdn.example/c",
            "caption": "o contrato", "fileName": "document",
        });
        assert_eq!(body(&call), sent);
    }

    #[test]
    fn a_limit_that_a_group_met_holds_back_the_group() {
        let body = br#"{"ok":false,"error_code":429,"description":"Too Many Requests: retry after 33","parameters":{"retry_after":33}}"#;
        let scope = |to| match of_telegram(to, 429, body) {
            Outcome::Throttled { retry_after_ms: 33_000, scope } => scope,
            other => panic!("{other:?}"),
        };
        assert_eq!(scope("-1001234567890"), ThrottleScope::Chat);
        assert_eq!(scope("987654321"), ThrottleScope::Bot);
    }
}
