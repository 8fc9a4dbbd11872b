//! What a mailing says: given or changed before it is sent, looked at, and tried on one address.

use std::collections::BTreeMap;

use serde_json::json;
use umavez_domain::codes::Problem as Code;
use umavez_domain::idempotency::{Replay, judge};
use umavez_domain::mailings::{
    ContentRequest, MailingContent, MailingEntryId, MailingRow, Prepared, PreviewRequest, Rendered, TestRequest,
    UNSUBSCRIBE_URL, list_of, unsubscribe_token, unsubscribe_url,
};
use umavez_domain::outbound::content::{Content, Email};
use umavez_domain::outbound::{NewMessage, Priority, State, message_id};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use umavez_platform::outbound::Accepted;

use crate::orders::ordered;
use crate::upload::check_columns;
use crate::{Deps, mailing};

pub async fn put(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = ContentRequest::read(&request.object()?).map_err(Problem::invalid)?;
    let row = mailing(deps, invocation, request).await?;
    if let Some(format) = &row.progress.format {
        check_columns(&asked.content, format)?;
    }
    // What is not said is as the upload said; and a list is one per sender where nobody names one.
    let list = asked.list.or_else(|| row.list.clone());
    let list = list_of(list.as_deref(), Some(&asked.content.from));
    let unsubscribe = asked.unsubscribe.unwrap_or(row.unsubscribe);
    let id = &row.mailing_id;
    let done = deps.mailings.put_content(invocation, id, &asked.content, list.as_deref(), unsubscribe).await?;
    let row = ordered(invocation, done)?;
    Answer::json(200, &json!({"mailingId": row.mailing_id, "status": row.state}))
}

pub async fn preview(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = PreviewRequest::read(&request.object_or_nothing()?).map_err(Problem::invalid)?;
    let row = mailing(deps, invocation, request).await?;
    let content = content(deps, invocation, &row).await?;
    let (email, mut variables) = recipient(deps, invocation, &row, asked.email).await?;
    variables.extend(asked.variables);
    let Rendered { subject, html, text } = rendered(deps, invocation, &row, &content, &email, variables).await?;
    Answer::json(200, &json!({"email": email, "subject": subject, "html": html, "text": text}))
}

/// Whom a preview is for: the one that was asked for, or the first.
async fn recipient(
    deps: &Deps,
    invocation: &Invocation,
    row: &MailingRow,
    email: Option<String>,
) -> Result<(String, BTreeMap<String, String>), Problem> {
    let Some(email) = email else {
        let first = deps.mailings.first_entry(invocation, row).await?;
        return Ok(first.map_or_else(
            || ("recipient@example.com".to_owned(), BTreeMap::new()),
            |entry| (entry.email, entry.variables),
        ));
    };
    let id = MailingEntryId::of(&row.mailing_id, &email, row.shards);
    match deps.mailings.entry(invocation, &id).await? {
        Some(entry) => Ok((entry.email, entry.variables)),
        None => Err(Problem::not_found("the mailing has no such recipient")),
    }
}

/// The mail goes out as any single one does, at once and known by its request.
pub async fn test(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = TestRequest::read(&request.object()?).map_err(Problem::invalid)?;
    let row = mailing(deps, invocation, request).await?;
    let content = content(deps, invocation, &row).await?;
    let Rendered { subject, html, text } =
        rendered(deps, invocation, &row, &content, &asked.to, asked.variables).await?;
    let (from, reply_to) = (content.from.clone(), content.reply_to.clone());
    let caller = &request.caller()?.key_id;
    let key = request.idempotency_key()?;
    let known_by = key.as_ref().map_or(invocation.request_id.as_str(), |key| key.as_str());
    let body_hash = request.body_hash();
    let new = NewMessage {
        id: message_id(caller, &format!("test:{}:{known_by}", row.mailing_id)),
        caller: caller.to_string(),
        body_hash: body_hash.clone(),
        sender: "default".to_owned(),
        to: asked.to,
        content: Content::Email(Email { from, subject, text, html, reply_to }),
        priority: Priority::Start,
        hold: None,
        check: None,
        send_at: None,
        not_after: None,
        metadata: None,
    };
    let (Accepted::New(message) | Accepted::Deduped(message) | Accepted::Standing(message)) =
        deps.messages.accept(invocation, &new).await?;
    if judge(&message.body_hash, &body_hash) == Replay::OtherBody {
        let detail = "there is a test with this Idempotency-Key, from a request with another body";
        return Err(Problem::new(422, Code::IdempotencyKeyReused, detail));
    }
    Answer::json(202, &json!({"message_id": message.id, "status": State::Queued}))
}

async fn content(deps: &Deps, invocation: &Invocation, row: &MailingRow) -> Result<MailingContent, Problem> {
    match deps.mailings.content(invocation, &row.mailing_id).await? {
        Some(stored) => Ok(stored.content),
        None => Err(Problem::new(409, Code::WrongState, "the mailing has no content yet")),
    }
}

async fn rendered(
    deps: &Deps,
    invocation: &Invocation,
    row: &MailingRow,
    content: &MailingContent,
    email: &str,
    mut variables: BTreeMap<String, String>,
) -> Result<Rendered, Problem> {
    if row.unsubscribe {
        let signing = deps.links.get(invocation).await;
        let signing = signing.map_err(|error| Problem::internal().because(&error))?;
        let token = unsubscribe_token(signing.current.as_bytes(), &row.mailing_id, email, row.shards.max(1));
        variables.insert(UNSUBSCRIBE_URL.to_owned(), unsubscribe_url(&deps.public_url, &token));
    }
    let prepared = Prepared::of(content).map_err(|error| Problem::internal().because(&error))?;
    prepared.render(email, &variables).map_err(|_| {
        Problem::new(422, Code::InvalidRequest, "with these variables the mail is larger than a mail may be")
    })
}
