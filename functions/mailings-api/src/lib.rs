//! Mailings over HTTP: uploads, content, orders, reports, and the link with which a recipient
//! unsubscribes from a list.

mod content;
mod entries;
mod form;
mod link;
mod orders;
mod read;
mod upload;

use umavez_domain::mailings::{LARGEST_INLINE, MailingEvent, MailingId, MailingRow};
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::http::{Problem, Request, Route};
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{LinkSecrets, Mailings, Unsubscribes};
use umavez_platform::messages::Messages;
use umavez_platform::store::Store;
use umavez_platform::uploads::Uploads;

/// The maximum size of a form: a file and the other fields.
const LARGEST_FORM: usize = LARGEST_INLINE + 512 * 1024;

umavez_platform::routes! {
    Route::scoped("POST /mailings", "mailings").taking(LARGEST_FORM)
        .query(&["filename", "mode", "encoding", "email_column"]) => upload::inline,
    Route::scoped("POST /mailings/uploads", "mailings").taking(512 * 1024) => upload::by_form,
    Route::scoped("GET /mailings", "mailings:read").query(&["limit", "cursor"]) => read::list,
    Route::scoped("GET /mailings/{id}", "mailings:read") => read::one,
    Route::scoped("GET /mailings/{id}/entries", "mailings:read").query(&["status", "limit", "cursor"]) => entries::list,
    Route::scoped("GET /mailings/{id}/report", "mailings:read").query(&["format", "limit", "cursor"]) =>
        entries::report,
    Route::scoped("PUT /mailings/{id}/content", "mailings").taking(512 * 1024) => content::put,
    Route::scoped("POST /mailings/{id}/preview", "mailings:read") => content::preview,
    Route::scoped("POST /mailings/{id}/test", "mailings") => content::test,
    Route::scoped("POST /mailings/{id}/pause", "mailings") =>
        async |deps, invocation, request| orders::order(deps, invocation, request, MailingEvent::Pause).await,
    Route::scoped("POST /mailings/{id}/resume", "mailings") =>
        async |deps, invocation, request| orders::order(deps, invocation, request, MailingEvent::Resume).await,
    Route::scoped("POST /mailings/{id}/cancel", "mailings") =>
        async |deps, invocation, request| orders::order(deps, invocation, request, MailingEvent::Cancel).await,
    Route::scoped("POST /mailings/{id}/retry-failed", "mailings") => orders::retry_failed,
    // These routes need no key: the link identifies the recipient, or a mail program that acts for
    // them.
    Route::public("GET /u/{token}").any_query() => link::show,
    Route::public("POST /u/{token}").any_query() => link::leave,
}

#[derive(Debug)]
pub struct Deps {
    pub mailings: Mailings,
    pub messages: Messages,
    pub unsubscribes: Unsubscribes,
    pub uploads: Uploads,
    pub links: LinkSecrets,
    /// The base URL of the unsubscribe pages. If it is `None`, they are at the host of the request.
    pub public_url: Option<String>,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        Ok(Self {
            mailings: Mailings::from_env(&store)?,
            messages: Messages::from_env(&store)?,
            unsubscribes: Unsubscribes::from_env(&store)?,
            links: LinkSecrets::from_env(&aws)?,
            public_url: config::text("PUBLIC_URL"),
            uploads: Uploads::new(aws, config::required("UPLOADS_BUCKET")?),
        })
    }
}

/// Returns the base URL of the unsubscribe pages.
fn public_url(deps: &Deps, request: &Request) -> String {
    let of_request = || {
        let scheme = if request.header("x-forwarded-proto") == Some("http") { "http" } else { "https" };
        format!("{scheme}://{}", request.header("host").unwrap_or_default())
    };
    deps.public_url.clone().unwrap_or_else(of_request)
}

/// Returns the id of the mailing that the path names.
fn id(request: &Request) -> Result<MailingId, Problem> {
    let id = request.path.get("id").and_then(|text| MailingId::parse(text));
    id.ok_or_else(|| Problem::not_found("there is no such mailing"))
}

async fn mailing(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<MailingRow, Problem> {
    let row = deps.mailings.get(invocation, &id(request)?).await?;
    row.ok_or_else(|| Problem::not_found("there is no such mailing"))
}
