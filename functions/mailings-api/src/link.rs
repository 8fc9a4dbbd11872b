//! `/u/{token}`: looking changes nothing, because mail programs and scanners look; posting takes the recipient off the
//! mailing's list, however often it is done.

use umavez_domain::codes::Event;
use umavez_domain::mailings::{
    CONTENT_SECURITY_POLICY, Language, MailingEntryId, UnsubscribeRow, UnsubscribeSource, ask_page, done_page,
    unknown_page, verify_unsubscribe,
};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;

pub async fn show(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let language = language(request);
    Ok(match found(deps, invocation, request).await? {
        Some((_, list)) => page(200, ask_page(language, &list)),
        None => page(404, unknown_page(language)),
    })
}

pub async fn leave(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let language = language(request);
    let Some((entry, list)) = found(deps, invocation, request).await? else {
        return Ok(page(404, unknown_page(language)));
    };
    let source = UnsubscribeSource::of_post(request.body());
    let row = UnsubscribeRow::by_link(&entry, &list, source, invocation.now);
    if deps.unsubscribes.add(invocation, &row).await?.is_none() {
        let event = Event::MailingUnsubscribed.as_str();
        let (mailing_id, source) = (entry.mailing.as_str(), source.as_str());
        tracing::info!(event, mailing_id, source, request_id = invocation.request_id);
        metrics::counter!("MailingUnsubscribed").increment(1);
    }
    Ok(page(200, done_page(language, &list)))
}

/// Whom a link speaks for, and of which list.
async fn found(
    deps: &Deps,
    invocation: &Invocation,
    request: &Request,
) -> Result<Option<(MailingEntryId, String)>, Problem> {
    let signing = deps.links.get(invocation).await;
    let signing = signing.map_err(|error| Problem::internal().because(&error))?;
    let token = request.path.get("token").map(String::as_str).unwrap_or_default();
    let Some(entry) = verify_unsubscribe(signing.all(), token) else { return Ok(None) };
    let row = deps.mailings.get(invocation, &entry.mailing).await?;
    Ok(row.and_then(|row| row.list).map(|list| (entry, list)))
}

fn language(request: &Request) -> Language {
    Language::of(request.header("accept-language"))
}

fn page(status: u16, html: String) -> Answer {
    Answer::text(status, "text/html; charset=utf-8", html)
        .header("content-security-policy", CONTENT_SECURITY_POLICY)
        .header("cache-control", "no-store")
        .header("referrer-policy", "no-referrer")
        .header("x-robots-tag", "noindex")
}
