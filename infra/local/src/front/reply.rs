//! The replies to callers: the answer of a provider, an error in the format of AWS, or a lost
//! reply.

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::statements::Statement;
use crate::catcher::Caught;
use crate::faults::Scripted;
use crate::permissions::Refusal;
use crate::s3;

/// Marks a reply that never arrives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost;

/// Returns a reply that never arrives: the connection breaks.
pub(super) fn lost() -> Response {
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("the reply is lost")) });
    let mut response = Response::new(Body::from_stream(broken));
    response.headers_mut().insert("content-length", HeaderValue::from_static("1"));
    response.extensions_mut().insert(Lost);
    response
}

/// Returns an error in the format of the AWS JSON protocols.
pub(super) fn refusal(status_code: u16, kind: &str, more: Value) -> Response {
    let mut body = json!({"__type": format!("com.amazonaws#{kind}"), "message": kind});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    let body = body.to_string();
    let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amzn-errortype", kind)];
    (status(status_code), headers, body).into_response()
}

/// Returns the error of the service for a call that no policy allows.
pub(super) fn denied(service: &str, why: &Refusal) -> Response {
    let message = why.to_string();
    let more = || json!({"message": message, "Message": message});
    match service {
        "s3" => s3::refuse(403, "AccessDenied", &message),
        "ses" => refusal(403, "AccessDeniedException", more()),
        // SQS keeps the error code of its query protocol.
        "sqs" => {
            let mut response = refusal(403, "AccessDeniedException", more());
            let code = HeaderValue::from_static("AccessDenied;Sender");
            response.headers_mut().insert("x-amzn-query-error", code);
            response
        }
        _ => refusal(400, "AccessDeniedException", more()),
    }
}

/// Returns the internal error of the service.
pub(super) fn failed(service: &str) -> Response {
    match service {
        "s3" => s3::refuse(500, "InternalError", "We encountered an internal error. Please try again."),
        _ => refusal(500, "InternalServerError", Value::Null),
    }
}

/// Returns the answer that a fault specifies.
pub(super) fn scripted(answer: Option<Scripted>) -> Response {
    let Some(Scripted { status, headers, body }) = answer else { return lost() };
    respond(Caught { status, headers: headers.into_iter().collect(), body })
}

/// Returns the throttling error of the service.
pub(super) fn throttled(service: &str) -> Response {
    match service {
        "telegram" => {
            let body = json!({
                "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 1",
                "parameters": {"retry_after": 1},
            });
            (StatusCode::TOO_MANY_REQUESTS, axum::Json(body)).into_response()
        }
        "evolution" => {
            let body = json!({"status": 429, "error": "Too Many Requests"});
            (StatusCode::TOO_MANY_REQUESTS, axum::Json(body)).into_response()
        }
        "responder" => {
            let body = json!({"error": "too many requests"});
            (StatusCode::TOO_MANY_REQUESTS, axum::Json(body)).into_response()
        }
        "s3" => s3::refuse(503, "SlowDown", "Please reduce your request rate."),
        "ses" => refusal(429, "TooManyRequestsException", Value::Null),
        _ => refusal(400, "ThrottlingException", Value::Null),
    }
}

/// Returns the throttling error of one statement of a batch.
pub(super) fn throttled_statement(statement: &Value) -> Value {
    let message = "Throughput exceeds the current capacity of your table or index.";
    let mut throttled = json!({"Error": {"Code": "ThrottlingError", "Message": message}});
    if let Some(known) = statement["Statement"].as_str().and_then(Statement::read) {
        throttled["TableName"] = json!(known.table);
    }
    throttled
}

/// Returns the error for a conflict with another transaction on the same rows (every write of a
/// transaction reports it), or with another operation on the same object.
pub(super) fn conflict(service: &str, request: &Value) -> Response {
    if service == "s3" {
        let message = "A conflicting operation occurred during your conditional request.";
        return s3::refuse(409, "ConditionalRequestConflict", message);
    }
    let Some(writes) = request["TransactItems"].as_array() else {
        return refusal(400, "TransactionConflictException", Value::Null);
    };
    let reasons: Vec<_> =
        writes.iter().map(|_| json!({"Code": "TransactionConflict", "Message": "conflict"})).collect();
    refusal(400, "TransactionCanceledException", json!({"CancellationReasons": reasons}))
}

pub(super) fn respond(caught: Caught) -> Response {
    let mut response = (status(caught.status), axum::Json(caught.body)).into_response();
    for (name, value) in caught.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
