//! A second DynamoDB beside the emulator: it gets every call that the emulator gets, in the same
//! order, and the answers are compared. `infra/independent-check` runs the tests with DynamoDB
//! Local, Amazon's own code, as the second one.

mod comparison;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::MutexGuard;

use self::comparison::{Answer, Call, Known, Outcome};
use crate::StackError;
use crate::dynamo::Answered;
use crate::model::Table;

/// The most rows of one BatchWriteItem.
const ROWS_AT_ONCE: usize = 25;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub url: String,
    /// Whether callers get the answers of the second DynamoDB instead of those of the emulator.
    pub answers: bool,
    /// The directory that gets a file of calls per stack.
    pub log: Option<PathBuf>,
}

impl Settings {
    /// Returns the settings of the variables `UMAVEZ_DYNAMODB_BESIDE` (the URL),
    /// `UMAVEZ_DYNAMODB_BESIDE_ANSWERS` and `UMAVEZ_DYNAMODB_BESIDE_LOG`. Returns `None` if there
    /// is no URL.
    pub fn of_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var_os(format!("UMAVEZ_DYNAMODB_BESIDE{name}"));
        let url = variable("")?.into_string().ok()?;
        Some(Self { url, answers: variable("_ANSWERS").is_some(), log: variable("_LOG").map(PathBuf::from) })
    }
}

/// The second DynamoDB of one stack.
#[derive(Clone)]
pub struct Beside(Arc<Shared>);

struct Shared {
    settings: Settings,
    http: reqwest::Client,
    /// DynamoDB Local keeps the tables of each access key apart, so every stack has one of its own.
    access_key: String,
    tables: Vec<Table>,
    /// Both must see the calls of a stack in one order.
    order: tokio::sync::Mutex<()>,
    log: Option<Mutex<File>>,
    differences: Mutex<Vec<Value>>,
}

impl Beside {
    /// Creates the tables with these rows.
    pub async fn start(settings: &Settings, tables: &[Table], rows: Vec<(String, Value)>) -> Result<Self, StackError> {
        let http = reqwest::Client::builder().no_proxy().build().map_err(|e| StackError::Emulator(e.to_string()))?;
        let access_key = format!("stack{:016x}", fastrand::u64(..));
        let log = match &settings.log {
            Some(directory) => Some(Mutex::new(File::create(directory.join(format!("{access_key}.jsonl")))?)),
            None => None,
        };
        let (order, differences) = (tokio::sync::Mutex::default(), Mutex::default());
        let (settings, tables) = (settings.clone(), tables.to_vec());
        let this = Self(Arc::new(Shared { settings, http, access_key, tables, order, log, differences }));
        // The thread of a test has its name.
        this.log(&json!({"stack": std::thread::current().name()}));
        for table in &this.0.tables {
            let mut create = table.create.clone();
            // Functions read the streams of the emulator.
            create.as_object_mut().map(|create| create.remove("StreamSpecification"));
            this.prepare("CreateTable", &create).await?;
        }
        for rows in rows.chunks(ROWS_AT_ONCE) {
            let mut writes = json!({});
            for (table, row) in rows {
                match writes[table].as_array_mut() {
                    Some(writes) => writes.push(json!({"PutRequest": {"Item": row}})),
                    None => writes[table] = json!([{"PutRequest": {"Item": row}}]),
                }
            }
            this.prepare("BatchWriteItem", &json!({"RequestItems": writes})).await?;
        }
        Ok(this)
    }

    /// Deletes the tables.
    pub async fn stop(&self) {
        for table in &self.0.tables {
            self.call("DeleteTable", &json!({"TableName": table.name})).await;
        }
    }

    /// Sends a call to both and compares the answers. `ours` sends it to the emulator. Returns the
    /// answer for the caller, or `None` if there is none.
    pub async fn compare(
        &self,
        operation: &str,
        request: &Value,
        headers: &HeaderMap,
        body: &Bytes,
        ours: impl Future<Output = Option<Answered>>,
    ) -> Option<Answered> {
        let _order = self.order().await;
        let (ours, theirs) = tokio::join!(ours, self.send(headers.clone(), body.clone()));
        let ours = ours?;
        self.note(operation, request, &ours, theirs.as_ref());
        theirs.filter(|_| self.0.settings.answers).or(Some(ours))
    }

    /// Locks out other calls while the caller holds the returned guard. The caller may then change
    /// the emulator's tables directly, and must repeat each change with [`Self::repeat`].
    pub async fn order(&self) -> MutexGuard<'_, ()> {
        self.0.order.lock().await
    }

    /// Repeats a write that succeeded at the emulator.
    pub async fn repeat(&self, operation: &str, request: &Value) {
        let succeeded = Answered { status: http::StatusCode::OK, headers: HeaderMap::new(), body: "{}".into() };
        let theirs = self.call(operation, request).await;
        self.note(operation, request, &succeeded, theirs.as_ref());
    }

    /// The differences that are not known ones: each has the operation, the request and both
    /// answers.
    pub fn differences(&self) -> Vec<Value> {
        self.0.differences.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, operation: &str, request: &Value, ours: &Answered, theirs: Option<&Answered>) {
        let parsed = |answered: &Answered| Answer {
            status: answered.status.as_u16(),
            body: serde_json::from_slice(&answered.body).unwrap_or(Value::Null),
        };
        let silence = || Answer { status: 0, body: Value::Null };
        let (ours, theirs) = (parsed(ours), theirs.map_or_else(silence, parsed));
        let mut line = json!({"operation": operation, "request": request, "statuses": [ours.status, theirs.status]});
        match (Call { tables: &self.0.tables, operation, request }).compare(&ours, &theirs) {
            Outcome::Same => {}
            Outcome::Known(known) => line["known"] = known.into_iter().map(Known::name).collect(),
            Outcome::Different => {
                line["different"] = json!({"emulator": ours.body, "beside": theirs.body});
                self.0.differences.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
            }
        }
        self.log(&line);
    }

    fn log(&self, line: &Value) {
        let Some(log) = &self.0.log else { return };
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writeln!(log, "{line}") {
            tracing::warn!(%error, "a compared call is not in the log");
        }
    }

    async fn prepare(&self, operation: &str, request: &Value) -> Result<(), StackError> {
        let answered = self.call(operation, request).await;
        let failed = |text: String| Err(StackError::Emulator(format!("the second DynamoDB: {operation}: {text}")));
        match answered {
            Some(answered) if answered.status.is_success() => Ok(()),
            Some(answered) => failed(String::from_utf8_lossy(&answered.body).into_owned()),
            None => failed(format!("{} does not answer", self.0.settings.url)),
        }
    }

    async fn call(&self, operation: &str, request: &Value) -> Option<Answered> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/x-amz-json-1.0"));
        headers.insert("x-amz-target", HeaderValue::try_from(format!("DynamoDB_20120810.{operation}")).ok()?);
        self.send(headers, Bytes::from(request.to_string())).await
    }

    /// Sends a request with the access key of the stack. DynamoDB Local checks no signature.
    async fn send(&self, mut headers: HeaderMap, body: Bytes) -> Option<Answered> {
        let scope = format!("{}/20260101/us-east-1/dynamodb/aws4_request", self.0.access_key);
        let signed = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
        headers.insert("authorization", HeaderValue::try_from(signed).ok()?);
        headers.insert("x-amz-date", HeaderValue::from_static("20260101T000000Z"));
        Answered::of(self.0.http.post(&self.0.settings.url).headers(headers).body(body)).await
    }
}
