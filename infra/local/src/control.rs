//! The public port: the API, and `/_local/*` to inspect and control the stack.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use umavez_domain::time::Timestamp;

use crate::StackError;
use crate::faults::Fault;
use crate::functions::LogLine;
use crate::gateway::Gateway;
use crate::stack::Stack;

/// Ten years. A larger value is a typing error.
const FURTHEST: u64 = 10 * 366 * 86_400;

/// The longest wait for a log line, in seconds.
const LONGEST_WAIT: u64 = 60;

/// The largest page of the API, in bytes.
const LARGEST_PAGE: usize = 1024 * 1024;

struct Control {
    stack: Stack,
    gateway: Gateway,
}

pub fn serve(stack: &Stack, gateway: Gateway, listener: TcpListener, tasks: &mut JoinSet<()>) {
    let control = Arc::new(Control { stack: stack.clone(), gateway });
    let app = Router::new()
        .route("/_local", get(about))
        .route("/_local/sent", get(sent))
        .route("/_local/calls", get(calls))
        .route("/_local/logs", get(logs))
        .route("/_local/clock", get(time).post(move_clock))
        .route("/_local/drain", post(drain))
        .route("/_local/kill", post(kill))
        .route("/_local/ses", get(ses).post(switch_ses))
        .route("/_local/secrets", get(secrets).post(set_secret))
        .route("/_local/faults", get(faults).post(add_fault).delete(clear_faults))
        .route("/", get(home).fallback(api))
        .fallback(api)
        .with_state(control);
    tasks.spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            eprintln!("the gateway ended: {error}");
        }
    });
}

async fn api(State(control): State<Arc<Control>>, request: Request) -> Response {
    control.gateway.handle(request).await
}

/// Serves the home page of the deployment, with a link to the local routes.
async fn home(State(control): State<Arc<Control>>, request: Request) -> Response {
    let response = control.gateway.handle(request).await;
    let is_page = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    if !is_page {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let page = to_bytes(body, LARGEST_PAGE).await.unwrap_or_default();
    let page = String::from_utf8_lossy(&page).replace("</main>", "<p><a href=\"/_local\">/_local</a></p>\n</main>");
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(page))
}

async fn about(State(control): State<Arc<Control>>) -> Response {
    let stack = &control.stack;
    let model = stack.model();
    let names = |names: Vec<&String>| json!(names);
    let about = json!({
        "api": stack.url(),
        "aws": stack.front_url(),
        "now": now(stack),
        "routes": ["GET /_local/sent", "GET /_local/calls", "GET /_local/logs", "GET|POST /_local/clock",
            "POST /_local/drain", "POST /_local/kill", "GET|POST /_local/ses", "GET|POST /_local/secrets",
            "GET|POST|DELETE /_local/faults"],
        "functions": names(model.functions.iter().map(|function| &function.binary).collect()),
        "tables": names(model.tables.iter().map(|table| &table.name).collect()),
        "queues": names(model.queues.iter().map(|queue| &queue.name).collect()),
        "buckets": names(model.buckets.iter().map(|bucket| &bucket.name).collect()),
        "secrets": names(model.secrets.iter().map(|secret| &secret.name).collect()),
        "outputs": model.outputs,
        "processes": stack.functions().processes().iter().map(|(name, pid)| json!({"function": name, "pid": pid})).collect::<Vec<_>>(),
    });
    // Pretty-printed, because people open it in a browser.
    ([(CONTENT_TYPE, "application/json")], format!("{about:#}\n")).into_response()
}

#[derive(Deserialize)]
struct SentQuery {
    /// By default all channels except `responder`, on which nothing is sent.
    channel: Option<String>,
    to: Option<String>,
}

async fn sent(State(control): State<Arc<Control>>, Query(query): Query<SentQuery>) -> Json<Value> {
    Json(json!({"sent": control.stack.catcher().sent(query.channel.as_deref(), query.to.as_deref())}))
}

async fn calls(State(control): State<Arc<Control>>) -> Json<Value> {
    let totals = control.stack.calls().totals();
    let rows: Vec<_> = totals
        .into_iter()
        .map(|(caller, service, operation, total)| {
            json!({
                "caller": caller, "service": service, "operation": operation, "calls": total.calls,
                "read_units": total.read_units, "write_units": total.write_units,
            })
        })
        .collect();
    Json(json!({"calls": rows}))
}

#[derive(Deserialize)]
struct LogsQuery {
    function: Option<String>,
    limit: Option<usize>,
    /// Only lines from this number on, which is `next` of an earlier response.
    after: Option<u64>,
    /// How long to wait for a line if there is none yet.
    #[serde(default)]
    wait_seconds: u64,
    /// `json` returns the lines with their numbers.
    format: Option<String>,
}

async fn logs(State(control): State<Arc<Control>>, Query(query): Query<LogsQuery>) -> Response {
    let logs = control.stack.logs();
    let name = query.function.as_deref().map(|binary| control.stack.function_name(binary).unwrap_or(binary).to_owned());
    let is_wanted = |line: &LogLine| name.as_ref().is_none_or(|name| line.function == *name);
    let from = query.after.unwrap_or(0);
    if query.wait_seconds > 0 {
        logs.wait_for(from, Duration::from_secs(query.wait_seconds.min(LONGEST_WAIT)), is_wanted).await;
    }
    let next = logs.position();
    let mut lines = logs.since(from);
    lines.retain(|line| line.number < next && is_wanted(line));
    let most = query.limit.unwrap_or(if from == 0 { 200 } else { usize::MAX });
    let shown = &lines[lines.len().saturating_sub(most)..];
    if query.format.as_deref() == Some("json") {
        let lines: Vec<_> = shown
            .iter()
            .map(|line| json!({"number": line.number, "function": line.function, "line": line.line}))
            .collect();
        return Json(json!({"lines": lines, "next": next})).into_response();
    }
    shown.iter().map(|line| format!("[{}] {}\n", line.function, line.line)).collect::<String>().into_response()
}

async fn time(State(control): State<Arc<Control>>) -> Json<Value> {
    Json(clock(&control.stack))
}

/// Returns the stack's time as text and in seconds since the epoch, and its offset from the
/// machine's time.
fn clock(stack: &Stack) -> Value {
    let now = now(stack);
    json!({"now": now, "unix": now.seconds(), "offset_seconds": stack.clock().offset_ms() / 1_000})
}

/// Moves time forward, or resets it to the machine's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveClock {
    advance_seconds: Option<u64>,
    #[serde(default)]
    reset: bool,
    /// Whether to remove rows that have expired by then, which TTL would do some days later.
    #[serde(default = "yes")]
    sweep_ttl: bool,
}

fn yes() -> bool {
    true
}

async fn move_clock(State(control): State<Arc<Control>>, body: Json<MoveClock>) -> Response {
    let stack = &control.stack;
    let moved = match (body.advance_seconds, body.reset) {
        (Some(seconds @ 0..=FURTHEST), false) => stack.advance(Duration::from_secs(seconds), body.sweep_ttl).await,
        (None, true) => stack.reset_clock().await,
        _ => {
            let message = format!("takes either `advance_seconds`, at most {FURTHEST}, or `reset: true`");
            return (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({"message": message}))).into_response();
        }
    };
    answer(moved.map(|()| clock(stack)))
}

#[derive(Deserialize)]
struct DrainQuery {
    /// Also waits for queue messages that are due within this many seconds.
    #[serde(default)]
    within_seconds: u64,
}

async fn drain(State(control): State<Arc<Control>>, Query(query): Query<DrainQuery>) -> Response {
    let drained = control.stack.drain_within(Duration::from_secs(query.within_seconds.min(FURTHEST))).await;
    answer(drained.map(|()| json!({"drained": true})))
}

/// Returns the faults that can still apply.
async fn faults(State(control): State<Arc<Control>>) -> Json<Value> {
    Json(json!({"faults": control.stack.faults().waiting()}))
}

async fn add_fault(State(control): State<Arc<Control>>, Json(fault): Json<Fault>) -> Response {
    answer(control.stack.add_fault(fault).await.map(|()| json!({"faults": control.stack.faults().waiting()})))
}

async fn clear_faults(State(control): State<Arc<Control>>) -> Json<Value> {
    control.stack.clear_faults();
    Json(json!({"faults": []}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ses {
    /// Whether SES publishes events of the emails that it accepts.
    events: bool,
}

async fn ses(State(control): State<Arc<Control>>) -> Json<Value> {
    Json(json!({"events": control.stack.email_events().are_on()}))
}

async fn switch_ses(State(control): State<Arc<Control>>, body: Json<Ses>) -> Json<Value> {
    control.stack.email_events().switch(body.events);
    Json(json!({"events": body.events}))
}

/// Lists names, never values.
async fn secrets(State(control): State<Arc<Control>>) -> Json<Value> {
    let all = control.stack.model().secrets.iter();
    let rows: Vec<_> = all.map(|one| json!({"id": one.logical_id, "name": one.name, "arn": one.arn})).collect();
    Json(json!({"secrets": rows}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetSecret {
    /// The logical id, the name or the ARN.
    name: String,
    value: Value,
}

async fn set_secret(State(control): State<Arc<Control>>, body: Json<SetSecret>) -> Response {
    let version = control.stack.secrets().set(&body.name, &body.value);
    answer(version.map(|version| json!({"name": body.name, "version_id": version})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kill {
    function: String,
}

async fn kill(State(control): State<Arc<Control>>, body: Json<Kill>) -> Response {
    let stack = &control.stack;
    let name = stack.function_name(&body.function).unwrap_or(&body.function).to_owned();
    match stack.functions().kill(&name).await {
        Ok(killed) => Json(json!({"killed": killed})).into_response(),
        Err(error) => (StatusCode::NOT_FOUND, Json(json!({"message": error.to_string()}))).into_response(),
    }
}

fn answer(result: Result<Value, StackError>) -> Response {
    match result {
        Ok(body) => Json(body).into_response(),
        Err(error @ (StackError::Fault(_) | StackError::Secret(_))) => {
            (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({"message": error.to_string()}))).into_response()
        }
        Err(error) => (StatusCode::CONFLICT, Json(json!({"message": error.to_string()}))).into_response(),
    }
}

fn now(stack: &Stack) -> Timestamp {
    Timestamp::from_millis(stack.clock().now_ms())
}
