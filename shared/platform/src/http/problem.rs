//! The error response, `application/problem+json`.
//!
//! Invalid input is a 4xx that names its fields. A fault of ours is a 5xx without internal details.
//! [`Problem::cause`] is for the log only and never reaches the caller.

use lambda_http::http::StatusCode;
use lambda_http::{Body, Response};
use serde_json::json;
use umavez_domain::codes::ProblemCode;
use umavez_domain::fields::FieldError;

use crate::store::StoreError;

#[derive(Debug)]
pub struct Problem {
    pub status: u16,
    pub code: ProblemCode,
    pub detail: String,
    pub errors: Vec<FieldError>,
    /// For the log: a code or an error of ours, never a payload.
    pub cause: Option<String>,
}

impl Problem {
    pub fn new(status: u16, code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), errors: Vec::new(), cause: None }
    }

    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        let detail = format!("invalid: {}", fields.join(", "));
        Self { errors, ..Self::new(422, ProblemCode::InvalidRequest, detail) }
    }

    /// Fails with these errors, if there are any.
    pub fn if_any(errors: Vec<FieldError>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self::invalid(errors)) }
    }

    /// The `Idempotency-Key` was used before with another body. `used_for` describes that request.
    pub fn key_reused(used_for: &str) -> Self {
        let detail = format!("this Idempotency-Key was used before, for {used_for}; another request needs another key");
        Self::new(422, ProblemCode::IdempotencyKeyReused, detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(404, ProblemCode::NotFound, detail)
    }

    pub fn internal() -> Self {
        Self::new(500, ProblemCode::Internal, "something went wrong on our side")
    }

    /// Changes the detail of a 503 for a caller without an idempotency key. It must not invite a
    /// retry: the store may have carried out the request, and a retry would take its effect for
    /// another caller's.
    pub(super) fn without_key(mut self, request_id: &str) -> Self {
        if self.status == 503 {
            self.detail = format!(
                "the database did not answer; the request may have been carried out, as `request:{request_id}`. \
                 With an Idempotency-Key it could be retried"
            );
        }
        self
    }

    pub fn because(mut self, cause: &impl ToString) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    pub(super) fn into_response(self, request_id: &str) -> Response<Body> {
        let mut body = json!({
            "type": format!("urn:umavez:problem:{}", self.code),
            "title": title(self.status),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
        });
        if !self.errors.is_empty() {
            body["errors"] = json!(self.errors);
        }
        let mut builder = Response::builder()
            .status(self.status)
            .header("content-type", "application/problem+json")
            .header("x-request-id", request_id);
        match self.status {
            401 => builder = builder.header("www-authenticate", "Bearer"),
            503 => builder = builder.header("retry-after", "1"),
            _ => {}
        }
        builder.body(Body::Text(body.to_string())).unwrap_or_else(|_| {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        })
    }
}

/// A passing fault of the store is a 503, which the caller can retry. All others are faults of
/// ours.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let problem = if error.is_passing() {
            Self::new(
                503,
                ProblemCode::Unavailable,
                "the database did not answer; retry, with the same Idempotency-Key if there was one",
            )
        } else {
            Self::internal()
        };
        problem.because(&error)
    }
}

fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use umavez_domain::codes::FieldProblem;

    use super::*;

    fn body(response: &Response<Body>) -> serde_json::Value {
        let Body::Text(text) = response.body() else { panic!("no text") };
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn a_refused_field_is_named_in_the_answer() {
        let problem = Problem::invalid(vec![FieldError::new("client_id", FieldProblem::Missing, "is required")]);
        let response = problem.into_response("r1");
        assert_eq!(response.status(), 422);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let body = body(&response);
        assert_eq!(body["code"], "invalid_request");
        assert_eq!(body["errors"][0], json!({"field": "client_id", "code": "missing", "detail": "is required"}));
        assert_eq!(body["request_id"], "r1");
    }

    #[test]
    fn internal_details_are_not_in_the_response() {
        let response = Problem::from(StoreError::Corrupt("X#1")).into_response("r1");
        assert_eq!(response.status(), 500);
        assert!(!body(&response).to_string().contains("X#1"));
    }

    #[test]
    fn a_throttled_store_is_answered_with_503_and_a_retry_after() {
        let response = Problem::from(StoreError::Throttled).into_response("r1");
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
    }
}
