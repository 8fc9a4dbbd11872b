//! A stack for one test, and the verbs to use it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use umavez_local::calls::Call;
use umavez_local::local_parameters::with_local;
use umavez_local::{Options, Stack, binaries, secrets};
use umavez_platform::api_keys;
use umavez_platform::aws::Aws;
use umavez_platform::clock::Clock;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Store;

use crate::{Answer, audit, contract, template, whole_run};

/// The key with all scopes. It is a canary too: no log line may contain it.
pub const KEY: &str = "uv_test_key_2b58874f";

/// The stack that a test wants, and the faults that the audit expects in it.
#[derive(Debug, Clone)]
pub struct Setup {
    pub template: String,
    pub parameters: BTreeMap<String, String>,
    /// How far the clocks of single functions are ahead of the stack's clock.
    pub clock_skews_ms: BTreeMap<String, i64>,
    pub expected: Expected,
}

/// Faults that a test expects. In any other test they fail the audit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expected {
    /// Messages in dead-letter queues at the end.
    pub dead_letters: usize,
    /// Panics in functions.
    pub panics: usize,
    /// 5xx answers of functions.
    pub server_errors: usize,
    /// Calls that the role of their function does not grant.
    pub refused: usize,
    /// Messages in queues that functions read, which are still delayed.
    pub waiting: usize,
    /// Requests that providers received.
    pub sent: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let parameters = with_local(BTreeMap::new()).expect("the parameters of this machine");
        Self { template: template(), parameters, clock_skews_ms: BTreeMap::new(), expected: Expected::default() }
    }
}

impl Setup {
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets how far the clock of a function is ahead of the stack's clock; behind, if negative.
    pub fn clock_skew(mut self, function: &str, ms: i64) -> Self {
        self.clock_skews_ms.insert(function.to_owned(), ms);
        self
    }

    pub fn of_template(template: &str) -> Self {
        Self { template: template.to_owned(), parameters: BTreeMap::new(), ..Self::default() }
    }

    pub fn expecting(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }
}

pub struct World {
    pub stack: Stack,
    pub store: Store,
    http: reqwest::Client,
    requests: AtomicU64,
    canaries: std::sync::Mutex<Vec<String>>,
    refusals_are_expected: bool,
}

/// Runs a test in a world of its own.
pub async fn play(test: impl AsyncFnOnce(&World)) {
    play_with(Setup::default(), test).await;
}

pub async fn play_with(setup: Setup, test: impl AsyncFnOnce(&World)) {
    let expected = setup.expected;
    let world = World::start(setup).await;
    test(&world).await;
    world.drain().await;
    world.audit(expected).await;
    world.stack.stop().await.expect("the stack stops");
}

/// Tests start at noon, so that no day ends while they run.
fn until_noon() -> i64 {
    const DAY_MS: i64 = 86_400_000;
    (DAY_MS / 2 - Clock::default().now().millis()).rem_euclid(DAY_MS)
}

/// Builds the functions once per test process; cargo does nothing if they are up to date.
async fn built() {
    static BUILT: OnceCell<()> = OnceCell::const_new();
    BUILT.get_or_init(|| async { binaries::build(true).await.expect("the functions build") }).await;
}

impl World {
    /// Builds the functions, once per process.
    pub async fn build() {
        built().await;
    }

    /// Starts a stack in memory and creates the key with all scopes.
    pub async fn start(setup: Setup) -> Self {
        built().await;
        let stack = Stack::start(Options {
            parameters: setup.parameters,
            secrets: Some(secrets::local_file()),
            schedules: false,
            echo_logs: std::env::var_os("UMAVEZ_TEST_LOGS").is_some(),
            clock_offset_ms: until_noon(),
            clock_skews_ms: setup.clock_skews_ms,
            ..Options::in_memory(setup.template)
        })
        .await
        .expect("the stack starts");
        let mut world = Self::of(stack);
        world.refusals_are_expected = setup.expected.refused > 0;
        if world.stack.output("ConfigTable").is_some() {
            world.create_key(KEY, &["*"]).await;
        }
        world
    }

    pub fn of(stack: Stack) -> Self {
        let store = Store::new(Aws::at_endpoint(stack.front_url(), "test").dynamodb());
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let (requests, canaries) = (AtomicU64::new(0), std::sync::Mutex::default());
        Self { stack, store, http, requests, canaries, refusals_are_expected: false }
    }

    // Actions of a client.

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path).bearer_auth(KEY).json(body)).await
    }

    pub async fn post_with_key(&self, idempotency_key: &str, path: &str, body: &Value) -> Answer {
        let request = self.request(Method::POST, path).bearer_auth(KEY).json(body);
        self.send(request.header("idempotency-key", idempotency_key)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path).bearer_auth(KEY)).await
    }

    /// Starts a request without a key, for the test to complete.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.stack.url()))
    }

    /// Starts a request to another address than the product's.
    pub fn outside(&self, method: Method, url: &str) -> reqwest::RequestBuilder {
        self.http.request(method, url)
    }

    /// Uploads a file with the form that the API returned for it. Returns the status that S3
    /// answers.
    pub async fn post_form(&self, upload: &Value, file: &[u8]) -> u16 {
        let mut body = Vec::with_capacity(file.len() + 4_096);
        for (name, value) in upload["fields"].as_object().expect("fields") {
            let value = value.as_str().expect("text");
            let part = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
            body.extend_from_slice(part.as_bytes());
        }
        body.extend_from_slice(b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x.csv\"\r\n\r\n");
        body.extend_from_slice(file);
        body.extend_from_slice(b"\r\n--b--\r\n");
        let url = upload["url"].as_str().expect("a URL");
        let request = self.outside(Method::POST, url).header("content-type", "multipart/form-data; boundary=b");
        request.body(body).send().await.expect("S3 answers").status().as_u16()
    }

    /// Returns the status of `GET /health`, a request that changes nothing.
    pub async fn request_health(&self) -> u16 {
        self.send(self.request(Method::GET, "/health")).await.status
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let request = request.build().expect("a request");
        let (method, url) = (request.method().to_string(), request.url().clone());
        let answer = Answer::of(self.http.execute(request).await.expect("the gateway answers")).await;
        if self.stack.output("ApiUrl").is_some() {
            contract::check(&method, url.path(), &answer);
        }
        answer
    }

    // Actions of time and of the operator.

    pub async fn drain(&self) {
        self.stack.drain().await.expect("the stack comes to rest");
    }

    pub async fn advance(&self, by: Duration) {
        self.stack.advance(by, true).await.expect("time moves");
    }

    /// Advances the time without deleting expired rows, because TTL on AWS can be late.
    pub async fn advance_without_ttl(&self, by: Duration) {
        self.stack.advance(by, false).await.expect("time moves");
    }

    /// Sends a message to a queue, from outside of the functions.
    pub async fn send_to_queue(&self, queue: &str, body: &str) {
        let url = format!("{}/000000000000/{queue}", self.stack.front_url());
        let sqs = Aws::at_endpoint(self.stack.front_url(), "test").sqs();
        sqs.send_message().queue_url(url).message_body(body).send().await.expect("sent");
    }

    /// Runs a tick of a function's schedule, and everything that follows from it.
    pub async fn tick(&self, function: &str) {
        assert!(self.stack.tick(&format!("{function}Tick")).await, "{function} has a schedule");
        self.drain().await;
    }

    pub async fn create_key(&self, secret: &str, scopes: &[&str]) -> umavez_domain::access::KeyId {
        let table = self.stack.output("ConfigTable").expect("a table of keys");
        let scopes: Vec<_> = scopes.iter().map(|&scope| scope.to_owned()).collect();
        api_keys::create(&self.store, &self.invocation(), table, secret, &scopes, "test").await.expect("a key")
    }

    /// Registers a text that must not reach any log line, message or error.
    pub fn canary(&self, text: &str) {
        self.canaries.lock().expect("no test panicked here").push(text.to_owned());
    }

    pub(crate) fn canaries(&self) -> Vec<String> {
        self.canaries.lock().expect("no test panicked here").clone()
    }

    /// Returns an invocation of the test itself, at the stack's time.
    pub fn invocation(&self) -> Invocation {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        Invocation::new(format!("test-{number}"), self.now(), Duration::from_secs(30))
    }

    pub fn now(&self) -> umavez_domain::time::Timestamp {
        let offset = self.stack.clock().offset_ms();
        Clock::default().now().plus_ms(offset)
    }

    /// Checks the invariants of every world at rest. Panics if one does not hold.
    pub async fn audit(&self, expected: Expected) {
        audit::audit(self, expected).await;
    }

    // What a test can look at.

    /// Returns the log lines of functions that are events of this name, as JSON.
    pub fn events(&self, name: &str) -> Vec<Value> {
        let lines = self.stack.logs().since(0);
        let events = lines.iter().filter_map(|line| serde_json::from_str::<Value>(&line.line).ok());
        events.filter(|event| event["event"] == name).collect()
    }

    /// Returns the log lines with embedded metrics of this name, as JSON.
    pub fn metrics(&self, name: &str) -> Vec<Value> {
        let lines = self.stack.logs().since(0);
        let lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(&line.line).ok());
        lines.filter(|line| line.get("_aws").is_some() && line.get(name).is_some()).collect()
    }

    /// Returns the calls that a function made while `work` ran.
    pub async fn calls_of<T>(&self, function: &str, work: impl Future<Output = T>) -> (T, Vec<Call>) {
        let position = self.stack.calls().position();
        let done = work.await;
        let calls = self.stack.calls().since(position).into_iter().filter(|call| call.caller == function);
        (done, calls.collect())
    }

    /// Returns every row of a table, as plain JSON.
    pub async fn rows(&self, table_output: &str) -> Vec<Value> {
        let table = self.stack.output(table_output).expect("an output that names a table");
        self.rows_of(table).await
    }

    pub async fn rows_of(&self, table: &str) -> Vec<Value> {
        let client = Aws::at_endpoint(self.stack.front_url(), "test").dynamodb();
        let pages = client.scan().table_name(table).consistent_read(true).into_paginator().items().send();
        let items: Vec<_> = pages.try_collect().await.expect("a scan");
        items.iter().map(|item| serde_json::from_str(&plain(item)).expect("JSON")).collect()
    }

    /// Invokes a function with an event of its trigger, as a separate delivery.
    pub async fn deliver(&self, function: &str, event: &Value) -> Value {
        let name = self.stack.function_name(function).expect("a function of the template").to_owned();
        let answer = self.stack.functions().invoke(&name, event.to_string().into()).await.expect("an answer");
        serde_json::from_slice(&answer).unwrap_or(Value::Null)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test about denied calls makes calls that functions do not make.
        if !self.refusals_are_expected {
            whole_run::record(self.stack.permissions(), &self.stack.logs().since(0));
        }
    }
}

/// Returns a row as plain JSON: only numbers and texts, which is all that tests look at.
fn plain(item: &std::collections::HashMap<String, aws_sdk_dynamodb::types::AttributeValue>) -> String {
    use aws_sdk_dynamodb::types::AttributeValue as A;
    fn value(of: &A) -> Value {
        match of {
            A::S(text) => json!(text),
            A::N(number) => number.parse::<i64>().map_or_else(|_| json!(number), |number| json!(number)),
            A::Bool(flag) => json!(flag),
            A::M(fields) => fields.iter().map(|(name, field)| (name.clone(), value(field))).collect(),
            A::L(items) => items.iter().map(value).collect(),
            A::Ss(items) => json!(items),
            _ => Value::Null,
        }
    }
    let row: Value = item.iter().map(|(name, field)| (name.clone(), value(field))).collect();
    row.to_string()
}
