//! Conversations over HTTP: messages from other channels, late replies, hold and release, and the
//! state of conversations.

mod hold;
mod instances;
mod messages;
mod read;
mod replies;

use std::sync::Arc;

use umavez_domain::conversations::requests::{ConversationName, DEFAULT_INSTANCE};
use umavez_domain::conversations::{ConversationId, Via};
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::conversations::Conversations;
use umavez_platform::http::{Answer, Problem, Request, Route, paging};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Store;

const LIST: &str = "GET /conversations";
const CONVERSATION: &str = "GET /conversations/{id}";
const MESSAGE: &str = "POST /conversations/{id}/messages";
const REPLY: &str = "POST /conversations/{id}/replies";
const HOLD: &str = "POST /conversations/{id}/hold";
const RELEASE: &str = "POST /conversations/{id}/release";
const INSTANCES: &str = "GET /instances";
const INSTANCE: &str = "GET /instances/{channel}/{instance}";
const SET_UP: &str = "PUT /instances/{channel}/{instance}";

/// The routes of this function. The template declares the same routes.
pub const ROUTES: &[Route] = &[
    Route::scoped(LIST, "conversations:read").query(&["status", "limit", "cursor"]),
    Route::scoped(CONVERSATION, "conversations:read").query(&["instance", "limit", "cursor"]),
    Route::scoped(MESSAGE, "conversations"),
    Route::scoped(REPLY, "conversations").query(&["instance"]),
    Route::scoped(HOLD, "conversations").query(&["instance"]),
    Route::scoped(RELEASE, "conversations").query(&["instance"]),
    Route::scoped(INSTANCES, "conversations:read"),
    Route::scoped(INSTANCE, "conversations:read"),
    Route::scoped(SET_UP, "conversations"),
];

#[derive(Debug)]
pub struct Deps {
    pub conversations: Conversations,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self { conversations: Conversations::from_env(&Store::new(Aws::from_env()?.dynamodb()))? })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, request: Request) -> Result<Answer, Problem> {
    let (deps, invocation, request) = (&deps, &invocation, &request);
    match request.route.as_str() {
        LIST => read::list(deps, invocation, request).await,
        CONVERSATION => read::one(deps, invocation, request).await,
        MESSAGE => messages::run(deps, invocation, request).await,
        REPLY => replies::run(deps, invocation, request).await,
        HOLD => hold::hold(deps, invocation, request).await,
        RELEASE => hold::release(deps, invocation, request).await,
        INSTANCES => instances::list(deps, invocation).await,
        INSTANCE => instances::one(deps, invocation, request).await,
        SET_UP => instances::put(deps, invocation, request).await,
        _ => Err(Problem::not_found("there is no such route")),
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
