//! Intents and outbound messages over HTTP.

mod intents;
mod outbound;

use std::sync::Arc;

use serde_json::json;
use umavez_domain::intents::IntentTypes;
use umavez_domain::senders::rates::RateTable;
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::http::{Answer, Problem, Request, Route};
use umavez_platform::intents::Intents;
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::Unsubscribes;
use umavez_platform::messages::Messages;
use umavez_platform::senders::Senders;
use umavez_platform::store::Store;
use umavez_platform::suppressions::Suppressions;

const HEALTH: &str = "GET /health";
const CHECK: &str = "POST /intents";
const LIST: &str = "GET /intents";
const GET: &str = "GET /intents/{fingerprint}";
const RELEASE: &str = "POST /intents/{fingerprint}/release";
const ACCEPT: &str = "POST /outbound/messages";
const MESSAGE: &str = "GET /outbound/messages/{id}";
const CANCEL: &str = "POST /outbound/messages/{id}/cancel";
const RESEND: &str = "POST /outbound/messages/{id}/resend";
const SETTLE: &str = "POST /outbound/messages/{id}/settle";
const UNKNOWN: &str = "GET /outbound/unknown";
const EXPLAIN: &str = "GET /explain";
const SUPPRESSIONS: &str = "GET /suppressions";
const SUPPRESS: &str = "POST /suppressions";
const UNSUPPRESS: &str = "DELETE /suppressions";

/// The routes of this function. The template declares the same routes.
pub const ROUTES: &[Route] = &[
    Route::public(HEALTH),
    Route::scoped(CHECK, "intents"),
    Route::scoped(LIST, "intents:read").query(&["client_id", "limit", "cursor"]),
    Route::scoped(GET, "intents:read").query(&["client_id"]),
    Route::scoped(RELEASE, "intents"),
    Route::scoped(ACCEPT, "outbound"),
    Route::scoped(MESSAGE, "outbound:read"),
    Route::scoped(CANCEL, "outbound"),
    Route::scoped(RESEND, "outbound"),
    Route::scoped(SETTLE, "outbound"),
    Route::scoped(UNKNOWN, "outbound:read").query(&["limit", "cursor"]),
    Route::scoped(EXPLAIN, "outbound:read").query(&["message", "to", "client_id", "channel", "limit", "cursor"]),
    Route::scoped(SUPPRESSIONS, "outbound:read").query(&["channel", "list", "to", "limit", "cursor"]),
    Route::scoped(SUPPRESS, "outbound"),
    Route::scoped(UNSUPPRESS, "outbound").query(&["channel", "list", "to"]),
];

#[derive(Debug)]
pub struct Deps {
    pub messages: Messages,
    pub intents: Intents,
    /// Knows which bots and instances have credentials.
    pub senders: Senders,
    pub suppressions: Suppressions,
    pub unsubscribes: Unsubscribes,
    pub types: IntentTypes,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let options = config::text("INTENT_TYPE_OPTIONS").unwrap_or_else(|| "{}".to_owned());
        let types = IntentTypes::with_options(&options)
            .map_err(|error| ConfigError::malformed("INTENT_TYPE_OPTIONS", format!("usable: {error}")))?;
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        let messages = Messages::from_env(&store)?;
        let senders = Senders::from_env(&aws, &store, RateTable::default())?;
        let suppressions = Suppressions { store: messages.store.clone(), table: messages.table.clone() };
        let unsubscribes = Unsubscribes { store: messages.store.clone(), table: messages.table.clone() };
        let intents = messages.intents.clone();
        Ok(Self { messages, intents, senders, suppressions, unsubscribes, types })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, request: Request) -> Result<Answer, Problem> {
    let (deps, invocation, request) = (&deps, &invocation, &request);
    match request.route.as_str() {
        HEALTH => Answer::json(200, &json!({"status": "ok"})),
        CHECK => intents::check::run(deps, invocation, request).await,
        LIST => intents::read::list(deps, invocation, request).await,
        GET => intents::read::get(deps, invocation, request).await,
        RELEASE => intents::release::run(deps, invocation, request).await,
        ACCEPT => outbound::accept::run(deps, invocation, request).await,
        MESSAGE => outbound::message::get(deps, invocation, request).await,
        CANCEL => outbound::orders::cancel(deps, invocation, request).await,
        RESEND => outbound::orders::resend(deps, invocation, request).await,
        SETTLE => outbound::orders::settle(deps, invocation, request).await,
        UNKNOWN => outbound::message::unknown(deps, invocation, request).await,
        EXPLAIN => outbound::explain::run(deps, invocation, request).await,
        SUPPRESSIONS => outbound::suppressions::list(deps, invocation, request).await,
        SUPPRESS => outbound::suppressions::add(deps, invocation, request).await,
        UNSUPPRESS => outbound::suppressions::remove(deps, invocation, request).await,
        _ => Err(Problem::not_found("there is no such route")),
    }
}
