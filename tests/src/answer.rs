//! An HTTP response.

use reqwest::header::HeaderMap;
use serde_json::Value;

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// Returns the code of a problem.
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    pub async fn of(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.expect("a body");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status, headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    pub fn text(&self, pointer: &str) -> String {
        let value = self.body.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_else(|| panic!("no text at {pointer} of {}", self.body)).to_owned()
    }

    /// Asserts a problem+json response with this status, this code and exactly these fields in
    /// `errors`.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, code: &str, fields: &[&str]) {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.body);
        assert_eq!(self.body["code"], code, "{}", self.body);
        assert_eq!(self.body["status"], status);
        let named: Vec<_> =
            self.body["errors"].as_array().into_iter().flatten().filter_map(|e| e["field"].as_str()).collect();
        assert_eq!(named, fields, "{}", self.body);
    }
}
