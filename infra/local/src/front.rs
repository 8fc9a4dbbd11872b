//! The one way from the functions to the world: every call to AWS and to a provider passes here, is known by its caller,
//! counted, and answered by the emulator that it is for.
//!
//! A caller is known by its access key. Providers take none, so their base URLs carry the caller instead:
//! `http://front/_provider/<caller>/<provider>/…`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

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
use crate::queues::Queues;

/// The largest request that any of the services takes.
const MAX_BODY: usize = 16 * 1024 * 1024;
const PROVIDER: &str = "/_provider/";

pub struct Front {
    /// Access keys and the functions that they belong to.
    pub callers: HashMap<String, String>,
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

async fn handle(State(front): State<Arc<Front>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY).await else { return StatusCode::PAYLOAD_TOO_LARGE.into_response() };
    let whole = parts.uri.path_and_query().map_or("", |path| path.as_str());
    if let Some(path) = whole.strip_prefix(PROVIDER) {
        return front.provider(path, &parts.method, &parts.headers, &body);
    }
    let signed = Signed::of(&parts.headers);
    let caller = front.callers.get(&signed.access_key).cloned().unwrap_or(signed.access_key);
    match signed.service.as_str() {
        "dynamodb" => front.dynamodb(&caller, parts.headers, body).await,
        "sqs" => {
            let operation = operation(&parts.headers);
            let target = target_of(&body);
            let response = front.queues.handle(&operation, body).await;
            front.note(&caller, "sqs", &operation, target, response.status(), Units::default());
            response
        }
        "ses" => {
            let path = parts.uri.path();
            let caught = front.catcher.ses(&caller, &parts.method, path, &parts.headers, &body);
            front.note(&caller, "ses", "SendEmail", String::new(), status(caught.status), Units::default());
            respond(caught)
        }
        other => {
            let message = format!("the local stack has no service {other:?}");
            (StatusCode::BAD_REQUEST, axum::Json(json!({"__type": "UnknownService", "message": message})))
                .into_response()
        }
    }
}

impl Front {
    async fn dynamodb(&self, caller: &str, headers: HeaderMap, body: Bytes) -> Response {
        let operation = operation(&headers);
        let target = target_of(&body);
        let forwarded = self
            .http
            .post(format!("http://{}/", self.dynamo.address))
            .headers(end_to_end(headers))
            .body(with_capacity(body))
            .send()
            .await;
        let answered = match forwarded {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers().clone());
                response.bytes().await.map(|body| (status, headers, body))
            }
            Err(error) => Err(error),
        };
        let Ok((status, headers, body)) = answered else { return StatusCode::BAD_GATEWAY.into_response() };
        let units = units(&operation, &body);
        self.note(caller, "dynamodb", &operation, target, status, units);
        self.activity.moved();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = end_to_end(headers);
        response
    }

    fn provider(&self, path: &str, method: &http::Method, headers: &HeaderMap, body: &Bytes) -> Response {
        let mut parts = path.splitn(3, '/');
        let (caller, provider) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let path = format!("/{}", parts.next().unwrap_or_default());
        let caught = match provider {
            "telegram" => self.catcher.telegram(caller, method, &path, headers, body),
            "evolution" => self.catcher.evolution(caller, method, &path, headers, body),
            _ => return StatusCode::NOT_FOUND.into_response(),
        };
        // `/bot<token>/<method>` and `/message/<method>/<instance>`: the second part is the method, the first may be secret.
        let operation = path.split(['/', '?']).nth(2).unwrap_or_default();
        self.note(caller, provider, operation, String::new(), status(caught.status), Units::default());
        respond(caught)
    }

    fn note(&self, caller: &str, service: &str, operation: &str, target: String, status: StatusCode, units: Units) {
        self.calls.note(Call {
            number: 0,
            caller: caller.to_owned(),
            service: service.to_owned(),
            operation: operation.to_owned(),
            target,
            status: status.as_u16(),
            read_units: units.read,
            write_units: units.write,
        });
    }
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
