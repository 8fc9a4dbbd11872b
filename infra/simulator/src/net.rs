//! The network between the functions and everything else: AWS and the providers.
//!
//! Every call is a task of its own: a caller that is killed or stops waiting does not take back
//! what is already on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};
use umavez_local::catcher::Catcher;
use umavez_local::model::Model;
use umavez_local::secrets::Secrets;

use crate::broken;
use crate::dice::Dice;
use crate::objects::Objects;
use crate::profile::Profile;
use crate::providers::{Heard, Reaction, recipient, text_of};
use crate::queues::Queues;
use crate::tables::Tables;
use crate::trace::Trace;

/// How a call to AWS fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The request does not arrive.
    LostRequest,
    /// The request is carried out, but the reply does not arrive.
    LostReply,
    /// The service answers with an error and does nothing.
    ErrorBefore,
    /// The service carries out the request and answers with an error.
    ErrorAfter,
    Throttled,
    /// Another transaction changes the same rows.
    Conflict,
    /// The request arrives when its caller has stopped waiting, perhaps after its retry.
    LateRequest,
    /// The reply arrives when its caller has stopped waiting.
    LateReply,
}

/// Later than the attempt timeout of the AWS clients.
const LATE: Duration = Duration::from_millis(2_900);

#[derive(Clone)]
pub struct Net(Arc<Shared>);

struct Shared {
    dice: Dice,
    profile: Profile,
    pub began: Instant,
    epoch_ms: i64,
    tables: Tables,
    secrets: Secrets,
    catcher: Catcher,
    /// Wakes the mappings: a row or a queue may have changed.
    moved: Notify,
    state: Mutex<State>,
}

struct State {
    trace: Trace,
    queues: Queues,
    objects: Objects,
    heard: Vec<Heard>,
    /// The rows that began an attempt, and when.
    claims: Vec<(String, u64)>,
    /// The tokens of transactions.
    tokens: BTreeSet<String>,
    /// The conditional writes that were made.
    conditions: BTreeSet<String>,
    /// How often each table was written to.
    writes: BTreeMap<String, u64>,
    /// Whether faults still happen.
    is_quiet: bool,
    calls: u64,
}

impl Net {
    pub fn new(model: &Model, secrets: Secrets, dice: Dice, profile: Profile, began: Instant, epoch_ms: i64) -> Self {
        let now = Arc::new(move || epoch_ms + i64::try_from(began.elapsed().as_millis()).unwrap_or(0));
        let (trace, queues, heard) = (Trace::default(), Queues::new(model), Vec::new());
        Self(Arc::new(Shared {
            dice,
            profile,
            began,
            epoch_ms,
            tables: Tables::new(model, (began, epoch_ms)),
            secrets,
            catcher: Catcher::new(now),
            moved: Notify::new(),
            state: Mutex::new(State {
                trace,
                queues,
                objects: Objects::default(),
                heard,
                claims: Vec::new(),
                tokens: BTreeSet::new(),
                conditions: BTreeSet::new(),
                writes: BTreeMap::new(),
                is_quiet: false,
                calls: 0,
            }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn dice(&self) -> Dice {
        self.0.dice
    }

    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    pub fn tables(&self) -> &Tables {
        &self.0.tables
    }

    pub fn epoch(&self) -> (Instant, i64) {
        (self.0.began, self.0.epoch_ms)
    }

    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn now_ms(&self) -> i64 {
        self.0.epoch_ms + i64::try_from(self.elapsed_ms()).unwrap_or(0)
    }

    pub fn with_queues<T>(&self, change: impl FnOnce(&mut Queues) -> T) -> T {
        change(&mut self.state().queues)
    }

    pub fn heard(&self) -> Vec<Heard> {
        self.state().heard.clone()
    }

    /// Returns when the latest attempt of a row began before this time.
    pub fn claimed_ms(&self, pk: &str, before_ms: u64) -> Option<u64> {
        let state = self.state();
        let mut claims = state.claims.iter().filter(|(row, at_ms)| row == pk && *at_ms <= before_ms);
        claims.next_back().map(|(_, at_ms)| *at_ms)
    }

    /// Returns the conditional writes that were made, as sentences.
    pub fn conditions(&self) -> BTreeSet<String> {
        self.state().conditions.clone()
    }

    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    pub fn take_trace(&self) -> Trace {
        std::mem::take(&mut self.state().trace)
    }

    pub fn be_quiet(&self) {
        self.note("--- no more faults");
        self.state().is_quiet = true;
    }

    /// Returns how often a table was written to.
    pub fn writes(&self, table: &str) -> u64 {
        self.state().writes.get(table).copied().unwrap_or(0)
    }

    pub fn is_quiet(&self) -> bool {
        self.state().is_quiet
    }

    pub fn note(&self, line: &str) {
        let at = self.elapsed_ms();
        self.state().trace.note(at, line);
    }

    /// Numbers a decision of this kind.
    pub fn decision(&self, kind: &str) -> String {
        self.state().trace.decision(kind)
    }

    /// Decides whether a fault strikes, and records it. A fault that the play leaves out does not.
    pub fn strikes(&self, decision: &str, percent: u32) -> bool {
        let is_drawn = !self.is_quiet() && self.0.dice.chance(decision, percent);
        let strikes = is_drawn && !self.0.profile.left_out.contains(decision);
        if strikes {
            self.state().trace.faults.insert(decision.to_owned());
        }
        strikes
    }

    pub async fn moved(&self) {
        self.0.moved.notified().await;
    }

    pub fn wake(&self) {
        self.0.moved.notify_waiters();
    }

    /// Returns the network as one function instance sees it.
    pub fn of(&self, instance: &str) -> Connection {
        Connection { net: self.clone(), instance: instance.into() }
    }

    async fn carry(self, instance: Arc<str>, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let uri = request.uri().to_owned();
        if let Some(path) = uri.strip_prefix("http://provider.local/") {
            return self.carry_to_provider(&instance, path, &request).await;
        }
        let header = |name: &str| request.headers().get(name).unwrap_or_default();
        let service = header("authorization").split('/').nth(3).unwrap_or_default().to_owned();
        if service == "ses" {
            return self.carry_to_provider(&instance, "ses/v2/email/outbound-emails", &request).await;
        }
        let operation = match service.as_str() {
            "s3" => request.method().to_owned(),
            _ => header("x-amz-target").rsplit('.').next().unwrap_or_default().to_owned(),
        };
        let body = request.body().bytes().unwrap_or_default().to_vec();
        let what = describe(&operation, &body);
        let decision = self.decision(&format!("{} {operation}", function_of(&instance)));
        let mut dice = self.0.dice.of(&decision);
        let (before, after) = (dice.u64(1..=15), dice.u64(1..=15));
        let fault = self.fault(&decision, &operation, &mut dice);
        sleep(Duration::from_millis(before)).await;
        if fault == Some(Fault::LateRequest) {
            sleep(LATE + Duration::from_millis(dice.u64(0..8_000))).await;
        }
        if service == "s3" && !matches!(fault, Some(Fault::Throttled | Fault::ErrorBefore | Fault::LostRequest)) {
            let answered = self.state().objects.call(&request);
            self.note(&format!("{instance} S3 {operation} {uri} -> {}", answered.status().as_u16()));
            sleep(Duration::from_millis(after)).await;
            return match fault {
                Some(Fault::LostReply) => Err(ConnectorError::io("the connection was closed".into())),
                _ => Ok(answered),
            };
        }
        let (status, answer) = match fault {
            Some(Fault::Throttled) => throttled(&service),
            Some(Fault::ErrorBefore) => (500, internal()),
            Some(Fault::Conflict) => conflict(&operation, &body),
            Some(Fault::LostRequest) => (0, Vec::new()),
            _ => self.serve(function_of(&instance), &service, &operation, &body),
        };
        let struck = fault.map_or(String::new(), |fault| format!(" [{fault:?}]"));
        // Most queries are of sweeps that find nothing.
        if operation != "Query" || fault.is_some() || !answer.ends_with(b"\"Count\":0}") {
            self.note(&format!("{instance} {operation} {what} -> {status}{struck}"));
        }
        self.wake();
        if fault == Some(Fault::LateReply) {
            sleep(LATE).await;
        }
        sleep(Duration::from_millis(after)).await;
        match fault {
            Some(Fault::LostRequest | Fault::LostReply) => Err(ConnectorError::io("the connection was closed".into())),
            Some(Fault::ErrorAfter) => Ok(response(500, internal())),
            _ => Ok(response(status, answer)),
        }
    }

    fn fault(&self, decision: &str, operation: &str, dice: &mut fastrand::Rng) -> Option<Fault> {
        let is_write = !matches!(operation, "GetItem" | "Query" | "BatchGetItem" | "GetSecretValue");
        let faults: &[Fault] = match (is_write, operation) {
            (_, "TransactWriteItems") => &[
                Fault::LostRequest,
                Fault::LostReply,
                Fault::LostReply,
                Fault::ErrorBefore,
                Fault::ErrorAfter,
                Fault::Throttled,
                Fault::Conflict,
                Fault::LateRequest,
                Fault::LateReply,
            ],
            (true, _) => &[
                Fault::LostRequest,
                Fault::LostReply,
                Fault::LostReply,
                Fault::ErrorBefore,
                Fault::ErrorAfter,
                Fault::Throttled,
                Fault::LateRequest,
                Fault::LateReply,
            ],
            (false, _) => &[Fault::LostReply, Fault::ErrorBefore, Fault::Throttled, Fault::LateReply],
        };
        self.strikes(decision, self.0.profile.calls).then(|| faults[dice.usize(0..faults.len())])
    }

    /// Collects the conditional writes of a request, and takes the condition off the broken one.
    fn note_conditions(&self, function: &str, operation: &str, body: &[u8]) -> Vec<u8> {
        if matches!(operation, "GetItem" | "Query" | "BatchGetItem") {
            return body.to_vec();
        }
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        self.state().conditions.extend(broken::sentences(function, operation, &request));
        match &self.0.profile.broken {
            Some(sentence) => broken::without(sentence, function, operation, &request).to_string().into_bytes(),
            None => body.to_vec(),
        }
    }

    /// Records which rows a write moves to SENDING: that is when an attempt begins. A transaction
    /// that is repeated with its own token has no effect.
    fn note_claims(&self, body: &[u8]) {
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let token = request["ClientRequestToken"].as_str().unwrap_or_default().to_owned();
        let mut state = self.state();
        if !token.is_empty() && !state.tokens.insert(token) {
            return;
        }
        let items = request["TransactItems"].as_array().into_iter().flatten();
        let writes = items.filter_map(|item| item.as_object()?.values().next()).chain([&request]);
        for write in writes.filter(|write| write["ExpressionAttributeValues"].to_string().contains("\"SENDING\"")) {
            let is_set = write["UpdateExpression"].as_str().is_some_and(|update| update.contains("SET"));
            if let Some(pk) = write["Key"]["pk"]["S"].as_str().filter(|_| is_set) {
                let claim = (pk.to_owned(), self.elapsed_ms());
                state.claims.push(claim);
            }
        }
    }

    fn serve(&self, function: &str, service: &str, operation: &str, body: &[u8]) -> (u16, Vec<u8>) {
        self.state().calls += 1;
        match service {
            "dynamodb" => {
                let body = &self.note_conditions(function, operation, body);
                let answered = self.0.tables.call(operation, body);
                if answered.0 == 200 && !matches!(operation, "GetItem" | "Query" | "BatchGetItem") {
                    self.note_claims(body);
                    for table in tables_of(body) {
                        *self.state().writes.entry(table).or_default() += 1;
                    }
                }
                answered
            }
            "sqs" => {
                let now = self.now_ms();
                self.with_queues(|queues| queues.call(operation, body, now))
            }
            "secretsmanager" => match self.0.secrets.handle(operation, body) {
                Ok(answer) => (200, answer.to_string().into_bytes()),
                Err(refusal) => {
                    (400, json!({"__type": refusal.kind, "message": refusal.message}).to_string().into_bytes())
                }
            },
            other => panic!("the simulator has no service {other:?} ({operation})"),
        }
    }

    /// Carries a call to a provider. What the provider did is on record, whatever its caller
    /// learns of it.
    async fn carry_to_provider(
        &self,
        instance: &Arc<str>,
        path: &str,
        request: &HttpRequest,
    ) -> Result<HttpResponse, ConnectorError> {
        let (provider, path) = path.split_once('/').unwrap_or((path, ""));
        let body = bytes::Bytes::from(request.body().bytes().unwrap_or_default().to_vec());
        let text = text_of(provider, &body);
        let decision = self.decision(&format!("{provider} hears {text}"));
        let mut dice = self.0.dice.of(&decision);
        let reaction = match self.strikes(&decision, self.0.profile.providers) {
            true => Reaction::draw(&mut dice),
            false => Reaction::Accepts,
        };
        sleep(Duration::from_millis(dice.u64(1..=400))).await;
        let to = recipient(provider, &body);
        let heard = Heard { at_ms: self.elapsed_ms(), provider: provider.to_owned(), to, text: text.clone(), reaction };
        self.state().heard.push(heard);
        self.note(&format!("{instance} {provider} hears {text:?}: {reaction:?}"));
        let accepted = || {
            let mut headers = http::HeaderMap::new();
            for (name, value) in request.headers() {
                if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(name), http::HeaderValue::try_from(value)) {
                    headers.append(name, value);
                }
            }
            let (method, path) = (http::Method::POST, format!("/{path}"));
            let caught = match provider {
                "telegram" => self.0.catcher.telegram(instance, &method, &path, &headers, &body),
                "evolution" => self.0.catcher.evolution(instance, &method, &path, &headers, &body),
                "ses" => self.0.catcher.ses(instance, &method, &path, &headers, &body),
                _ => self.0.catcher.responder(instance, &method, &path, &headers, &body),
            };
            response(caught.status, caught.body.to_string().into_bytes())
        };
        if let Some((status, body)) = reaction.refusal(provider) {
            let mut refusal = response(status, body.to_string().into_bytes());
            // SES names its errors in a header.
            if let Some(kind) = body["__type"].as_str() {
                refusal.headers_mut().insert("x-amzn-errortype", kind.to_owned());
            }
            return Ok(refusal);
        }
        match reaction {
            Reaction::AcceptsSilently => {
                accepted();
                Err(ConnectorError::io("the connection was closed".into()))
            }
            Reaction::AcceptsLate => {
                accepted();
                sleep(Duration::from_secs(60)).await;
                Err(ConnectorError::io("the connection was closed".into()))
            }
            Reaction::NeverHears => Err(ConnectorError::io("the connection was closed".into())),
            _ => Ok(accepted()),
        }
    }
}

/// The network as one function instance sees it.
#[derive(Clone)]
pub struct Connection {
    net: Net,
    instance: Arc<str>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.instance)
    }
}

impl HttpConnector for Connection {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (answer, answered) = oneshot::channel();
        let carried = self.net.clone().carry(self.instance.clone(), request);
        tokio::task::spawn_local(async move {
            // The caller may have gone.
            let _ = answer.send(carried.await);
        });
        HttpConnectorFuture::new(async move {
            answered.await.unwrap_or_else(|_| Err(ConnectorError::io("the call was dropped".into())))
        })
    }
}

impl HttpClient for Connection {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

/// Returns the tables that a request names.
fn tables_of(body: &[u8]) -> Vec<String> {
    fn collect(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(table) = fields.get("TableName").and_then(Value::as_str) {
                    into.push(table.to_owned());
                }
                // Statements name their table in quotation marks.
                if let Some(statement) = fields.get("Statement").and_then(Value::as_str) {
                    into.extend(statement.split('"').nth(1).map(str::to_owned));
                }
                fields.values().for_each(|value| collect(value, into));
            }
            Value::Array(items) => items.iter().for_each(|value| collect(value, into)),
            _ => {}
        }
    }
    let mut tables = Vec::new();
    collect(&serde_json::from_slice(body).unwrap_or_default(), &mut tables);
    tables
}

fn function_of(instance: &str) -> &str {
    instance.split('/').next().unwrap_or(instance)
}

fn response(status: u16, body: Vec<u8>) -> HttpResponse {
    let status = status.try_into().unwrap_or_else(|_| panic!("no status: {status}"));
    HttpResponse::new(status, SdkBody::from(body))
}

fn throttled(service: &str) -> (u16, Vec<u8>) {
    let kind = if service == "dynamodb" { "ProvisionedThroughputExceededException" } else { "ThrottlingException" };
    (400, json!({"__type": kind, "message": "slow down"}).to_string().into_bytes())
}

fn internal() -> Vec<u8> {
    json!({"__type": "InternalServerError", "message": "an error"}).to_string().into_bytes()
}

fn conflict(operation: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let number = request["TransactItems"].as_array().map_or(1, Vec::len);
    let reasons: Vec<_> =
        (0..number).map(|n| json!({"Code": if n == 0 { "TransactionConflict" } else { "None" }})).collect();
    debug_assert_eq!(operation, "TransactWriteItems");
    let answer = json!({
        "__type": "TransactionCanceledException", "message": "Transaction cancelled", "CancellationReasons": reasons,
    });
    (400, answer.to_string().into_bytes())
}

/// Describes a call in a trace: its table or queue, and the keys of its rows.
fn describe(operation: &str, body: &[u8]) -> String {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let words = |key: &Value| {
        let words = ["pk", "sk"].map(|name| crate::tables::plain(&key[name]).as_str().unwrap_or("").to_owned());
        words.join(" ")
    };
    match operation {
        "TransactWriteItems" => {
            let items = request["TransactItems"].as_array().into_iter().flatten();
            let rows = items.filter_map(|item| item.as_object()?.values().next()).map(|item| match &item["Key"] {
                Value::Null => words(&item["Item"]),
                key => words(key),
            });
            rows.collect::<Vec<_>>().join(" + ")
        }
        "PutItem" => words(&request["Item"]),
        "Query" => {
            let values = request["ExpressionAttributeValues"].as_object().into_iter().flatten();
            let mut values: Vec<_> = values.map(|(_, value)| crate::tables::plain(value).to_string()).collect();
            values.sort();
            format!("{} {}", request["IndexName"].as_str().unwrap_or_default(), values.join(" "))
        }
        "SendMessage" | "SendMessageBatch" | "ChangeMessageVisibility" => {
            request["QueueUrl"].as_str().and_then(|url| url.rsplit('/').next()).unwrap_or_default().to_owned()
        }
        _ if request["Key"].is_object() => words(&request["Key"]),
        _ => String::new(),
    }
}
