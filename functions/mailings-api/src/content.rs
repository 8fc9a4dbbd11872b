//! The content of a mailing: set or change it before sending, preview it, and send a test to one
//! address.

use std::collections::BTreeMap;

use serde_json::json;
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::fields::FieldError;
use umavez_domain::idempotency::Replay;
use umavez_domain::mailings::{
    ContentRequest, MailingContent, MailingEntryId, MailingRow, Prepared, PreviewRequest, Rendered, TestRequest,
    unsubscribe_headers, unsubscribe_token, unsubscribe_url, values,
};
use umavez_domain::messages::{MessageId, NewMessage};
use umavez_domain::queue::Priority;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use umavez_platform::messages::Accepted;

use crate::orders::ordered;
use crate::{Deps, id, mailing, public_url};

/// The maximum size in bytes of a previewed mail, and of a test mail, which is stored as a message.
const LARGEST_PREVIEW: usize = 2 * 1024 * 1024;
const LARGEST_MESSAGE: usize = 300 * 1024;

pub async fn put(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = ContentRequest::read(&request.object()?).map_err(Problem::invalid)?;
    let done = deps.mailings.put_content(invocation, &id(request)?, &asked).await?;
    let row = ordered(invocation, done)?;
    Answer::json(200, &json!({"mailingId": row.mailing_id, "status": row.state}))
}

pub async fn preview(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = PreviewRequest::read(&request.object_or_nothing()?).map_err(Problem::invalid)?;
    let row = mailing(deps, invocation, request).await?;
    let content = content(deps, invocation, &row).await?;
    let (email, mut variables) = recipient(deps, invocation, &row, asked.email).await?;
    variables.extend(asked.variables);
    // The link in a preview does not work: a caller who may preview a mailing may not unsubscribe
    // its recipients.
    let link = unsubscribe_url(&public_url(deps, request), "preview");
    let Rendered { subject, html, text } = rendered(&row, &content, &email, &variables, link, LARGEST_PREVIEW)?;
    Answer::json(200, &json!({"email": email, "subject": subject, "html": html, "text": text}))
}

/// Returns the address and the variables of the requested recipient. Without an address, it returns
/// those of the first entry, or an example address if there are no entries.
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

/// Sends the mailing's mail to one address. It is an ordinary message, sent at once and identified
/// by its request.
pub async fn test(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = TestRequest::read(&request.object()?).map_err(Problem::invalid)?;
    let row = mailing(deps, invocation, request).await?;
    let content = content(deps, invocation, &row).await?;
    let signing = deps.links.get(invocation).await.map_err(|error| Problem::internal().because(&error))?;
    let token = unsubscribe_token(signing.current.as_bytes(), &row.mailing_id, &asked.to, row.shards.max(1));
    let public_url = public_url(deps, request);
    let link = unsubscribe_url(&public_url, &token);
    let rendered = rendered(&row, &content, &asked.to, &asked.variables, link, LARGEST_MESSAGE)?;
    // Set the same headers as the mailing does, so that the test mail equals what recipients get.
    let headers = row.unsubscribe.then(|| unsubscribe_headers(&public_url, &token));
    let headers = headers.into_iter().flatten().collect();
    let caller = &request.caller()?.key_id;
    let identity = request.identity(invocation)?;
    let new = NewMessage {
        id: MessageId::of(caller, &identity.key),
        caller: caller.to_string(),
        body_hash: identity.body.clone(),
        sender: "default".to_owned(),
        to: asked.to,
        content: content.email(rendered, headers),
        priority: Priority::Start,
        hold: None,
        send_at: None,
        not_after: None,
        metadata: None,
        then: None,
    };
    let (message, replayed) = match deps.messages.accept(invocation, &new).await? {
        Accepted::New(message) => (message, false),
        Accepted::Existing(message) => (message, true),
        // Only a message with an intent returns these.
        Accepted::KeyReused | Accepted::TooManyScheduled => return Err(key_reused()),
    };
    if Replay::of(&message.body_hash, &identity.body) == Replay::OtherBody {
        return Err(key_reused());
    }
    let answer = Answer::json(202, &json!({"message_id": message.id, "status": message.delivery.state}))?;
    Ok(if replayed { answer.replayed() } else { answer })
}

fn key_reused() -> Problem {
    Problem::key_reused("a test with another body")
}

async fn content(deps: &Deps, invocation: &Invocation, row: &MailingRow) -> Result<MailingContent, Problem> {
    match deps.mailings.content(invocation, &row.mailing_id).await? {
        Some(stored) => Ok(stored.content),
        None => Err(Problem::new(409, ProblemCode::WrongState, "the mailing has no content yet")),
    }
}

fn rendered(
    row: &MailingRow,
    content: &MailingContent,
    email: &str,
    variables: &BTreeMap<String, String>,
    link: String,
    largest: usize,
) -> Result<Rendered, Problem> {
    let prepared = Prepared::of(content).map_err(|error| Problem::internal().because(&error))?;
    let values = values(variables, email, row.progress.format.as_ref(), row.unsubscribe.then_some(link));
    let rendered = prepared.render(email, &values).ok().filter(|rendered| {
        rendered.html.as_ref().map_or(0, String::len) + rendered.text.as_ref().map_or(0, String::len) <= largest
    });
    rendered.ok_or_else(|| {
        let detail = format!("with these variables the mail has more than {largest} bytes");
        Problem::invalid(vec![FieldError::new("variables", FieldProblem::OutOfRange, detail)])
    })
}
