//! Evolution API v2: `POST /message/sendText/{instance}` and `/message/sendMedia/{instance}`, with
//! an `apikey` header.

use serde_json::{Value, json};

use super::{Caught, Provider, Reading, Stamp, request::Request};

const PERSON: &str = "@s.whatsapp.net";

pub(super) const PROVIDER: Provider = Provider { channel: "whatsapp", goes_out: true, read, is_secret: |_| false };

fn read(request: &Request, stamp: Stamp) -> Reading {
    let number = request.parameter("number").filter(|number| !number.is_empty());
    // A number and its full id (`…@s.whatsapp.net`) are the same recipient.
    let to = number.iter().map(|number| number.trim_end_matches(PERSON).to_owned()).collect();
    Reading { to, answer: answer(request, number, stamp) }
}

fn answer(request: &Request, number: Option<String>, stamp: Stamp) -> Caught {
    let path = request.path();
    let (["message", operation @ ("sendText" | "sendMedia"), _instance], "POST") =
        (path.as_slice(), request.method.as_str())
    else {
        let url = format!("Cannot {} /{}", request.method, path.join("/"));
        return error(404, "Not Found", json!([url]));
    };
    if !request.headers.contains_key("apikey") {
        return error(401, "Unauthorized", json!("Unauthorized"));
    }
    let Some(number) = number else { return missing("number") };
    let message = match *operation {
        "sendText" => text_message(request),
        _ => media_message(request, stamp),
    };
    match message {
        Ok(message) => Caught::json(
            201,
            json!({
                "key": { "remoteJid": remote_jid(&number), "fromMe": true, "id": message_id(stamp) },
                "message": message,
                "messageTimestamp": stamp.seconds().to_string(),
                "status": "PENDING",
            }),
        ),
        Err(refused) => refused,
    }
}

fn text_message(request: &Request) -> Result<Value, Caught> {
    let text = request.parameter("text").filter(|text| !text.is_empty()).ok_or_else(|| missing("text"))?;
    Ok(json!({ "extendedTextMessage": { "text": text } }))
}

fn media_message(request: &Request, stamp: Stamp) -> Result<Value, Caught> {
    let kind = request.parameter("mediatype").ok_or_else(|| missing("mediatype"))?;
    let media = request.parameter("media").or_else(|| request.parameter("file"));
    let media = media.filter(|media| !media.is_empty()).ok_or_else(|| missing("media"))?;
    let (name, mimetype) = match kind.as_str() {
        "image" => ("imageMessage", "image/png"),
        "video" => ("videoMessage", "video/mp4"),
        "audio" => ("audioMessage", "audio/mpeg"),
        "document" => ("documentMessage", "application/octet-stream"),
        _ => return Err(invalid("mediatype is not one of enum values: image,document,video,audio")),
    };
    let mut message = json!({
        "url": format!("https://mmg.whatsapp.net/local/{}", stamp.number),
        "mimetype": request.parameter("mimetype").unwrap_or_else(|| mimetype.to_owned()),
        "fileLength": media.len().to_string(),
        "mediaKeyTimestamp": stamp.seconds().to_string(),
    });
    for given in ["caption", "fileName"] {
        if let Some(value) = request.parameter(given) {
            message[given] = value.into();
        }
    }
    Ok(json!({ name: message }))
}

fn remote_jid(number: &str) -> String {
    if number.contains('@') { number.to_owned() } else { format!("{number}{PERSON}") }
}

/// Returns an id in the format of WhatsApp's web clients: a prefix and 18 hexadecimal digits.
fn message_id(stamp: Stamp) -> String {
    format!("3EB0{:012X}{:06X}", stamp.at_ms, stamp.number)
}

fn missing(property: &str) -> Caught {
    invalid(&format!("requires property \"{property}\""))
}

fn invalid(problem: &str) -> Caught {
    error(400, "Bad Request", json!([[format!("instance {problem}")]]))
}

fn error(status: u16, reason: &str, message: Value) -> Caught {
    Caught::json(status, json!({ "status": status, "error": reason, "response": { "message": message } }))
}
