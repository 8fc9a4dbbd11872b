//! The single entry point for all calls that functions make: every call to AWS and to a provider
//! passes here. The front identifies the caller, checks the policies of its role, records the call,
//! and passes it to the emulator of the service.
//!
//! A caller is identified by its access key and its session token. Calls to providers have neither,
//! so the base URL of a provider carries both: `http://provider.local/telegram` in the environment
//! of a function becomes `http://front/_provider/<caller>@<token>/telegram`.

mod call;
mod reply;
mod statements;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod units;

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::call::{Arrived, end_to_end};
use self::reply::{Lost, conflict, denied, failed, lost, refusal, respond, scripted, throttled, throttled_statement};
use self::units::{Units, units, with_capacity};
use crate::StackError;
use crate::calls::{Call, Calls};
use crate::catcher::Catcher;
use crate::dynamo::{Answered, KeyLimits};
use crate::email_events::EmailEvents;
use crate::faults::Action;
use crate::parts::Parts;
use crate::permissions::Permissions;
use crate::s3::{Posted, S3, What};
use crate::secrets::{Refusal, Secrets};

/// The largest request that any of the services accepts, except S3, whose bodies are streamed.
const MAX_BODY: usize = 16 * 1024 * 1024;
const PROVIDER: &str = "/_provider/";
/// The base URL of providers in the parameters of a template. It routes their calls to the catcher.
pub const PROVIDER_URL_BASE: &str = "http://provider.local/";

/// Returns the URL that replaces [`PROVIDER_URL_BASE`] for the processes of a function.
pub fn provider_base(front_url: &str, binary: &str) -> String {
    format!("{front_url}{PROVIDER}{binary}@{}/", crate::functions::INSTANCE)
}

pub struct Front {
    pub permissions: Permissions,
    pub parts: Parts,
    pub catcher: Catcher,
    pub email_events: EmailEvents,
    pub secrets: Secrets,
    pub s3: S3,
    pub calls: Calls,
    pub http: reqwest::Client,
}

/// Binds the listener of the front. This comes first because the functions and queues need its
/// address.
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

/// Handles a request. It runs in a task of its own, which is not dropped with the connection, so a
/// request that has arrived is carried out even if its caller no longer waits.
async fn handle(State(front): State<Arc<Front>>, request: Request) -> Response {
    let is_head = request.method() == Method::HEAD;
    let arrived = match Arrived::at_s3(&front, request) {
        Ok(arrived) if arrived.method == Method::OPTIONS => return front.preflight(&arrived),
        Ok(arrived) => arrived,
        Err(request) => {
            let (parts, body) = request.into_parts();
            let Ok(body) = to_bytes(body, MAX_BODY).await else { return StatusCode::PAYLOAD_TOO_LARGE.into_response() };
            Arrived::of(&front, parts, body)
        }
    };
    let carried_out = tokio::spawn(async move { front.carry_out(arrived).await });
    let response = carried_out.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response());
    if is_head && response.extensions().get::<Lost>().is_some() {
        // A reply to HEAD has no body to break. The panic ends the task of the connection, which
        // closes it.
        resume_unwind(Box::new(Lost));
    }
    response
}

impl Front {
    /// Carries out a call, or applies the fault that is armed for it.
    async fn carry_out(&self, call: Arrived) -> Response {
        let under_way = self.parts.activity.begin();
        if let Err(refusal) = self.permissions.check(call.answers_for(), &call.to_be_granted(), &call.context()) {
            let response = denied(&call.service, &refusal);
            self.note(&call, response.status().as_u16(), None, Units::default());
            return response;
        }
        let Some(fault) = self.parts.faults.on_call(&call.caller, &call.service, &call.operation, &call.target) else {
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
                failed(&call.service)
            }
            Action::ErrorAfter => {
                let (_, units) = self.forward(&call).await;
                self.note(&call, 500, action, units);
                failed(&call.service)
            }
            Action::Answer => {
                let response = scripted(fault.answer);
                self.note(&call, response.status().as_u16(), action, Units::default());
                response
            }
            Action::Throttle => {
                let response = throttled(&call.service);
                self.note(&call, response.status().as_u16(), action, Units::default());
                response
            }
            Action::Conflict => {
                let response = conflict(&call.service, &call.request);
                self.note(&call, response.status().as_u16(), action, Units::default());
                response
            }
            Action::Partial => {
                let (response, units) = self.forward_half(&call).await;
                self.note(&call, response.status().as_u16(), action, units);
                response
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
                drop(under_way);
                tokio::time::sleep(delay).await;
                response
            }
        }
    }

    async fn forward(&self, call: &Arrived) -> (Response, Units) {
        if let Some((object, request)) = call.object.as_ref().and_then(|object| Some((object, object.take()?))) {
            let mut response = self.s3.handle(&object.what, request).await;
            if let Some(posted) = response.extensions_mut().remove::<Posted>() {
                let _ = object.posted.set(posted);
            }
            self.parts.activity.moved();
            return (self.or_not_for_them(call, &object.what, response), Units::default());
        }
        let Arrived { caller, path, method, headers, body, .. } = call;
        let caught = match call.service.as_str() {
            "dynamodb" => return self.dynamodb(call).await,
            "sqs" => return (self.parts.queues.handle(&call.operation, body.clone()).await, Units::default()),
            "secretsmanager" => return (self.secretsmanager(call), Units::default()),
            "ses" => {
                let caught = self.catcher.ses(caller, method, path, headers, body);
                // Publish before the answer: on AWS too, an event can arrive before the sender has
                // recorded the email as sent.
                self.email_events.publish(body, &caught).await;
                caught
            }
            "telegram" => self.catcher.telegram(caller, method, path, headers, body),
            "evolution" => self.catcher.evolution(caller, method, path, headers, body),
            "responder" => self.catcher.responder(caller, method, path, headers, body),
            other => {
                let message = json!({"message": format!("the local stack has no service {other:?}")});
                return (refusal(400, "UnknownService", message), Units::default());
            }
        };
        (respond(caught), Units::default())
    }

    /// Turns a 404 into a 403 if the caller may not list the bucket: such a caller must not learn
    /// which objects are missing.
    fn or_not_for_them(&self, call: &Arrived, what: &What, response: Response) -> Response {
        if response.status() != StatusCode::NOT_FOUND || !what.is_read() {
            return response;
        }
        let (needed, prefix) = what.needed_to_miss();
        match self.permissions.check(call.answers_for(), &[needed], &[("s3:prefix", prefix.to_owned())]) {
            Ok(()) => response,
            Err(refusal) => denied(&call.service, &refusal),
        }
    }

    fn secretsmanager(&self, call: &Arrived) -> Response {
        match self.secrets.handle(&call.operation, &call.body) {
            Ok(answer) => ([("content-type", "application/x-amz-json-1.1")], answer.to_string()).into_response(),
            Err(Refusal { kind: "InternalServiceError", message }) => {
                refusal(500, "InternalServiceError", json!({"message": message}))
            }
            Err(Refusal { kind, message }) => refusal(400, kind, json!({"message": message})),
        }
    }

    fn preflight(&self, call: &Arrived) -> Response {
        let what = call.object.as_ref().map(|object| &object.what);
        what.map_or_else(|| StatusCode::FORBIDDEN.into_response(), |what| self.s3.preflight(what, &call.headers))
    }

    async fn dynamodb(&self, call: &Arrived) -> (Response, Units) {
        if let Some(stale) = self.stale(call).await {
            return (stale, Units::default());
        }
        match self.ask_dynamodb(call, &call.request, &call.body).await {
            Some(Answered { status, headers, body }) => {
                let units = units(&call.operation, &call.request, &body);
                (answer(status, headers, body), units)
            }
            None => (StatusCode::BAD_GATEWAY.into_response(), Units::default()),
        }
    }

    /// Carries out the first half of a batch of statements and throttles each of the rest.
    async fn forward_half(&self, call: &Arrived) -> (Response, Units) {
        let mut request = call.request.clone();
        let Some(statements) = request["Statements"].as_array_mut() else { return self.forward(call).await };
        let rest = statements.split_off(statements.len() / 2);
        let throttled = rest.iter().map(throttled_statement);
        if statements.is_empty() {
            let all: Vec<_> = throttled.collect();
            return (axum::Json(json!({"Responses": all})).into_response(), Units::default());
        }
        let body = Bytes::from(request.to_string());
        let Some(Answered { status, mut headers, body }) = self.ask_dynamodb(call, &request, &body).await else {
            return (StatusCode::BAD_GATEWAY.into_response(), Units::default());
        };
        let units = units(&call.operation, &request, &body);
        let mut result: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let Some(responses) = result["Responses"].as_array_mut() else { return (answer(status, headers, body), units) };
        responses.extend(throttled);
        // The checksum is of the emulator's body.
        headers.remove("x-amz-crc32");
        (answer(status, headers, Bytes::from(result.to_string())), units)
    }

    /// Sends the request to the emulator, unless AWS would reject it and the emulator would not.
    /// Returns `None` if the emulator does not answer.
    async fn ask_dynamodb(&self, call: &Arrived, request: &Value, body: &Bytes) -> Option<Answered> {
        let dynamo = &self.parts.dynamo;
        let (headers, body) = (end_to_end(call.headers.clone()), with_capacity(request, body));
        let ours = async {
            if let Some(message) = dynamo.key_limits.refusal(&call.operation, request) {
                return Some(Answered::validation_exception(&message));
            }
            let url = format!("http://{}/", dynamo.address);
            Answered::of(self.http.post(url).headers(headers.clone()).body(body.clone())).await.map(KeyLimits::as_aws)
        };
        let answered = match &dynamo.beside {
            Some(beside) => beside.compare(&call.operation, request, &headers, &body, ours).await,
            None => ours.await,
        }?;
        self.parts.activity.moved();
        Some(Answered { headers: end_to_end(answered.headers), ..answered })
    }

    /// Returns the answer of an index that lags behind, while the indexes are frozen. A consistent
    /// read does not lag: a local index is up to date, and a global one rejects it.
    async fn stale(&self, call: &Arrived) -> Option<Response> {
        let is_consistent = call.request["ConsistentRead"] == true;
        if call.operation != "Query" || is_consistent || !self.parts.faults.indexes_are_frozen() {
            return None;
        }
        call.request.get("IndexName")?;
        if self.parts.dynamo.key_limits.refusal(&call.operation, &call.request).is_some() {
            return None;
        }
        match self.parts.dynamo.query_frozen(call.request.clone()).await? {
            Ok(answer) => Some(axum::Json(answer).into_response()),
            Err(_) => Some(refusal(500, "InternalServerError", Value::Null)),
        }
    }

    /// Kills the process that made the call.
    async fn kill(&self, call: &Arrived) {
        self.parts.functions.kill_process(&call.process).await;
    }

    fn note(&self, call: &Arrived, status: u16, fault: Option<Action>, units: Units) {
        let fault = fault.and_then(|action| serde_json::to_value(action).ok());
        self.calls.note(Call {
            number: 0,
            caller: call.caller.clone(),
            service: call.service.clone(),
            operation: call.operation.clone(),
            target: call.target.clone(),
            key: call.key(),
            actions: call.needed(),
            signer: call.signer(self),
            status,
            fault: fault.and_then(|action| action.as_str().map(str::to_owned)),
            read_units: units.read,
            write_units: units.write,
        });
    }
}

fn answer(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
