//! `POST /conversations/{id}/messages`: receives a message from any other channel and stores it
//! before the response.

use serde_json::json;
use umavez_domain::conversations::requests::{ConversationName, read_message};
use umavez_domain::conversations::{ConversationId, ReceiveOutcome, Via};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::{Deps, named, no_such_conversation};

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let conversations = &deps.conversations;
    let body = request.object()?;
    let named = named(request)?;
    let contact = match &named {
        ConversationName::Id(_) => "",
        ConversationName::Contact(contact) => contact,
    };
    let (instance, mut message) = read_message(&body, contact, invocation.now).map_err(Problem::invalid)?;
    let (settings, row) = match named {
        ConversationName::Contact(contact) => {
            let id = ConversationId::of(Via::Api, &instance, &contact);
            let (settings, row) = conversations.instance_and(invocation, Via::Api, &instance, &id).await?;
            (settings.ok_or_else(no_such_instance)?, row)
        }
        // A conversation that began on another channel keeps the settings of that channel's
        // instance.
        ConversationName::Id(id) => {
            let row = conversations.get(invocation, &id).await?.ok_or_else(no_such_conversation)?;
            message.contact.clone_from(&row.contact);
            (conversations.settings(invocation, &row).await?, Some(row))
        }
    };
    let id = ConversationId::of(settings.channel, &settings.instance, &message.contact);
    let receipt = conversations.receive(invocation, &settings, row, &message).await?;
    let number = receipt.row.filter(|_| receipt.outcome == ReceiveOutcome::Stored).map(|row| row.course.received);
    let answer = json!({"conversation_id": id, "outcome": receipt.outcome, "number": number});
    match receipt.outcome {
        ReceiveOutcome::Duplicate => Ok(Answer::json(200, &answer)?.replayed()),
        _ => Answer::json(202, &answer),
    }
}

fn no_such_instance() -> Problem {
    Problem::not_found("there is no such instance; set it up with PUT /instances/api/{instance}")
}
