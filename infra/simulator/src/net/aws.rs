//! Calls to AWS: DynamoDB, SQS, Secrets Manager and S3.

use std::sync::Arc;
use std::time::Duration;

use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use serde_json::{Value, json};
use tokio::time::sleep;
use umavez_domain::time::Timestamp;
use umavez_local::s3::events::{Created, notifications};

use super::{Claim, LATE, Net, function_of, response};
use crate::broken;
use crate::faults::{Fault, Part, internal};
use crate::tables::plain;

/// How far an index lags behind at most, in milliseconds.
const LONGEST_LAG_MS: i64 = 90_000;

impl Net {
    pub(super) async fn carry_to_service(
        &self,
        instance: &Arc<str>,
        service: &str,
        operation: &str,
        request: &HttpRequest,
    ) -> Result<HttpResponse, ConnectorError> {
        let body: Value = serde_json::from_slice(request.body().bytes().unwrap_or_default()).unwrap_or_default();
        let decision = self.decision(&format!("{} {operation}", function_of(instance)));
        let mut dice = self.dice().of(&decision);
        let (before, after) = (dice.u64(1..=15), dice.u64(1..=15));
        let fault = self.strikes(&decision, self.profile().calls).then(|| Fault::draw(operation, &body, &mut dice));
        sleep(Duration::from_millis(before)).await;
        if fault == Some(Fault::LateRequest) {
            sleep(LATE + Duration::from_millis(dice.u64(0..8_000))).await;
        }
        let refusal = fault.and_then(|fault| fault.refusal(service, &body, &mut dice));
        let (status, answer) = match (refusal, fault) {
            (Some(refusal), _) => refusal,
            (None, Some(Fault::Partial)) => {
                let part = Part::of(operation, &body, &mut dice);
                let (status, answer) = self.serve(instance, service, operation, &part.request);
                (status, if status == 200 { part.complete(&answer) } else { answer })
            }
            (None, Some(Fault::StaleIndex)) => {
                self.tables().query_behind(&body, self.now_ms() - dice.i64(1_000..LONGEST_LAG_MS))
            }
            _ => self.serve(instance, service, operation, &body),
        };
        // Most queries are of sweeps that find nothing.
        if operation != "Query" || fault.is_some() || !answer.ends_with(b"\"Count\":0}") {
            let struck = fault.map_or(String::new(), |fault| format!(" [{fault:?}]"));
            self.note(&format!("{instance} {operation} {} -> {status}{struck}", describe(operation, &body)));
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

    pub(super) async fn carry_to_s3(
        &self,
        instance: &Arc<str>,
        request: &HttpRequest,
    ) -> Result<HttpResponse, ConnectorError> {
        let operation = request.method().to_owned();
        let decision = self.decision(&format!("{} S3 {operation}", function_of(instance)));
        let mut dice = self.dice().of(&decision);
        let (before, after) = (dice.u64(1..=15), dice.u64(1..=15));
        let fault =
            self.strikes(&decision, self.profile().calls).then(|| Fault::draw(&operation, &Value::Null, &mut dice));
        sleep(Duration::from_millis(before)).await;
        match fault {
            Some(Fault::LostRequest) => return Err(ConnectorError::io("the connection was closed".into())),
            Some(Fault::Throttled | Fault::ErrorBefore) => return Ok(response(503, Vec::new())),
            Some(Fault::LateRequest) => sleep(LATE + Duration::from_millis(dice.u64(0..8_000))).await,
            _ => {}
        }
        let answered = self.state().objects.call(request);
        let status = answered.status().as_u16();
        let struck = fault.map_or(String::new(), |fault| format!(" [{fault:?}]"));
        self.note(&format!("{instance} S3 {operation} {} -> {status}{struck}", request.uri()));
        if fault == Some(Fault::LateReply) {
            sleep(LATE).await;
        }
        sleep(Duration::from_millis(after)).await;
        match fault {
            Some(Fault::LostReply) => Err(ConnectorError::io("the connection was closed".into())),
            Some(Fault::ErrorAfter) => Ok(response(500, Vec::new())),
            _ => Ok(answered),
        }
    }

    /// A client uploads a file by a form. S3 notifies the queues of the bucket: late, twice or not
    /// at all.
    pub fn upload(&self, key: &str, content: &str) {
        let bucket = self.0.model.buckets.first().expect("the template has a bucket");
        let etag = self.state().objects.put(&bucket.name, key, content.as_bytes().to_vec());
        let created = Created { event: "ObjectCreated:Post", key, size: content.len() as u64, etag: &etag };
        let decision = self.decision(&format!("event of {key}"));
        self.note(&format!("S3 has {key}"));
        let at = Timestamp::from_millis(self.now_ms());
        for (queue, body) in notifications(bucket, &created, at, &decision, &decision) {
            self.report(&queue, &body, &decision);
        }
    }

    fn serve(&self, instance: &Arc<str>, service: &str, operation: &str, body: &Value) -> (u16, Vec<u8>) {
        self.state().calls += 1;
        let now_ms = self.now_ms();
        match service {
            "dynamodb" if matches!(operation, "GetItem" | "Query" | "BatchGetItem" | "Scan") => {
                self.tables().call(operation, body, now_ms)
            }
            "dynamodb" => {
                let function = function_of(instance);
                if self.profile().collects_variants {
                    self.state().variants.extend(broken::variants(function, operation, body));
                }
                match &self.profile().broken {
                    None => self.write(instance, operation, body),
                    Some(variant) if broken::is_split(variant, function, operation, body) => {
                        self.write_in_parts(instance, body)
                    }
                    Some(variant) => {
                        let altered = broken::altered(variant, function, operation, body);
                        self.write(instance, operation, &altered)
                    }
                }
            }
            "sqs" => self.with_queues(|queues| queues.call(operation, body, now_ms)),
            "secretsmanager" => match self.0.secrets.handle(operation, body.to_string().as_bytes()) {
                Ok(answer) => (200, answer.to_string().into_bytes()),
                Err(refusal) => {
                    (400, json!({"__type": refusal.kind, "message": refusal.message}).to_string().into_bytes())
                }
            },
            other => panic!("the simulator has no service {other:?} ({operation})"),
        }
    }

    fn write(&self, instance: &Arc<str>, operation: &str, body: &Value) -> (u16, Vec<u8>) {
        let answered = self.tables().call(operation, body, self.now_ms());
        if answered.0 == 200 {
            for violation in self.tables().violations(self.now_ms()) {
                self.note(&format!("{instance} {operation} breaks a rule: {violation}"));
                self.note_violation(violation);
            }
            self.note_claims(instance, body);
            for table in tables_of(body) {
                self.count_writes(&table);
            }
        }
        answered
    }

    /// Writes the parts of a transaction one after the other, and now and then not all of them.
    /// That is how the product would behave without transactions.
    fn write_in_parts(&self, instance: &Arc<str>, body: &Value) -> (u16, Vec<u8>) {
        let mut dice = self.dice().of(&self.decision("parts of a transaction"));
        let parts = body["TransactItems"].as_array().cloned().unwrap_or_default();
        let number = parts.len();
        let mut answered = (200, b"{}".to_vec());
        for (at, part) in parts.into_iter().enumerate() {
            if at > 0 && !self.is_quiet() && dice.u32(0..4) == 0 {
                return (500, internal());
            }
            answered = self.write(instance, "TransactWriteItems", &json!({"TransactItems": [part]}));
            if answered.0 != 200 {
                let mut refused: Value = serde_json::from_slice(&answered.1).unwrap_or_default();
                let reason = refused["CancellationReasons"][0].clone();
                let mut reasons = vec![json!({"Code": "None"}); number];
                reasons[at] = reason;
                refused["CancellationReasons"] = reasons.into();
                return (answered.0, refused.to_string().into_bytes());
            }
        }
        answered
    }

    /// Records which rows a write moves to SENDING: that is when an attempt begins. A transaction
    /// that is repeated with its own token has no effect.
    fn note_claims(&self, instance: &Arc<str>, body: &Value) {
        let at_ms = self.elapsed_ms();
        let mut state = self.state();
        if let Some(token) = body["ClientRequestToken"].as_str()
            && !state.tokens.insert(token.to_owned())
        {
            return;
        }
        let rows: Vec<_> = writes_of(body).filter(|write| begins_attempt(write)).map(row_of).collect();
        state.claims.extend(rows.into_iter().map(|row| Claim { instance: instance.clone(), row, at_ms }));
    }
}

/// Returns the writes of a request: itself, or the parts of a transaction.
fn writes_of(body: &Value) -> impl Iterator<Item = &Value> {
    let items = body["TransactItems"].as_array().into_iter().flatten();
    let parts = items.filter_map(|item| item.as_object()?.values().next());
    parts.chain([body])
}

/// Returns whether a write sets the state to SENDING. A write that only expects this state, such as
/// the outcome of an attempt, does not begin one.
fn begins_attempt(write: &Value) -> bool {
    let Some(update) = write["UpdateExpression"].as_str() else {
        return write["Item"]["state"]["S"] == "SENDING";
    };
    let set = update.split("SET ").nth(1).unwrap_or_default();
    let set = set.split(" REMOVE ").next().unwrap_or_default();
    set.split(',').filter_map(|part| part.trim().split_once(" = ")).any(|(name, value)| {
        write["ExpressionAttributeNames"][name.trim()] == "state"
            && write["ExpressionAttributeValues"][value.trim()]["S"] == "SENDING"
    })
}

fn row_of(write: &Value) -> String {
    let key = if write["Key"].is_object() { &write["Key"] } else { &write["Item"] };
    words(key)
}

fn words(key: &Value) -> String {
    ["pk", "sk"].map(|name| key[name]["S"].as_str().unwrap_or_default()).join(" ")
}

/// Returns the tables that a request names.
fn tables_of(body: &Value) -> Vec<String> {
    let statements = body["Statements"].as_array().into_iter().flatten();
    // Statements name their table in quotation marks.
    let statements = statements.filter_map(|one| one["Statement"].as_str()?.split('"').nth(1));
    let tables = writes_of(body).filter_map(|write| write["TableName"].as_str());
    tables.chain(statements).map(str::to_owned).collect()
}

/// Describes a call in a trace: its table or queue, and the keys of its rows.
fn describe(operation: &str, request: &Value) -> String {
    match operation {
        "TransactWriteItems" => {
            let items = request["TransactItems"].as_array().into_iter().flatten();
            let rows = items.filter_map(|item| item.as_object()?.values().next()).map(row_of);
            rows.collect::<Vec<_>>().join(" + ")
        }
        "PutItem" => words(&request["Item"]),
        "Query" => {
            let values = request["ExpressionAttributeValues"].as_object().into_iter().flatten();
            let mut values: Vec<_> = values.map(|(_, value)| plain(value).to_string()).collect();
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
