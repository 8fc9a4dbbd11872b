//! The Lambda Runtime API over HTTP, with one path per instance. This module handles the protocol;
//! the instance makes the decisions.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::{self, Body},
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    InvokeError, PAYLOAD_LIMIT,
    instance::{Call, Invocation, RESPONSE_TOO_LARGE},
    lock,
};

/// The mailbox of each instance, to which the calls of its process go.
pub(super) type Mailboxes = Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Call>>>>;

/// Reading stops at this size. Answers between `PAYLOAD_LIMIT` and this limit are read completely
/// and then rejected, so that the process reads the rejection instead of a broken connection, which
/// would end it.
const READ_LIMIT: usize = 64 * 1024 * 1024;

pub(super) async fn start() -> io::Result<(SocketAddr, Mailboxes, JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let mailboxes = Mailboxes::default();
    let runtime = Router::new()
        .route("/invocation/next", get(next))
        .route("/invocation/{request_id}/response", post(response))
        .route("/invocation/{request_id}/error", post(error))
        .route("/init/error", post(init_error))
        .with_state(mailboxes.clone());
    let router = Router::new().nest("/{instance}/2018-06-01/runtime", runtime);
    let server = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the runtime API ended");
        }
    });
    Ok((address, mailboxes, server))
}

/// Waits for an invocation, however long that takes, and returns it.
async fn next(State(mailboxes): State<Mailboxes>, Path(instance): Path<String>) -> Response {
    let (reply, invocation) = oneshot::channel();
    deliver(&mailboxes, &instance, Call::Next(reply));
    match invocation.await {
        Ok(invocation) => hand_over(invocation),
        Err(_) => refusal(StatusCode::FORBIDDEN),
    }
}

async fn response(
    State(mailboxes): State<Mailboxes>,
    Path((instance, request_id)): Path<(String, String)>,
    body: Body,
) -> Response {
    let result = match body::to_bytes(body, READ_LIMIT).await {
        Ok(body) if body.len() <= PAYLOAD_LIMIT => Ok(body),
        Ok(body) => Err(failed(RESPONSE_TOO_LARGE, format!("the response has {} bytes", body.len()))),
        Err(error) => Err(failed(RESPONSE_TOO_LARGE, error.to_string())),
    };
    answer(&mailboxes, &instance, request_id, result).await
}

async fn error(
    State(mailboxes): State<Mailboxes>,
    Path((instance, request_id)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let (error_type, message) = parse_error(&body);
    answer(&mailboxes, &instance, request_id, Err(failed(&error_type, message))).await
}

async fn init_error(State(mailboxes): State<Mailboxes>, Path(instance): Path<String>, body: Bytes) -> Response {
    let (error_type, message) = parse_error(&body);
    deliver(&mailboxes, &instance, Call::InitError(InvokeError::InitFailed { error_type, message }));
    accepted()
}

async fn answer(
    mailboxes: &Mailboxes,
    instance: &str,
    request_id: String,
    result: Result<Bytes, InvokeError>,
) -> Response {
    let (verdict, decided) = oneshot::channel();
    deliver(mailboxes, instance, Call::Answer { request_id, result, verdict });
    match decided.await {
        Ok(StatusCode::ACCEPTED) => accepted(),
        Ok(status) => refusal(status),
        Err(_) => refusal(StatusCode::FORBIDDEN),
    }
}

/// Passes a call to an instance. If the instance does not exist or is ending, this drops the call
/// with the sender in it, which rejects it.
fn deliver(mailboxes: &Mailboxes, instance: &str, call: Call) {
    if let Some(mailbox) = lock(mailboxes).get(instance) {
        let _ = mailbox.send(call);
    }
}

fn hand_over(invocation: Invocation) -> Response {
    let Invocation { request_id, deadline_ms, function, event } = invocation;
    let trace = format!("Root=1-{:08x}-{:024x};Sampled=0", deadline_ms / 1000, fastrand::u64(..));
    let headers = [
        ("Content-Type", "application/json".to_owned()),
        ("Lambda-Runtime-Aws-Request-Id", request_id),
        ("Lambda-Runtime-Deadline-Ms", deadline_ms.to_string()),
        ("Lambda-Runtime-Invoked-Function-Arn", format!("arn:aws:lambda:us-east-1:000000000000:function:{function}")),
        ("Lambda-Runtime-Trace-Id", trace),
    ];
    (headers, event).into_response()
}

fn accepted() -> Response {
    (StatusCode::ACCEPTED, Json(json!({ "status": "OK" }))).into_response()
}

fn refusal(status: StatusCode) -> Response {
    let error = json!({ "errorType": "InvalidRequest", "errorMessage": status.canonical_reason() });
    (status, Json(error)).into_response()
}

fn failed(error_type: &str, message: String) -> InvokeError {
    InvokeError::Failed { error_type: error_type.to_owned(), message }
}

/// Returns the type and the message of an error report, or the whole text if the report has another
/// format.
fn parse_error(body: &[u8]) -> (String, String) {
    let report: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let error_type = report["errorType"].as_str().unwrap_or("Unknown");
    let message = match report["errorMessage"].as_str() {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    (error_type.to_owned(), message)
}
