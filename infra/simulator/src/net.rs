//! The network between the functions and everything else: AWS and the providers.
//!
//! Every call is a task of its own: a caller that is killed or stops waiting does not take back
//! what is already on the way.

mod aws;
mod provider;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use umavez_domain::channels::email::ses_events::{self, SesEvent};
use umavez_local::catcher::Catcher;
use umavez_local::model::Model;
use umavez_local::secrets::Secrets;

use crate::dice::Dice;
use crate::objects::Objects;
use crate::outside::Outside;
use crate::profile::Profile;
use crate::providers::Heard;
use crate::queues::Queues;
use crate::tables::Tables;
use crate::trace::Trace;

/// Later than the attempt timeout of the AWS clients.
const LATE: Duration = Duration::from_millis(2_900);

/// How many broken rules are kept.
const MOST_VIOLATIONS: usize = 3;

/// The write with which an instance began an attempt.
#[derive(Debug, Clone)]
pub struct Claim {
    pub instance: Arc<str>,
    /// The partition key and the sort key of the row.
    pub row: String,
    pub at_ms: u64,
}

#[derive(Clone)]
pub struct Net(Arc<Shared>);

struct Shared {
    dice: Dice,
    profile: Profile,
    pub began: Instant,
    epoch_ms: i64,
    model: &'static Model,
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
    /// The events about mails that were handled.
    mail_events: Vec<SesEvent>,
    /// The bodies of events and messages that were lost.
    lost: Vec<String>,
    outside: VecDeque<Outside>,
    claims: Vec<Claim>,
    /// The tokens of transactions.
    tokens: BTreeSet<String>,
    /// The broken variants of what was written.
    variants: BTreeSet<String>,
    /// How often each table was written to.
    writes: BTreeMap<String, u64>,
    /// The rules that a write broke.
    violations: Vec<String>,
    /// Whether faults still happen.
    is_quiet: bool,
    calls: u64,
}

impl Net {
    pub fn new(
        model: &'static Model,
        secrets: Secrets,
        dice: Dice,
        profile: Profile,
        began: Instant,
        epoch_ms: i64,
    ) -> Self {
        let now = Arc::new(move || epoch_ms + i64::try_from(began.elapsed().as_millis()).unwrap_or(0));
        let (trace, queues, heard) = (Trace::default(), Queues::new(model), Vec::new());
        Self(Arc::new(Shared {
            dice,
            profile,
            began,
            epoch_ms,
            model,
            tables: Tables::new(model, (began, epoch_ms)),
            secrets,
            catcher: Catcher::new(now),
            moved: Notify::new(),
            state: Mutex::new(State {
                trace,
                queues,
                objects: Objects::default(),
                heard,
                mail_events: Vec::new(),
                lost: Vec::new(),
                outside: VecDeque::new(),
                claims: Vec::new(),
                tokens: BTreeSet::new(),
                variants: BTreeSet::new(),
                writes: BTreeMap::new(),
                violations: Vec::new(),
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

    /// Takes the next event that clients have to deliver.
    pub fn take_outside(&self) -> Option<Outside> {
        self.state().outside.pop_front()
    }

    /// Returns the attempts of these rows, in the order in which they began.
    pub fn claims(&self, rows: &[String]) -> Vec<Claim> {
        self.state().claims.iter().filter(|claim| rows.contains(&claim.row)).cloned().collect()
    }

    /// Returns the broken variants of what was written.
    pub fn variants(&self) -> BTreeSet<String> {
        self.state().variants.clone()
    }

    /// Returns the rules that writes have broken.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    pub fn note_violation(&self, violation: String) {
        let mut state = self.state();
        // What follows a broken rule says little.
        if state.violations.len() < MOST_VIOLATIONS {
            state.violations.push(violation);
        }
    }

    /// Records a message of a queue that was handled, if it is an event about a mail.
    pub fn note_handled(&self, body: &str) {
        if let Ok(event) = ses_events::read(body) {
            self.state().mail_events.push(event);
        }
    }

    /// Records the body of an event or a message that is lost.
    pub fn note_lost(&self, body: &str) {
        self.state().lost.push(body.to_owned());
    }

    /// Returns whether an event or a message with this text was lost.
    pub fn has_lost(&self, text: &str) -> bool {
        self.state().lost.iter().any(|body| body.contains(text))
    }

    /// Returns the events about mails that were handled.
    pub fn mail_events(&self) -> Vec<SesEvent> {
        self.state().mail_events.clone()
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

    pub fn count_writes(&self, table: &str) {
        *self.state().writes.entry(table.to_owned()).or_default() += 1;
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
        if let Some(path) = request.uri().strip_prefix("http://provider.local/").map(str::to_owned) {
            return self.carry_to_provider(&instance, &path, &request).await;
        }
        let header = |name: &str| request.headers().get(name).unwrap_or_default();
        let service = header("authorization").split('/').nth(3).unwrap_or_default().to_owned();
        match service.as_str() {
            "ses" => self.carry_to_provider(&instance, "ses/v2/email/outbound-emails", &request).await,
            "s3" => self.carry_to_s3(&instance, &request).await,
            _ => {
                let operation = header("x-amz-target").rsplit('.').next().unwrap_or_default().to_owned();
                self.carry_to_service(&instance, &service, &operation, &request).await
            }
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

pub(crate) fn function_of(instance: &str) -> &str {
    instance.split('/').next().unwrap_or(instance)
}

pub(crate) fn response(status: u16, body: Vec<u8>) -> HttpResponse {
    let status = status.try_into().unwrap_or_else(|_| panic!("no status: {status}"));
    HttpResponse::new(status, SdkBody::from(body))
}
