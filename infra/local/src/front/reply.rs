//! What a caller is told: a provider's answer, an error as AWS says it, or nothing.

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

/// A reply that never arrives: the connection breaks.
pub(super) fn lost() -> Response {
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("the reply is lost")) });
    let mut response = Response::new(Body::from_stream(broken));
    response.headers_mut().insert("content-length", HeaderValue::from_static("1"));
    response.extensions_mut().insert(Lost);
    response
}

/// An error as the JSON protocols of AWS say it.
pub(super) fn refusal(status_code: u16, kind: &str, more: Value) -> Response {
    let mut body = json!({"__type": format!("com.amazonaws#{kind}"), "message": kind});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    let body = body.to_string();
    let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amzn-errortype", kind)];
    (status(status_code), headers, body).into_response()
}

/// A call that no policy lets through, as the service says it.
pub(super) fn denied(service: &str, why: &Refusal) -> Response {
    let message = why.to_string();
    let more = || json!({"message": message, "Message": message});
    match service {
        "s3" => s3::refuse(403, "AccessDenied", &message),
        "ses" => refusal(403, "AccessDeniedException", more()),
        // It has kept the code that it had before it spoke JSON.
        "sqs" => {
            let mut response = refusal(403, "AccessDeniedException", more());
            let code = HeaderValue::from_static("AccessDenied;Sender");
            response.headers_mut().insert("x-amzn-query-error", code);
            response
        }
        _ => refusal(400, "AccessDeniedException", more()),
    }
}

/// An error of the service's own, as it says it.
pub(super) fn failed(service: &str) -> Response {
    match service {
        "s3" => s3::refuse(500, "InternalError", "We encountered an internal error. Please try again."),
        _ => refusal(500, "InternalServerError", Value::Null),
    }
}

/// What a fault says to answer.
pub(super) fn scripted(answer: Option<Scripted>) -> Response {
    let Some(Scripted { status, headers, body }) = answer else { return lost() };
    respond(Caught { status, headers: headers.into_iter().collect(), body })
}

/// Too much at once, as the service says it.
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

/// Too much at once, said of one statement of a batch.
pub(super) fn throttled_statement(statement: &Value) -> Value {
    let message = "Throughput exceeds the current capacity of your table or index.";
    let mut throttled = json!({"Error": {"Code": "ThrottlingError", "Message": message}});
    if let Some(known) = statement["Statement"].as_str().and_then(Statement::read) {
        throttled["TableName"] = json!(known.table);
    }
    throttled
}

/// Another transaction is at work on the rows: of a transaction, every write says so. Or on the
/// object.
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
