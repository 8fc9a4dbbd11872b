//! Administration over HTTP and as a web page: bots, downsells, their queues and their metrics.

mod bots;
mod console;
mod downsells;
mod home;
mod metrics;
mod queue;
mod test_send;

use std::sync::Arc;

use umavez_domain::senders::bots::BotRow;
use umavez_domain::senders::is_name;
use umavez_domain::senders::rates::RateTable;
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::downsells::Downsells;
use umavez_platform::http::{Answer, Problem, Request, Route};
use umavez_platform::invocation::Invocation;
use umavez_platform::messages::Messages;
use umavez_platform::senders::Senders;
use umavez_platform::store::Store;

const HOME: &str = "GET /";
const CONSOLE: &str = "GET /console";
const BOTS: &str = "GET /api/admin/bots";
const NEW_BOT: &str = "POST /api/admin/bots";
const BOT: &str = "GET /api/admin/bots/{slug}";
const CHANGE_BOT: &str = "PUT /api/admin/bots/{slug}";
const DOWNSELLS: &str = "GET /api/admin/bots/{slug}/downsells";
const NEW_DOWNSELL: &str = "POST /api/admin/bots/{slug}/downsells";
const DOWNSELL: &str = "GET /api/admin/bots/{slug}/downsells/{id}";
const CHANGE_DOWNSELL: &str = "PUT /api/admin/bots/{slug}/downsells/{id}";
const DELETE_DOWNSELL: &str = "DELETE /api/admin/bots/{slug}/downsells/{id}";
const TEST: &str = "POST /api/admin/bots/{slug}/downsells/{id}/test";
const QUEUE: &str = "GET /api/admin/bots/{slug}/queue";
const SETTLE: &str = "POST /api/admin/bots/{slug}/queue/{id}/settle";
const METRICS: &str = "GET /api/admin/bots/{slug}/metrics";

/// The routes of this function. The template declares the same routes.
pub const ROUTES: &[Route] = &[
    Route::public(HOME).any_query(),
    Route::public(CONSOLE).any_query(),
    Route::scoped(BOTS, "downsells:read"),
    Route::scoped(NEW_BOT, "downsells"),
    Route::scoped(BOT, "downsells:read"),
    Route::scoped(CHANGE_BOT, "downsells"),
    Route::scoped(DOWNSELLS, "downsells:read"),
    Route::scoped(NEW_DOWNSELL, "downsells"),
    Route::scoped(DOWNSELL, "downsells:read"),
    Route::scoped(CHANGE_DOWNSELL, "downsells"),
    Route::scoped(DELETE_DOWNSELL, "downsells"),
    Route::scoped(TEST, "downsells"),
    Route::scoped(QUEUE, "downsells:read").query(&[
        "status",
        "trigger",
        "downsell_id",
        "telegram_id",
        "delivery",
        "limit",
        "cursor",
    ]),
    Route::scoped(SETTLE, "downsells"),
    Route::scoped(METRICS, "downsells:read").query(&["days", "from", "to"]),
];

#[derive(Debug)]
pub struct Deps {
    pub downsells: Downsells,
    /// Accepts test sends: a test is an ordinary message.
    pub messages: Messages,
    /// Knows which bots have a token.
    pub senders: Senders,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        let (downsells, messages) = (Downsells::from_env(&store)?, Messages::from_env(&store)?);
        Ok(Self { downsells, messages, senders: Senders::from_env(&aws, &store, RateTable::default())? })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, request: Request) -> Result<Answer, Problem> {
    let (deps, invocation, request) = (&deps, &invocation, &request);
    match request.route.as_str() {
        HOME => Ok(home::show(request)),
        CONSOLE => Ok(console::page()),
        BOTS => bots::list(deps, invocation).await,
        NEW_BOT => bots::create(deps, invocation, request).await,
        BOT => bots::one(deps, invocation, request).await,
        CHANGE_BOT => bots::change(deps, invocation, request).await,
        DOWNSELLS => downsells::list(deps, invocation, request).await,
        NEW_DOWNSELL => downsells::create(deps, invocation, request).await,
        DOWNSELL => downsells::one(deps, invocation, request).await,
        CHANGE_DOWNSELL => downsells::change(deps, invocation, request).await,
        DELETE_DOWNSELL => downsells::delete(deps, invocation, request).await,
        TEST => test_send::run(deps, invocation, request).await,
        QUEUE => queue::list(deps, invocation, request).await,
        SETTLE => queue::settle(deps, invocation, request).await,
        METRICS => metrics::run(deps, invocation, request).await,
        _ => Err(Problem::not_found("there is no such route")),
    }
}

fn slug(request: &Request) -> Result<&str, Problem> {
    request.path.get("slug").map(String::as_str).filter(|slug| is_name(slug)).ok_or_else(no_such_bot)
}

/// Returns the bot that the path names. Fails with 404 if there is none.
async fn bot(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<BotRow, Problem> {
    deps.downsells.bots.get(invocation, slug(request)?).await?.ok_or_else(no_such_bot)
}

fn no_such_bot() -> Problem {
    Problem::not_found("there is no such bot; make it with POST /api/admin/bots")
}
