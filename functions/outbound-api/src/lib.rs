//! Intents and outbound messages over HTTP.

mod intents;
mod outbound;

use serde_json::json;
use umavez_domain::intents::IntentTypes;
use umavez_domain::senders::rates::RateTable;
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::http::{Answer, Route};
use umavez_platform::intents::Intents;
use umavez_platform::mailings::Unsubscribes;
use umavez_platform::messages::Messages;
use umavez_platform::senders::Senders;
use umavez_platform::store::Store;
use umavez_platform::suppressions::Suppressions;

umavez_platform::routes! {
    Route::public("GET /health") => async |_, _, _| Answer::json(200, &json!({"status": "ok"})),
    Route::scoped("POST /intents", "intents") => intents::check::run,
    Route::scoped("GET /intents", "intents:read").query(&["client_id", "limit", "cursor"]) => intents::read::list,
    Route::scoped("GET /intents/{fingerprint}", "intents:read").query(&["client_id"]) => intents::read::get,
    Route::scoped("POST /intents/{fingerprint}/release", "intents") => intents::release::run,
    Route::scoped("POST /outbound/messages", "outbound") => outbound::accept::run,
    Route::scoped("GET /outbound/messages/{id}", "outbound:read") => outbound::message::get,
    Route::scoped("POST /outbound/messages/{id}/cancel", "outbound") => outbound::orders::cancel,
    Route::scoped("POST /outbound/messages/{id}/resend", "outbound") => outbound::orders::resend,
    Route::scoped("POST /outbound/messages/{id}/settle", "outbound") => outbound::orders::settle,
    Route::scoped("GET /outbound/unknown", "outbound:read").query(&["limit", "cursor"]) => outbound::message::unknown,
    Route::scoped("GET /explain", "outbound:read")
        .query(&["message", "to", "client_id", "channel", "limit", "cursor"]) => outbound::explain::run,
    Route::scoped("GET /suppressions", "outbound:read").query(&["channel", "list", "to", "limit", "cursor"]) =>
        outbound::suppressions::list,
    Route::scoped("POST /suppressions", "outbound") => outbound::suppressions::add,
    Route::scoped("DELETE /suppressions", "outbound").query(&["channel", "list", "to"]) =>
        outbound::suppressions::remove,
}

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
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        let messages = Messages::from_env(&store)?;
        let senders = Senders::from_env(&aws, &store, RateTable::default())?;
        let suppressions = messages.suppressions();
        let unsubscribes = Unsubscribes { store: messages.store.clone(), table: messages.table.clone() };
        let types = config::options("INTENT_TYPE_OPTIONS", IntentTypes::with_options)?;
        let intents = messages.intents.clone();
        Ok(Self { messages, intents, senders, suppressions, unsubscribes, types })
    }
}
