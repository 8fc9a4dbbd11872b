//! The response of a route that succeeded.

use lambda_http::{Body, Response};
use serde::Serialize;

use super::problem::Problem;

#[derive(Debug)]
pub struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
    headers: Vec<(&'static str, String)>,
}

impl Answer {
    pub fn json(status: u16, body: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_string(body).map_err(|error| Problem::internal().because(&error))?;
        Ok(Self::text(status, "application/json", body))
    }

    /// Creates a response that is not JSON.
    pub fn text(status: u16, content_type: &'static str, body: String) -> Self {
        Self { status, content_type, body, headers: Vec::new() }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Marks this as the same response as to the first request with this `Idempotency-Key`.
    pub fn replayed(self) -> Self {
        self.header("idempotency-replayed", "true")
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn into_response(self, request_id: &str) -> Response<Body> {
        let mut builder = Response::builder()
            .status(self.status)
            .header("content-type", self.content_type)
            .header("x-request-id", request_id);
        for (name, value) in self.headers {
            builder = builder.header(name, value);
        }
        builder.body(Body::Text(self.body)).unwrap_or_else(|_| Problem::internal().into_response(request_id))
    }
}
