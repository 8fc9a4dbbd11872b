//! The events of payload format 2.0, for functions and for authorizers.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, header, request::Parts};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::urlencoded;
use crate::template::{ACCOUNT, API_ID, REGION};

const STAGE: &str = "$default";

/// Headers that concern only the connection to the client, and the cookie header, which has its own
/// field in the event.
const NOT_PASSED_ON: [&str; 8] =
    ["connection", "cookie", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

pub(super) struct Incoming {
    pub(super) id: String,
    pub(super) route_key: String,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) source_ip: String,
    pub(super) at_ms: i64,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

/// Returns the event for the function. `authorizer` is the context from the authorizer, on a route
/// that has one.
pub(super) fn build_event(incoming: &Incoming, authorizer: Option<Value>) -> Value {
    let mut event = common(incoming);
    if let Some(context) = authorizer {
        event["requestContext"]["authorizer"] = json!({ "lambda": context });
    }
    let (body, encoded) = body(&incoming.parts.headers, &incoming.body);
    event["isBase64Encoded"] = encoded.into();
    if !body.is_empty() {
        event["body"] = body.into();
    }
    event
}

/// Returns the event for a `REQUEST` authorizer without identity sources: everything except the
/// body.
pub(super) fn authorizer_event(incoming: &Incoming) -> Value {
    let mut event = common(incoming);
    let (method, path) = (&incoming.parts.method, incoming.parts.uri.path());
    let arn = format!("arn:aws:execute-api:{REGION}:{ACCOUNT}:{API_ID}/{STAGE}/{method}{path}");
    event["type"] = "REQUEST".into();
    event["routeArn"] = arn.into();
    event["identitySource"] = Value::Null;
    event
}

fn common(incoming: &Incoming) -> Value {
    let Incoming { parts, route_key, .. } = incoming;
    let query = parts.uri.query().unwrap_or_default();
    let mut event = json!({
        "version": "2.0",
        "routeKey": route_key,
        "rawPath": parts.uri.path(),
        "rawQueryString": query,
        "headers": headers(incoming),
        "requestContext": request_context(incoming),
    });
    let cookies = cookies(&parts.headers);
    if !cookies.is_empty() {
        event["cookies"] = cookies.into();
    }
    let parameters = joined(urlencoded::pairs(query));
    if !parameters.is_empty() {
        event["queryStringParameters"] = json!(parameters);
    }
    if !incoming.parameters.is_empty() {
        event["pathParameters"] = json!(incoming.parameters);
    }
    event
}

fn request_context(incoming: &Incoming) -> Value {
    let Parts { method, uri, version, headers, .. } = &incoming.parts;
    let (domain, _) = host(&incoming.parts);
    json!({
        "accountId": ACCOUNT,
        "apiId": API_ID,
        "domainName": domain,
        "domainPrefix": domain.split('.').next(),
        "http": {
            "method": method.as_str(),
            "path": uri.path(),
            "protocol": format!("{version:?}"),
            "sourceIp": incoming.source_ip,
            "userAgent": headers.get(header::USER_AGENT).map(text).unwrap_or_default(),
        },
        "requestId": incoming.id,
        "routeKey": incoming.route_key,
        "stage": STAGE,
        "time": common_log_time(incoming.at_ms),
        "timeEpoch": incoming.at_ms,
    })
}

/// Returns the headers of the client and those that a gateway adds.
fn headers(incoming: &Incoming) -> BTreeMap<String, String> {
    let sent = incoming.parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value)));
    let mut headers = joined(sent.filter(|(name, _)| !NOT_PASSED_ON.contains(&name.as_str())));
    let (_, port) = host(&incoming.parts);
    let forwarded = headers.entry("x-forwarded-for".to_owned()).or_default();
    *forwarded = [forwarded.as_str(), &incoming.source_ip].join(if forwarded.is_empty() { "" } else { ", " });
    headers.insert("x-forwarded-port".to_owned(), port.to_owned());
    headers.insert("x-forwarded-proto".to_owned(), "http".to_owned());
    headers.entry("content-length".to_owned()).or_insert_with(|| incoming.body.len().to_string());
    let trace = || format!("Root=1-{:08x}-{:024x}", incoming.at_ms / 1000, fastrand::u128(..) >> 32);
    headers.entry("x-amzn-trace-id".to_owned()).or_insert_with(trace);
    headers
}

/// Returns the host name and the port that the client addressed.
fn host(parts: &Parts) -> (&str, &str) {
    let header = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = header.or(parts.uri.authority().map(|authority| authority.as_str())).unwrap_or("localhost");
    authority.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).unwrap_or((authority, "80"))
}

fn cookies(headers: &HeaderMap) -> Vec<String> {
    let sent = headers.get_all(header::COOKIE).iter().map(text);
    let each = sent.flat_map(|line| line.split(';').map(|cookie| cookie.trim().to_owned()).collect::<Vec<_>>());
    each.filter(|cookie| !cookie.is_empty()).collect()
}

/// Returns the body as text, and whether the text is base64. Only the content type decides: if it
/// says text, bytes that are not UTF-8 are lost, as on AWS.
fn body(headers: &HeaderMap, body: &Bytes) -> (String, bool) {
    let content_type = headers.get(header::CONTENT_TYPE).map(text).unwrap_or_default();
    if body.is_empty() || is_text(&content_type) {
        return (String::from_utf8_lossy(body).into_owned(), false);
    }
    (BASE64_STANDARD.encode(body), true)
}

/// Returns whether an HTTP API treats the content type as text. It does not for forms and for other
/// JSON types such as `application/problem+json`.
fn is_text(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.split_once('/') {
        Some(("text", _)) => true,
        Some(("application", kind)) => matches!(kind, "json" | "xml" | "javascript"),
        _ => false,
    }
}

fn joined(pairs: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let mut joined = BTreeMap::<String, String>::new();
    for (name, value) in pairs {
        joined.entry(name).and_modify(|values| *values = format!("{values},{value}")).or_insert(value);
    }
    joined
}

fn text(value: &http::HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// `12/Mar/2020:19:03:58 +0000`
fn common_log_time(at_ms: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(at_ms.div_euclid(1000)).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (day, month, year) = (at.day(), at.month().to_string(), at.year());
    format!("{day:02}/{month:.3}/{year}:{:02}:{:02}:{:02} +0000", at.hour(), at.minute(), at.second())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
