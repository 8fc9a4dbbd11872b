//! A responder: `POST` of JSON to any path. It receives the `messages` of a batch and replies with
//! their texts.

use serde_json::{Value, json};

use super::{Caught, Provider, Reading, Stamp, request::Request};

pub(super) const PROVIDER: Provider = Provider { channel: "responder", goes_out: false, read, is_secret: |_| false };

fn read(request: &Request, _stamp: Stamp) -> Reading {
    let batch = request.body["batch_id"].as_str().filter(|batch| !batch.is_empty());
    Reading { to: batch.map(str::to_owned).into_iter().collect(), answer: answer(request) }
}

fn answer(request: &Request) -> Caught {
    if request.method != "POST" {
        return Caught::json(405, json!({ "error": format!("a responder accepts only POST, not {}", request.method) }));
    }
    let lines: Vec<_> = request.body["messages"].as_array().into_iter().flatten().map(line).collect();
    // A batch without messages gets no reply.
    let reply = (!lines.is_empty()).then(|| lines.join("\n"));
    Caught::json(200, json!({ "reply": reply }))
}

/// Returns the text of a message, or its kind in brackets if it has no text.
fn line(message: &Value) -> String {
    let text = message["text"].as_str().filter(|text| !text.is_empty());
    text.map_or_else(|| format!("[{}]", message["kind"].as_str().unwrap_or_default()), str::to_owned)
}
