//! `/u/{token}`: looking changes nothing, because mail programs and scanners look; posting takes
//! the recipient off the mailing's list, however often it is done.

use umavez_domain::codes::Event;
use umavez_domain::mailings::{
    MailingEntryId, UnsubscribeRow, UnsubscribeSource, ask_page, done_page, later_page, unknown_page,
    verify_unsubscribe,
};
use umavez_domain::pages::{CONTENT_SECURITY_POLICY, Language};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;

pub async fn show(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let language = language(request);
    Ok(match found(deps, invocation, request).await {
        Ok(Some((_, list))) => page(200, ask_page(language, &list)),
        Ok(None) => page(404, unknown_page(language)),
        Err(problem) => later(invocation, language, &problem),
    })
}

pub async fn leave(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let language = language(request);
    let (entry, list) = match found(deps, invocation, request).await {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(page(404, unknown_page(language))),
        Err(problem) => return Ok(later(invocation, language, &problem)),
    };
    let source = UnsubscribeSource::of_post(request.body());
    let row = UnsubscribeRow::by_link(&entry, &list, source, invocation.now);
    let standing = match deps.unsubscribes.add(invocation, &row).await {
        Ok(standing) => standing,
        Err(error) => return Ok(later(invocation, language, &Problem::from(error))),
    };
    if standing.is_none() {
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

/// Whoever reads this is no program: a page, and not a problem. Mail programs try again by its
/// status.
fn later(invocation: &Invocation, language: Language, problem: &Problem) -> Answer {
    let cause = problem.cause.as_deref();
    tracing::error!(event = "LINK_FAILED", cause, request_id = invocation.request_id);
    page(503, later_page(language)).header("retry-after", "60")
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
