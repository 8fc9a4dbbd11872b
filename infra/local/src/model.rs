//! What the local stack knows of a template, after parameters and intrinsics are resolved. Names
//! are physical names.

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

/// One Lambda. `binary` is the cargo package and binary: the folder under `functions/`.
#[derive(Debug, Clone)]
pub struct Function {
    pub logical_id: String,
    pub name: String,
    pub binary: String,
    pub timeout: Duration,
    pub memory_mb: u32,
    pub reserved_concurrency: Option<u32>,
    pub environment: BTreeMap<String, String>,
    /// The template's parameters that stand in each of these variables.
    pub parameters: BTreeMap<String, BTreeSet<String>>,
    pub log_group: String,
    /// The policy statements with resolved resources, as they stand in the template.
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
    /// Parsed filter patterns; a record passes when any matches, or when there is none.
    pub filters: Vec<Value>,
    pub max_retries: Option<u32>,
    /// Not enforced: retries are immediate here, so no record grows old between them.
    pub max_age: Option<Duration>,
    pub bisect: bool,
    pub partial_failures: bool,
    pub on_failure_queue: Option<String>,
}

/// A tick. Only `rate(...)` expressions are known.
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
    /// The dead-letter queue's name and the number of receives before a message goes there.
    pub redrive: Option<(String, u32)>,
}

/// A bucket of S3.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub logical_id: String,
    pub name: String,
    pub notifications: Vec<Notification>,
    /// Whether the default event bus is told of its objects.
    pub to_bus: bool,
    pub cors: Vec<CorsRule>,
    pub expirations: Vec<Expiration>,
}

/// Which objects of a bucket a queue is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// As in `ObjectCreated:Put`; `ObjectCreated:*` is all of them.
    pub event: String,
    pub queue: String,
    pub prefix: String,
    pub suffix: String,
}

/// Which pages of a browser may use a bucket, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsRule {
    pub origins: Vec<String>,
    pub methods: Vec<String>,
    pub headers: Vec<String>,
    pub exposed: Vec<String>,
    pub max_age: Option<u32>,
}

/// Objects under a prefix are removed when they are so old.
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
    /// What it holds until something else is put into it.
    pub value: SecretValue,
}

#[derive(Clone, PartialEq, Eq)]
pub enum SecretValue {
    Given(String),
    /// Made up when there is a stack.
    Generated(Generated),
}

/// How a value is made up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    pub length: usize,
    pub punctuation: bool,
    /// The object that the password is put into, and under which key; none: the password is all.
    pub into: Option<(Map<String, Value>, String)>,
}

/// Without its value.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("logical_id", &self.logical_id).field("arn", &self.arn).finish_non_exhaustive()
    }
}

/// A configuration set of SES.
#[derive(Debug, Clone)]
pub struct ConfigurationSet {
    pub name: String,
    /// Per enabled destination on the default event bus: the types of events that it gets, as
    /// events name them.
    pub destinations: Vec<BTreeSet<&'static str>>,
}

/// A rule of the default event bus that is switched on.
#[derive(Debug, Clone)]
pub struct Rule {
    pub name: String,
    pub pattern: Value,
    pub queues: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Api {
    pub routes: Vec<Route>,
    /// The function (physical name) that authorizes, payload format 2.0 with simple responses.
    pub authorizer: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Route {
    pub method: String,
    pub path: String,
    pub function: String,
    pub authorized: bool,
}
