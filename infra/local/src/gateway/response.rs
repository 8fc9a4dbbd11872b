//! Reads the answers of functions and authorizers.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Why an answer is not a valid response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is not JSON of the expected shape: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("it has no usable status: {0}")]
    Status(Value),
    #[error("the header {0} has no usable name or value")]
    Header(String),
    #[error("the body is not base64")]
    Base64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    status_code: Value,
    #[serde(default)]
    headers: Option<Map<String, Value>>,
    #[serde(default)]
    multi_value_headers: Option<Map<String, Value>>,
    #[serde(default)]
    cookies: Option<Vec<String>>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: Option<bool>,
}

/// Converts the answer of a function to a response. An answer without a status becomes the body of
/// a 200.
pub(super) fn to_response(answer: &[u8]) -> Result<Response, Unreadable> {
    let value: Value = serde_json::from_slice(answer)?;
    if value.get("statusCode").is_none() {
        return Ok(respond(StatusCode::OK, "application/json", answer.to_vec()));
    }
    let answer: Answer = serde_json::from_value(value)?;
    let body = answer.body.unwrap_or_default();
    let body = match answer.is_base64_encoded {
        Some(true) => BASE64_STANDARD.decode(body).map_err(|_| Unreadable::Base64)?,
        _ => body.into_bytes(),
    };
    let mut response = respond(status(&answer.status_code)?, "text/plain;charset=UTF-8", body);
    let headers = response.headers_mut();
    for (name, values) in answer.headers.into_iter().chain(answer.multi_value_headers).flatten() {
        let unusable = || Unreadable::Header(name.clone());
        let key = HeaderName::try_from(&name).map_err(|_| unusable())?;
        // The server sets the length and the connection headers itself.
        if [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION].contains(&key) {
            continue;
        }
        // If a name is in both maps, or twice in different case, the last values win.
        headers.remove(&key);
        for value in if let Value::Array(values) = values { values } else { vec![values] } {
            headers.append(&key, header_value(&value).ok_or_else(unusable)?);
        }
    }
    for cookie in answer.cookies.into_iter().flatten() {
        let value = HeaderValue::try_from(cookie).map_err(|_| Unreadable::Header("set-cookie".to_owned()))?;
        headers.append(header::SET_COOKIE, value);
    }
    Ok(response)
}

/// Reads a simple authorizer response: whether the caller is authorized, and the context for the
/// function. Returns `None` if the response is invalid.
pub(super) fn authorization(answer: &[u8]) -> Option<(bool, Value)> {
    let mut answer: Value = serde_json::from_slice(answer).ok()?;
    let authorized = answer.get("isAuthorized")?.as_bool()?;
    match answer.get_mut("context").map(Value::take) {
        None | Some(Value::Null) => Some((authorized, json!({}))),
        Some(context) => context.is_object().then_some((authorized, context)),
    }
}

/// Returns a response of the gateway itself.
pub(super) fn message(status: StatusCode) -> Response {
    // AWS uses the old name of this status.
    let reason = match status {
        StatusCode::PAYLOAD_TOO_LARGE => "Request Entity Too Large",
        _ => status.canonical_reason().unwrap_or_default(),
    };
    respond(status, "application/json", json!({ "message": reason }).to_string().into_bytes())
}

fn respond(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response {
    let typed = !body.is_empty();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    if typed {
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    response
}

fn status(value: &Value) -> Result<StatusCode, Unreadable> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|number| u16::try_from(number).ok()),
    };
    // A status below 200 does not end an exchange.
    let status =
        number.filter(|number| (200..600).contains(number)).and_then(|number| StatusCode::from_u16(number).ok());
    status.ok_or_else(|| Unreadable::Status(value.clone()))
}

fn header_value(value: &Value) -> Option<HeaderValue> {
    match value {
        Value::String(text) => HeaderValue::try_from(text).ok(),
        Value::Number(_) | Value::Bool(_) => HeaderValue::try_from(value.to_string()).ok(),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn status_headers_cookies_and_body_become_the_response() {
        let answer = json!({
            "statusCode": 201,
            "headers": { "Content-Type": "application/problem+json", "X-Number": 7, "Content-Length": "999" },
            "multiValueHeaders": { "X-Many": ["a", "b"] },
            "cookies": ["a=1; Secure", "b=2"],
            "body": "{}",
            "isBase64Encoded": false,
        });
        let (status, headers, body) = read(answer.to_string().as_bytes()).await;
        assert_eq!((status, body.as_slice()), (201, b"{}".as_slice()));
        let expected = [
            ("content-type", "application/problem+json"),
            ("set-cookie", "a=1; Secure"),
            ("set-cookie", "b=2"),
            ("x-many", "a"),
            ("x-many", "b"),
            ("x-number", "7"),
        ];
        assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[tokio::test]
    async fn an_answer_without_a_status_is_the_body() {
        for answer in [r#"{"any": ["thing"]}"#, r#""text""#, "null"] {
            let (status, headers, body) = read(answer.as_bytes()).await;
            assert_eq!((status, body), (200, answer.as_bytes().to_vec()));
            assert_eq!(headers, [("content-type".to_owned(), "application/json".to_owned())]);
        }
    }

    #[tokio::test]
    async fn base64_is_decoded_and_a_missing_body_is_empty() {
        let (_, _, body) = read(br#"{"statusCode":200,"body":"/wA=","isBase64Encoded":true}"#).await;
        assert_eq!(body, [0xff, 0x00]);
        let (status, headers, body) = read(br#"{"statusCode":204,"headers":null,"body":null}"#).await;
        assert_eq!((status, headers, body), (204, vec![], vec![]));
    }

    #[test]
    fn an_invalid_answer_is_an_error() {
        for answer in [
            "not JSON",
            r#"{"statusCode":"many"}"#,
            r#"{"statusCode":99}"#,
            r#"{"statusCode":200,"body":{"an":"object"}}"#,
            r#"{"statusCode":200,"body":"***","isBase64Encoded":true}"#,
            r#"{"statusCode":200,"headers":{"a b":"c"}}"#,
            r#"{"statusCode":200,"headers":{"a":"b\nc"}}"#,
        ] {
            assert!(to_response(answer.as_bytes()).is_err(), "{answer}");
        }
    }

    #[test]
    fn an_authorization_needs_an_explicit_true_or_false() {
        let yes = authorization(br#"{"isAuthorized":true,"context":{"who":"me"}}"#);
        assert_eq!(yes, Some((true, json!({ "who": "me" }))));
        assert_eq!(authorization(br#"{"isAuthorized":false}"#), Some((false, json!({}))));
        for answer in [r#"{"isAuthorized":"true"}"#, "{}", "null", r#"{"isAuthorized":true,"context":"me"}"#, ""] {
            assert_eq!(authorization(answer.as_bytes()), None, "{answer}");
        }
    }

    async fn read(answer: &[u8]) -> (u16, Vec<(String, String)>, Vec<u8>) {
        let (parts, body) = to_response(answer).unwrap().into_parts();
        let headers = parts.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
        let mut headers: Vec<_> = headers.collect();
        headers.sort();
        (parts.status.as_u16(), headers, axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec())
    }
}
