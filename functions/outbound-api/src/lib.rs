//! Intents over HTTP: may this intention be sent to this client, and who holds it.

mod check;
mod read;
mod release;

use std::sync::Arc;

use serde_json::json;
use umavez_domain::intents::IntentTypes;
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::http::{Answer, Problem, Request, Route};
use umavez_platform::intents::Intents;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Store;

const HEALTH: &str = "GET /health";
const CHECK: &str = "POST /intents";
const LIST: &str = "GET /intents";
const GET: &str = "GET /intents/{fingerprint}";
const RELEASE: &str = "POST /intents/{fingerprint}/release";

/// The routes of this function, as the template has them.
pub const ROUTES: &[Route] = &[
    Route::public(HEALTH),
    Route::scoped(CHECK, "intents"),
    Route::scoped(LIST, "intents:read"),
    Route::scoped(GET, "intents:read"),
    Route::scoped(RELEASE, "intents"),
];

#[derive(Debug)]
pub struct Deps {
    pub intents: Intents,
    pub types: IntentTypes,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let options = config::text("INTENT_TYPE_OPTIONS").unwrap_or_else(|| "{}".to_owned());
        let types = IntentTypes::with_options(&options)
            .map_err(|error| ConfigError::malformed("INTENT_TYPE_OPTIONS", format!("usable: {error}")))?;
        let store = Store::new(Aws::from_env()?.dynamodb());
        Ok(Self { intents: Intents { store, table: config::required("INTENTS_TABLE")? }, types })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, request: Request) -> Result<Answer, Problem> {
    match request.route.as_str() {
        HEALTH => Answer::json(200, &json!({"status": "ok"})),
        CHECK => check::run(&deps, &invocation, &request).await,
        LIST => read::list(&deps, &invocation, &request).await,
        GET => read::get(&deps, &invocation, &request).await,
        RELEASE => release::run(&deps, &invocation, &request).await,
        _ => Err(Problem::not_found("there is no such route")),
    }
}
