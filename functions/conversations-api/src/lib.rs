//! Conversations over HTTP: messages from other channels, late replies, hold and release, and the
//! state of conversations.

mod hold;
mod instances;
mod messages;
mod read;
mod replies;

use umavez_domain::conversations::requests::{ConversationName, DEFAULT_INSTANCE};
use umavez_domain::conversations::{ConversationId, Via};
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::conversations::Conversations;
use umavez_platform::http::{Problem, Request, Route, paging};
use umavez_platform::store::Store;

umavez_platform::routes! {
    Route::scoped("GET /conversations", "conversations:read").query(&["status", "limit", "cursor"]) => read::list,
    Route::scoped("GET /conversations/{id}", "conversations:read").query(&["instance", "limit", "cursor"]) => read::one,
    Route::scoped("POST /conversations/{id}/messages", "conversations") => messages::run,
    Route::scoped("POST /conversations/{id}/replies", "conversations").query(&["instance"]) => replies::run,
    Route::scoped("POST /conversations/{id}/hold", "conversations").query(&["instance"]) => hold::hold,
    Route::scoped("POST /conversations/{id}/release", "conversations").query(&["instance"]) => hold::release,
    Route::scoped("GET /instances", "conversations:read") =>
        async |deps, invocation, _| instances::list(deps, invocation).await,
    Route::scoped("GET /instances/{channel}/{instance}", "conversations:read") => instances::one,
    Route::scoped("PUT /instances/{channel}/{instance}", "conversations") => instances::put,
}

#[derive(Debug)]
pub struct Deps {
    pub conversations: Conversations,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self { conversations: Conversations::from_env(&Store::new(Aws::from_env()?.dynamodb()))? })
    }
}

/// Returns what the path names: a conversation id, or the caller's own name for the contact.
fn named(request: &Request) -> Result<ConversationName, Problem> {
    request.path.get("id").and_then(|text| ConversationName::parse(text)).ok_or_else(no_such_conversation)
}

/// Returns the id of the conversation that the path names. The caller's own name for a contact
/// belongs to the instance in the query.
fn id(request: &Request) -> Result<ConversationId, Problem> {
    let instance = paging::optional(request, "instance").unwrap_or(DEFAULT_INSTANCE);
    Ok(match named(request)? {
        ConversationName::Id(id) => id,
        ConversationName::Contact(contact) => ConversationId::of(Via::Api, instance, &contact),
    })
}

fn no_such_conversation() -> Problem {
    Problem::not_found("there is no such conversation")
}
