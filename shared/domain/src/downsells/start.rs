//! Reads the /start of a person in a private chat from an update of the Bot API.

use serde_json::Value;

use crate::time::Timestamp;

/// The longest payload that Telegram allows in a link.
const LONGEST_PAYLOAD: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartCommand {
    pub telegram_id: i64,
    pub update_id: i64,
    pub at: Option<Timestamp>,
    /// The text after the command. It says where the person came from.
    pub payload: Option<String>,
}

/// Reads a /start. `None` for everything else, including a message that was edited, was written in
/// a group, or was written by a bot.
pub fn read(body: &[u8]) -> Option<StartCommand> {
    let update: Value = serde_json::from_slice(body).ok()?;
    let message = update.get("message")?;
    let private = message["chat"]["type"] == "private" && message["from"]["is_bot"] != true;
    let telegram_id = message["chat"]["id"].as_i64().filter(|id| *id > 0 && private)?;
    let text = message["text"].as_str()?;
    let (command, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    // In a private chat, a name after the command can only be the bot's own.
    let command = command.split_once('@').map_or(command, |(command, _)| command);
    let payload: String = rest.trim().chars().filter(|c| !c.is_control()).take(LONGEST_PAYLOAD).collect();
    (command == "/start").then(|| StartCommand {
        telegram_id,
        update_id: update["update_id"].as_i64().unwrap_or_default(),
        at: message["date"].as_i64().and_then(|at| Timestamp::of_calendar(at.checked_mul(1_000)?)),
        payload: (!payload.is_empty()).then_some(payload),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn update(field: &str, more: &Value) -> Vec<u8> {
        let mut message = json!({
            "message_id": 9, "date": 1_760_000_000, "text": "/start",
            "from": {"id": 7, "is_bot": false, "first_name": "Ana"}, "chat": {"id": 7, "type": "private"},
        });
        message.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({"update_id": 5_001, field: message}).to_string().into_bytes()
    }

    #[test]
    fn a_start_is_read_with_and_without_a_payload() {
        let plain = read(&update("message", &json!({}))).expect("a start");
        let at = Some(Timestamp::from_seconds(1_760_000_000));
        assert_eq!(plain, StartCommand { telegram_id: 7, update_id: 5_001, at, payload: None });
        for text in ["/start promo-7", "/start@LojaBot promo-7", "/start\npromo-7 "] {
            let start = read(&update("message", &json!({ "text": text }))).expect("a start");
            assert_eq!(start.payload.as_deref(), Some("promo-7"), "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_a_start() {
        for more in [
            json!({"text": "/started"}),
            json!({"text": "start"}),
            json!({"text": " /start"}),
            json!({"text": "/help"}),
            json!({"text": null, "caption": "/start"}),
            json!({"chat": {"id": -5, "type": "group"}}),
            json!({"chat": {"id": 0, "type": "private"}}),
            json!({"chat": {"id": 7, "type": "channel"}}),
            json!({"from": {"id": 7, "is_bot": true}}),
            json!({"chat": {"id": "7", "type": "private"}}),
        ] {
            assert_eq!(read(&update("message", &more)), None, "{more}");
        }
        assert_eq!(read(&update("edited_message", &json!({}))), None);
        assert_eq!(read(b"not json"), None);
    }
}
