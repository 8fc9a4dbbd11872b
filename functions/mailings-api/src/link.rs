//! `/u/{token}`: the unsubscribe link. A GET changes nothing, because mail programs and scanners
//! open links. A POST removes the recipient from the mailing's list; a repeated POST is a no-op.

use umavez_domain::mailings::{
    MailingEntryId, UnsubscribeRow, UnsubscribeSource, ask_page, done_page, later_page, unknown_page,
    verify_unsubscribe,
};
use umavez_domain::pages::{CONTENT_SECURITY_POLICY, Language};
use umavez_domain::telemetry::{Event, Metric};
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
        metrics::counter!(Metric::MailingUnsubscribes.as_str()).increment(1);
    }
    Ok(page(200, done_page(language, &list)))
}

/// Returns the entry that the link belongs to, and the list of its mailing. Returns `None` if the
/// token is not valid or the mailing has no list.
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

/// Returns a "try again later" page. The reader is a person, so the answer is a page and not
/// problem+json. Mail programs retry because of its status.
fn later(invocation: &Invocation, language: Language, problem: &Problem) -> Answer {
    let cause = problem.cause.as_deref();
    tracing::error!(event = Event::UnsubscribeFailed.as_str(), cause, request_id = invocation.request_id);
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
