//! The Bot API: `/bot<token>/<method>`, with GET or POST. Method names are not case-sensitive.

use serde_json::{Value, json};

use super::{Caught, Provider, Reading, Stamp, request::Request};

/// The methods that send a message, the parameter that each of them requires, and Telegram's error
/// if it is missing.
const SENDING: [(&str, &str, &str); 9] = [
    ("sendmessage", "text", "message text is empty"),
    ("sendphoto", "photo", "there is no photo in the request"),
    ("sendvideo", "video", "there is no video in the request"),
    ("sendaudio", "audio", "there is no audio in the request"),
    ("senddocument", "document", "there is no document in the request"),
    ("sendanimation", "animation", "there is no animation in the request"),
    ("sendvoice", "voice", "there is no voice in the request"),
    ("sendvideonote", "video_note", "there is no video note in the request"),
    ("sendsticker", "sticker", "there is no sticker in the request"),
];

/// The other methods that return `true`.
const DOING: [&str; 4] = ["sendchataction", "answercallbackquery", "setwebhook", "deletewebhook"];

pub(super) const PROVIDER: Provider = Provider { channel: "telegram", goes_out: true, read, is_secret: is_token };

fn read(request: &Request, stamp: Stamp) -> Reading {
    let to: Vec<String> = request.parameter("chat_id").filter(|chat| !chat.is_empty()).into_iter().collect();
    let answer = answer(request, to.first().map(String::as_str), stamp);
    Reading { to, answer }
}

fn answer(request: &Request, chat: Option<&str>, stamp: Stamp) -> Caught {
    let path = request.path();
    let [bot, method] = path.as_slice() else { return error(404, "Not Found") };
    let Some(bot) = bot.strip_prefix("bot").and_then(bot_id) else { return error(404, "Not Found") };
    if !["GET", "POST"].contains(&request.method.as_str()) {
        return error(404, "Not Found");
    }
    let method = method.to_ascii_lowercase();
    if let Some((_, content, missing)) = SENDING.iter().find(|(name, ..)| *name == method) {
        let Some(chat) = chat else { return error(400, "Bad Request: chat_id is empty") };
        return match request.parameter(content).filter(|content| !content.is_empty()) {
            Some(sent) => ok(message(request, bot, chat, content, &sent, stamp)),
            None => error(400, &format!("Bad Request: {missing}")),
        };
    }
    match method.as_str() {
        "getme" => ok(user(bot)),
        method if DOING.contains(&method) => ok(json!(true)),
        _ => error(404, "Not Found"),
    }
}

/// Returns whether a segment contains a bot token, including one in the wrong place or without its
/// id.
fn is_token(segment: &str) -> bool {
    segment.contains(':') || segment.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("bot"))
}

/// Returns the id of the bot. A token is the id, a colon, and the secret.
fn bot_id(token: &str) -> Option<u64> {
    let (id, secret) = token.split_once(':')?;
    id.parse().ok().filter(|_| !secret.is_empty())
}

fn message(request: &Request, bot: u64, to: &str, content: &str, sent: &str, stamp: Stamp) -> Value {
    let mut message =
        json!({ "message_id": stamp.number, "from": user(bot), "chat": chat(to), "date": stamp.seconds() });
    let file = json!({
        "file_id": format!("local-file-{}", stamp.number),
        "file_unique_id": format!("local-{}", stamp.number),
        "file_size": sent.len(),
    });
    let with = |more: Value| merged(file.clone(), more);
    message[content] = match content {
        "text" => sent.into(),
        "photo" => json!([with(json!({ "width": 90, "height": 90 }))]),
        "video" | "animation" => with(json!({ "width": 640, "height": 360, "duration": 1 })),
        "audio" | "voice" => with(json!({ "duration": 1 })),
        "video_note" => with(json!({ "length": 240, "duration": 1 })),
        "sticker" => {
            with(json!({ "type": "regular", "width": 512, "height": 512, "is_animated": false, "is_video": false }))
        }
        _ => file,
    };
    if let Some(caption) = request.parameter("caption").filter(|_| content != "text") {
        message["caption"] = caption.into();
    }
    message
}

fn user(bot: u64) -> Value {
    json!({ "id": bot, "is_bot": true, "first_name": "Local bot", "username": format!("local_{bot}_bot") })
}

fn chat(to: &str) -> Value {
    match (to.parse::<i64>(), to.strip_prefix('@')) {
        (Ok(id), _) if id > 0 => json!({ "id": id, "first_name": "Local", "type": "private" }),
        (Ok(id), _) if to.starts_with("-100") => json!({ "id": id, "title": "Local", "type": "supergroup" }),
        (Ok(id), _) => json!({ "id": id, "title": "Local", "type": "group" }),
        (Err(_), Some(name)) => {
            json!({ "id": -1_000_000_000_001_i64, "title": "Local", "username": name, "type": "channel" })
        }
        // Telegram would reject this chat id; the catcher accepts it.
        (Err(_), None) => json!({ "id": to, "type": "private" }),
    }
}

fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

fn ok(result: Value) -> Caught {
    Caught::json(200, json!({ "ok": true, "result": result }))
}

fn error(status: u16, description: &str) -> Caught {
    Caught::json(status, json!({ "ok": false, "error_code": status, "description": description }))
}
