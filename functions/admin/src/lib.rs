//! Administration over HTTP and as a web page: bots, downsells, their queues and their metrics.

mod bots;
mod console;
mod downsells;
mod home;
mod metrics;
mod queue;
mod test_send;

use umavez_domain::senders::bots::BotRow;
use umavez_domain::senders::is_name;
use umavez_domain::senders::rates::RateTable;
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::downsells::Downsells;
use umavez_platform::http::{Problem, Request, Route};
use umavez_platform::invocation::Invocation;
use umavez_platform::messages::Messages;
use umavez_platform::senders::Senders;
use umavez_platform::store::Store;

umavez_platform::routes! {
    Route::public("GET /").any_query() => async |_, _, request| Ok(home::show(request)),
    Route::public("GET /console").any_query() => async |_, _, _| Ok(console::page()),
    Route::scoped("GET /api/admin/bots", "downsells:read") =>
        async |deps, invocation, _| bots::list(deps, invocation).await,
    Route::scoped("POST /api/admin/bots", "downsells") => bots::create,
    Route::scoped("GET /api/admin/bots/{slug}", "downsells:read") => bots::one,
    Route::scoped("PUT /api/admin/bots/{slug}", "downsells") => bots::change,
    Route::scoped("GET /api/admin/bots/{slug}/downsells", "downsells:read") => downsells::list,
    Route::scoped("POST /api/admin/bots/{slug}/downsells", "downsells") => downsells::create,
    Route::scoped("GET /api/admin/bots/{slug}/downsells/{id}", "downsells:read") => downsells::one,
    Route::scoped("PUT /api/admin/bots/{slug}/downsells/{id}", "downsells") => downsells::change,
    Route::scoped("DELETE /api/admin/bots/{slug}/downsells/{id}", "downsells") => downsells::delete,
    Route::scoped("POST /api/admin/bots/{slug}/downsells/{id}/test", "downsells") => test_send::run,
    Route::scoped("GET /api/admin/bots/{slug}/queue", "downsells:read")
        .query(&["status", "trigger", "downsell_id", "telegram_id", "delivery", "limit", "cursor"]) => queue::list,
    Route::scoped("POST /api/admin/bots/{slug}/queue/{id}/settle", "downsells") => queue::settle,
    Route::scoped("GET /api/admin/bots/{slug}/metrics", "downsells:read").query(&["days", "from", "to"]) =>
        metrics::run,
}

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

fn slug(request: &Request) -> Result<&str, Problem> {
    request.path.get("slug").map(String::as_str).filter(|slug| is_name(slug)).ok_or_else(no_such_bot)
}

/// Returns the bot that the path names. Fails with 404 if there is none.
async fn bot(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<BotRow, Problem> {
    deps.downsells.bots.get(invocation, slug(request)?).await?.ok_or_else(no_such_bot)
}

fn no_such_bot() -> Problem {
    Problem::not_found("there is no such bot; create it with POST /api/admin/bots")
}
