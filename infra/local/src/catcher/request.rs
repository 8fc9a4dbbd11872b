//! A request to a provider as it arrived. Only masked values leave the catcher.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Method, header};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::gateway::urlencoded;

const MASK: &str = "***";
const SECRET_HEADERS: [&str; 7] = [
    "apikey",
    "authorization",
    "cookie",
    "proxy-authorization",
    "webhook-signature",
    "x-amz-security-token",
    "x-api-key",
];

pub(super) struct Request {
    pub(super) method: String,
    /// The path, with the query if there is one.
    target: String,
    /// The decoded segments of the path: `["message", "sendText", "main"]`.
    pub(super) segments: Vec<String>,
    pub(super) headers: BTreeMap<String, String>,
    /// The JSON, or `{"raw": text}` if it is not JSON.
    pub(super) body: Value,
    /// The parameters, from a query, JSON, a form or multipart. The value of a multipart file is
    /// its file name.
    pub(super) parameters: Map<String, Value>,
}

impl Request {
    pub(super) fn new(method: &Method, target: &str, headers: &HeaderMap, body: &Bytes) -> Request {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut named = BTreeMap::<String, String>::new();
        for (name, value) in headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            let values = named.entry(name.as_str().to_owned());
            values.and_modify(|values| *values = format!("{values},{value}")).or_insert_with(|| value.into_owned());
        }
        let content_type = named.get(header::CONTENT_TYPE.as_str()).map_or("", String::as_str);
        let text = String::from_utf8_lossy(body);
        let (body, sent) = read_body(content_type, &text);
        let mut parameters: Map<String, Value> = texts(urlencoded::pairs(query));
        parameters.extend(sent);
        Request {
            method: method.as_str().to_owned(),
            target: target.to_owned(),
            segments: path.trim_start_matches('/').split('/').map(urlencoded::decode).collect(),
            headers: named,
            body,
            parameters,
        }
    }

    /// Returns a parameter as text. Providers accept a number and its digits as a string alike.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        match self.parameters.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    pub(super) fn path(&self) -> Vec<&str> {
        self.segments.iter().map(String::as_str).collect()
    }

    /// Returns the target as it arrived, with the segments masked for which `is_secret` is true. A
    /// masked segment keeps only the part before its first colon.
    pub(super) fn masked_target(&self, is_secret: fn(&str) -> bool) -> String {
        let (path, query) = self.target.split_once('?').map_or((self.target.as_str(), None), |(p, q)| (p, Some(q)));
        let masked = path.split('/').map(|segment| match urlencoded::decode(segment) {
            decoded if !is_secret(&decoded) => segment.to_owned(),
            decoded => decoded.split_once(':').map_or(MASK.to_owned(), |(before, _)| format!("{before}:{MASK}")),
        });
        let path = masked.collect::<Vec<_>>().join("/");
        query.map_or(path.clone(), |query| format!("{path}?{query}"))
    }

    pub(super) fn masked_headers(&self) -> BTreeMap<String, String> {
        let masked = self.headers.iter().map(|(name, value)| {
            let value = match value.split_once(' ') {
                _ if !SECRET_HEADERS.contains(&name.as_str()) => value.clone(),
                // The scheme is not a secret: `Bearer ***`.
                Some((scheme, _)) if name.ends_with("authorization") => format!("{scheme} {MASK}"),
                _ => MASK.to_owned(),
            };
            (name.clone(), value)
        });
        masked.collect()
    }
}

fn read_body(content_type: &str, text: &str) -> (Value, Map<String, Value>) {
    let raw = || json!({ "raw": text });
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/x-www-form-urlencoded" => (raw(), texts(urlencoded::pairs(text))),
        "multipart/form-data" => (raw(), texts(multipart(content_type, text).into_iter())),
        // Some clients of JSON APIs do not set the content type.
        _ => match serde_json::from_str(text) {
            Ok(Value::Object(parameters)) => (Value::Object(parameters.clone()), parameters),
            Ok(other) => (other, Map::new()),
            Err(_) => (raw(), Map::new()),
        },
    }
}

fn texts(pairs: impl Iterator<Item = (String, String)>) -> Map<String, Value> {
    pairs.map(|(name, value)| (name, Value::String(value))).collect()
}

/// Returns the fields of a well-formed body. This is not a full multipart parser.
fn multipart(content_type: &str, text: &str) -> Vec<(String, String)> {
    let Some(boundary) = attribute(content_type, "boundary") else { return Vec::new() };
    let part = |part: &str| {
        let (headers, value) = part.split_once("\r\n\r\n")?;
        let value = value.strip_suffix("\r\n").unwrap_or(value);
        let value = attribute(headers, "filename").unwrap_or_else(|| value.to_owned());
        Some((attribute(headers, "name")?, value))
    };
    text.split(&format!("--{boundary}")).filter_map(part).collect()
}

/// Returns `value` of `name="value"` or `name=value` in a header.
fn attribute(header: &str, name: &str) -> Option<String> {
    let attributes = header.split([';', '\r', '\n']).filter_map(|one| one.trim().split_once('='));
    let (_, value) = attributes.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name))?;
    Some(value.trim_matches('"').to_owned())
}
