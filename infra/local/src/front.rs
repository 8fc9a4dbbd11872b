//! The one way from the functions to the world: every call to AWS and to a provider passes here, is known by its caller,
//! counted, and answered by the emulator that it is for.
//!
//! A caller is known by its access key. Providers take none, so their base URLs carry the caller instead:
//! `http://front/_provider/<caller>/<provider>/…`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::StackError;
use crate::activity::Activity;
use crate::calls::{Call, Calls};
use crate::catcher::{Catcher, Caught};
use crate::dynamo::Dynamo;
use crate::faults::{Action, Faults};
use crate::functions::Functions;
use crate::queues::Queues;

/// The largest request that any of the services takes.
const MAX_BODY: usize = 16 * 1024 * 1024;
const PROVIDER: &str = "/_provider/";

pub struct Front {
    /// Access keys and the functions that they belong to: binary and name.
    pub callers: HashMap<String, (String, String)>,
    pub functions: Functions,
    pub faults: Faults,
    pub dynamo: Dynamo,
    pub queues: Queues,
    pub catcher: Catcher,
    pub calls: Calls,
    pub activity: Activity,
    pub http: reqwest::Client,
}

/// The front's listener is bound before everything behind it: the functions and queues need its address.
pub async fn bind() -> Result<(TcpListener, SocketAddr), StackError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

pub fn serve(front: Front, listener: TcpListener, tasks: &mut JoinSet<()>) {
    let app = Router::new().fallback(handle).with_state(Arc::new(front));
    tasks.spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            eprintln!("the front ended: {error}");
        }
    });
}

/// A request that has arrived is carried out, whether or not its caller still waits: a task of its own is not dropped
/// with the connection.
async fn handle(State(front): State<Arc<Front>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY).await else { return StatusCode::PAYLOAD_TOO_LARGE.into_response() };
    let arrived = Arrived::of(&front, parts, body);
    let carried_out = tokio::spawn(async move { front.carry_out(arrived).await });
    carried_out.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// A call, told apart: who, what, on what.
struct Arrived {
    caller: String,
    /// The name of the calling function and the token of its process, if it is one of ours.
    process: Option<(String, String)>,
    service: String,
    operation: String,
    target: String,
    path: String,
    method: http::Method,
    headers: HeaderMap,
    body: Bytes,
}

impl Arrived {
    fn of(front: &Front, parts: http::request::Parts, body: Bytes) -> Self {
        let whole = parts.uri.path_and_query().map_or("", |path| path.as_str()).to_owned();
        let http::request::Parts { method, headers, .. } = parts;
        if let Some(path) = whole.strip_prefix(PROVIDER) {
            let mut words = path.splitn(3, '/');
            let (caller, service) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let path = format!("/{}", words.next().unwrap_or_default());
            // `/bot<token>/<method>` and `/message/<method>/<instance>`: the second part is the method, the first may be
            // secret.
            let operation = path.split(['/', '?']).nth(2).unwrap_or_default().to_owned();
            let name = front.callers.values().find(|(binary, _)| binary == caller).map(|(_, name)| name.clone());
            let process = name.map(|name| (name, String::new()));
            let (caller, service) = (caller.to_owned(), service.to_owned());
            return Self { caller, process, service, operation, target: String::new(), path, method, headers, body };
        }
        let signed = Signed::of(&headers);
        let known = front.callers.get(&signed.access_key);
        let token = headers.get("x-amz-security-token").and_then(|token| token.to_str().ok()).unwrap_or_default();
        let process = known.map(|(_, name)| (name.clone(), token.to_owned()));
        let caller = known.map_or(signed.access_key, |(binary, _)| binary.clone());
        let operation = if signed.service == "ses" { "SendEmail".to_owned() } else { operation(&headers) };
        let target = target_of(&body);
        Self { caller, process, service: signed.service, operation, target, path: whole, method, headers, body }
    }
}

impl Front {
    /// Carries a call out, or lets go wrong what was said to.
    async fn carry_out(&self, call: Arrived) -> Response {
        let Some(fault) = self.faults.on_call(&call.caller, &call.service, &call.operation, &call.target) else {
            let (response, units) = self.forward(&call).await;
            self.note(&call, response.status().as_u16(), None, units);
            return response;
        };
        let delay = Duration::from_millis(fault.delay_ms);
        let action = Some(fault.action);
        match fault.action {
            Action::KillBefore => {
                self.note(&call, 0, action, Units::default());
                self.kill(&call).await;
                lost()
            }
            Action::KillAfter => {
                let (_, units) = self.forward(&call).await;
                self.note(&call, 0, action, units);
                self.kill(&call).await;
                lost()
            }
            Action::DropReply => {
                let (_, units) = self.forward(&call).await;
                self.note(&call, 0, action, units);
                lost()
            }
            Action::ErrorBefore => {
                self.note(&call, 500, action, Units::default());
                refusal(500, "InternalServerError", Value::Null)
            }
            Action::ErrorAfter => {
                let (_, units) = self.forward(&call).await;
                self.note(&call, 500, action, units);
                refusal(500, "InternalServerError", Value::Null)
            }
            Action::Throttle => {
                self.note(&call, 400, action, Units::default());
                refusal(400, "ThrottlingException", Value::Null)
            }
            Action::Conflict => {
                self.note(&call, 400, action, Units::default());
                conflict(&call.body)
            }
            Action::DelayBefore => {
                tokio::time::sleep(delay).await;
                let (response, units) = self.forward(&call).await;
                self.note(&call, response.status().as_u16(), action, units);
                response
            }
            Action::DelayAfter => {
                let (response, units) = self.forward(&call).await;
                self.note(&call, response.status().as_u16(), action, units);
                tokio::time::sleep(delay).await;
                response
            }
        }
    }

    async fn forward(&self, call: &Arrived) -> (Response, Units) {
        let Arrived { caller, path, method, headers, body, .. } = call;
        let caught = match call.service.as_str() {
            "dynamodb" => return self.dynamodb(call).await,
            "sqs" => return (self.queues.handle(&call.operation, body.clone()).await, Units::default()),
            "ses" => self.catcher.ses(caller, method, path, headers, body),
            "telegram" => self.catcher.telegram(caller, method, path, headers, body),
            "evolution" => self.catcher.evolution(caller, method, path, headers, body),
            other => {
                let message = json!({"message": format!("the local stack has no service {other:?}")});
                return (refusal(400, "UnknownService", message), Units::default());
            }
        };
        (respond(caught), Units::default())
    }

    async fn dynamodb(&self, call: &Arrived) -> (Response, Units) {
        if let Some(stale) = self.stale(call).await {
            return (stale, Units::default());
        }
        let forwarded = self
            .http
            .post(format!("http://{}/", self.dynamo.address))
            .headers(end_to_end(call.headers.clone()))
            .body(with_capacity(call.body.clone()))
            .send()
            .await;
        let answered = match forwarded {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers().clone());
                response.bytes().await.map(|body| (status, headers, body))
            }
            Err(error) => Err(error),
        };
        let Ok((status, headers, body)) = answered else {
            return (StatusCode::BAD_GATEWAY.into_response(), Units::default());
        };
        let units = units(&call.operation, &body);
        self.activity.moved();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = end_to_end(headers);
        (response, units)
    }

    /// What an index says that lags behind, while the indexes are frozen.
    async fn stale(&self, call: &Arrived) -> Option<Response> {
        if call.operation != "Query" || !self.faults.indexes_are_frozen() {
            return None;
        }
        let body: Value = serde_json::from_slice(&call.body).ok()?;
        body.get("IndexName")?;
        match self.dynamo.query_frozen(body).await? {
            Ok(answer) => Some(axum::Json(answer).into_response()),
            Err(_) => Some(refusal(500, "InternalServerError", Value::Null)),
        }
    }

    /// The process that made the call; for a provider, which gets no token, all of the function's.
    async fn kill(&self, call: &Arrived) {
        let Some((function, token)) = &call.process else { return };
        if token.is_empty() {
            let _ = self.functions.kill(function).await;
        } else {
            self.functions.kill_process(token).await;
        }
    }

    fn note(&self, call: &Arrived, status: u16, fault: Option<Action>, units: Units) {
        let fault = fault.and_then(|action| serde_json::to_value(action).ok());
        self.calls.note(Call {
            number: 0,
            caller: call.caller.clone(),
            service: call.service.clone(),
            operation: call.operation.clone(),
            target: call.target.clone(),
            actions: actions(&call.service, &call.operation, &call.body),
            status,
            fault: fault.and_then(|action| action.as_str().map(str::to_owned)),
            read_units: units.read,
            write_units: units.write,
        });
    }
}

/// A reply that never arrives: the connection breaks.
fn lost() -> Response {
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("the reply is lost")) });
    let mut response = Response::new(Body::from_stream(broken));
    response.headers_mut().insert("content-length", HeaderValue::from_static("1"));
    response
}

/// An error as the JSON protocols of AWS say it.
fn refusal(status_code: u16, kind: &str, more: Value) -> Response {
    let mut body = json!({"__type": format!("com.amazonaws#{kind}"), "message": kind});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    let body = body.to_string();
    let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amzn-errortype", kind)];
    (status(status_code), headers, body).into_response()
}

/// Another transaction is at work on the rows: of a transaction, every write says so.
fn conflict(body: &[u8]) -> Response {
    let request: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let Some(writes) = request["TransactItems"].as_array() else {
        return refusal(400, "TransactionConflictException", Value::Null);
    };
    let reasons: Vec<_> =
        writes.iter().map(|_| json!({"Code": "TransactionConflict", "Message": "conflict"})).collect();
    refusal(400, "TransactionCanceledException", json!({"CancellationReasons": reasons}))
}

/// Who signed a request and for which service: the credential of its SigV4 header. The signature is not checked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Signed {
    access_key: String,
    service: String,
}

impl Signed {
    fn of(headers: &HeaderMap) -> Self {
        let header = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let scope = header.split_once("Credential=").map(|(_, rest)| rest).unwrap_or_default();
        let scope = scope.split([',', ' ']).next().unwrap_or_default();
        let mut parts = scope.split('/');
        let access_key = parts.next().unwrap_or_default().to_owned();
        let service = parts.nth(2).unwrap_or_default().to_owned();
        Self { access_key, service }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Units {
    read: f64,
    write: f64,
}

/// Asks for the capacity that a request consumes, which the caller's SDK does not mind in its answer.
fn with_capacity(body: Bytes) -> Bytes {
    let Ok(Value::Object(mut request)) = serde_json::from_slice::<Value>(&body) else { return body };
    request.entry("ReturnConsumedCapacity").or_insert_with(|| json!("TOTAL"));
    Bytes::from(Value::Object(request).to_string())
}

/// What a request consumed. An answer that refuses a condition does not say, though AWS charges for it: such a write is
/// counted by the size of the row that it met.
fn units(operation: &str, body: &[u8]) -> Units {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else { return Units::default() };
    let consumed = match &answer["ConsumedCapacity"] {
        Value::Array(parts) => parts.iter().filter_map(|part| part["CapacityUnits"].as_f64()).sum(),
        one => one["CapacityUnits"].as_f64().unwrap_or(0.0),
    };
    let kind = answer["__type"].as_str().unwrap_or_default();
    let kilobytes = |item: &Value| (item.to_string().len() as f64 / 1024.0).ceil().max(1.0);
    if kind.ends_with("ConditionalCheckFailedException") {
        return Units { read: 0.0, write: kilobytes(&answer["Item"]) };
    }
    if kind.ends_with("TransactionCanceledException") {
        let reasons = answer["CancellationReasons"].as_array().map(Vec::as_slice).unwrap_or_default();
        return Units { read: 0.0, write: reasons.iter().map(|reason| 2.0 * kilobytes(&reason["Item"])).sum() };
    }
    match operation {
        "GetItem" | "BatchGetItem" | "Query" | "Scan" | "TransactGetItems" => Units { read: consumed, write: 0.0 },
        _ => Units { read: 0.0, write: consumed },
    }
}

fn operation(headers: &HeaderMap) -> String {
    let target = headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
    target.rsplit('.').next().unwrap_or_default().to_owned()
}

/// The table or queue that a request names.
fn target_of(body: &[u8]) -> String {
    let Ok(request) = serde_json::from_slice::<Value>(body) else { return String::new() };
    if let Some(table) = request["TableName"].as_str() {
        return table.to_owned();
    }
    if let Some(url) = request["QueueUrl"].as_str() {
        return url.rsplit('/').next().unwrap_or_default().to_owned();
    }
    let writes = request["TransactItems"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut tables: Vec<_> = writes
        .iter()
        .filter_map(Value::as_object)
        .flat_map(|write| write.values())
        .filter_map(|write| write["TableName"].as_str())
        .collect();
    tables.dedup();
    tables.join("+")
}

/// The IAM actions of a call.
fn actions(service: &str, operation: &str, body: &[u8]) -> Vec<String> {
    if operation != "TransactWriteItems" {
        return vec![format!("{service}:{operation}")];
    }
    let request: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let writes = request["TransactItems"].as_array().map(Vec::as_slice).unwrap_or_default();
    let parts = writes.iter().filter_map(Value::as_object).flat_map(|write| write.keys());
    let mut actions: Vec<_> = parts
        .map(|part| match part.as_str() {
            "ConditionCheck" => format!("{service}:ConditionCheckItem"),
            part => format!("{service}:{part}Item"),
        })
        .collect();
    actions.sort();
    actions.dedup();
    actions
}

/// Headers that belong to a connection are not passed on.
fn end_to_end(mut headers: HeaderMap<HeaderValue>) -> HeaderMap<HeaderValue> {
    for name in ["host", "connection", "content-length", "transfer-encoding", "keep-alive", "expect"] {
        headers.remove(HeaderName::from_static(name));
    }
    headers
}

fn respond(caught: Caught) -> Response {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_and_the_service_are_read_from_the_credential() {
        let mut headers = HeaderMap::new();
        let header = "AWS4-HMAC-SHA256 Credential=local-a/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0";
        headers.insert("authorization", HeaderValue::from_static(header));
        let signed = Signed { access_key: "local-a".to_owned(), service: "dynamodb".to_owned() };
        assert_eq!(Signed::of(&headers), signed);
        assert_eq!(Signed::of(&HeaderMap::new()), Signed::default());
    }

    #[test]
    fn a_refused_condition_costs_what_the_row_it_met_weighs() {
        let row = "x".repeat(1_500);
        let refused = json!({"__type": "com.amazonaws#ConditionalCheckFailedException", "Item": {"a": {"S": row}}});
        assert_eq!(units("PutItem", refused.to_string().as_bytes()).write, 2.0);
        let put = json!({"ConsumedCapacity": {"CapacityUnits": 1.0}});
        assert_eq!(units("PutItem", put.to_string().as_bytes()).write, 1.0);
        assert_eq!(units("GetItem", put.to_string().as_bytes()).read, 1.0);
    }
}
