//! The template after its parameters and intrinsics are resolved, as far as the local stack uses
//! it. Names are physical names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

/// Everything that the template deploys and the local stack runs.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub functions: Vec<Function>,
    pub tables: Vec<Table>,
    pub queues: Vec<Queue>,
    pub buckets: Vec<Bucket>,
    pub secrets: Vec<Secret>,
    pub configuration_sets: Vec<ConfigurationSet>,
    pub rules: Vec<Rule>,
    pub api: Option<Api>,
    pub outputs: BTreeMap<String, String>,
}

/// One Lambda function. `binary` is the cargo package and binary: the folder under `functions/`.
#[derive(Debug, Clone)]
pub struct Function {
    pub logical_id: String,
    pub name: String,
    pub binary: String,
    pub timeout: Duration,
    pub memory_mb: u32,
    pub reserved_concurrency: Option<u32>,
    pub environment: BTreeMap<String, String>,
    /// The template's parameters that the value of each variable depends on.
    pub parameters: BTreeMap<String, BTreeSet<String>>,
    pub log_group: String,
    /// The policy statements as written in the template, with resolved resources.
    pub policies: Vec<Value>,
    pub queue_sources: Vec<QueueSource>,
    pub stream_sources: Vec<StreamSource>,
    pub schedules: Vec<Schedule>,
}

/// An event source mapping from a queue.
#[derive(Debug, Clone)]
pub struct QueueSource {
    pub id: String,
    pub queue: String,
    pub batch_size: usize,
    pub window: Duration,
    pub max_concurrency: Option<u32>,
    pub partial_failures: bool,
}

/// An event source mapping from a table's stream.
#[derive(Debug, Clone)]
pub struct StreamSource {
    pub id: String,
    pub table: String,
    pub batch_size: usize,
    pub window: Duration,
    pub from_latest: bool,
    /// Parsed filter patterns. A record passes if any of them matches, or if there is none.
    pub filters: Vec<Value>,
    pub max_retries: Option<u32>,
    /// Not enforced: retries are immediate here, so records do not age between them.
    pub max_age: Option<Duration>,
    pub bisect: bool,
    pub partial_failures: bool,
    pub on_failure_queue: Option<String>,
}

/// A schedule. Only `rate(...)` expressions are supported.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub id: String,
    pub every: Duration,
    pub input: Option<Value>,
}

#[derive(Debug, Clone)]
pub struct Table {
    pub logical_id: String,
    pub name: String,
    /// The body of the CreateTable request.
    pub create: Value,
    pub ttl_attribute: Option<String>,
    pub streams: bool,
}

#[derive(Debug, Clone)]
pub struct Queue {
    pub logical_id: String,
    pub name: String,
    pub visibility: Duration,
    pub delay: Duration,
    pub retention: Duration,
    /// The name of the dead-letter queue, and the number of receives before a message moves there.
    pub redrive: Option<(String, u32)>,
}

/// An S3 bucket.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub logical_id: String,
    pub name: String,
    pub notifications: Vec<Notification>,
    /// Whether events of its objects go to the default event bus.
    pub to_bus: bool,
    pub cors: Vec<CorsRule>,
    pub expirations: Vec<Expiration>,
}

/// The objects of a bucket for which a queue gets notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// For example `ObjectCreated:Put`; `ObjectCreated:*` stands for all of them.
    pub event: String,
    pub queue: String,
    pub prefix: String,
    pub suffix: String,
}

/// Which web pages may use a bucket, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsRule {
    pub origins: Vec<String>,
    pub methods: Vec<String>,
    pub headers: Vec<String>,
    pub exposed: Vec<String>,
    pub max_age: Option<u32>,
}

/// Objects under a prefix are removed when they reach this age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiration {
    pub prefix: String,
    pub after: Duration,
}

#[derive(Clone)]
pub struct Secret {
    pub logical_id: String,
    pub name: String,
    pub arn: String,
    /// The initial value, until another is put.
    pub value: SecretValue,
}

#[derive(Clone, PartialEq, Eq)]
pub enum SecretValue {
    Given(String),
    /// Generated when the stack starts.
    Generated(Generated),
}

/// How a value is generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    pub length: usize,
    pub punctuation: bool,
    /// The object that contains the password, and its key. If `None`, the value is the password
    /// itself.
    pub into: Option<(Map<String, Value>, String)>,
}

/// Omits the value.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("logical_id", &self.logical_id).field("arn", &self.arn).finish_non_exhaustive()
    }
}

/// An SES configuration set.
#[derive(Debug, Clone)]
pub struct ConfigurationSet {
    pub name: String,
    /// For each enabled destination on the default event bus, the event types that it gets, as
    /// named in events.
    pub destinations: Vec<BTreeSet<&'static str>>,
}

/// An enabled rule of the default event bus.
#[derive(Debug, Clone)]
pub struct Rule {
    pub name: String,
    pub pattern: Value,
    pub queues: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Api {
    pub routes: Vec<Route>,
    /// The physical name of the authorizer function. It uses payload format 2.0 with simple
    /// responses.
    pub authorizer: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Route {
    pub method: String,
    pub path: String,
    pub function: String,
    pub authorized: bool,
}
