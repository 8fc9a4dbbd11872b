//! Mailings over HTTP: uploads, content, orders, reports, and the link with which a recipient
//! unsubscribes from a list.

mod content;
mod entries;
mod form;
mod link;
mod orders;
mod read;
mod upload;

use std::sync::Arc;

use umavez_domain::mailings::{LARGEST_INLINE, MailingEvent, MailingId, MailingRow};
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::http::{Answer, Problem, Request, Route};
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{LinkSecrets, Mailings, Unsubscribes};
use umavez_platform::messages::Messages;
use umavez_platform::store::Store;
use umavez_platform::uploads::Uploads;

const UPLOAD: &str = "POST /mailings";
const UPLOADS: &str = "POST /mailings/uploads";
const LIST: &str = "GET /mailings";
const MAILING: &str = "GET /mailings/{id}";
const ENTRIES: &str = "GET /mailings/{id}/entries";
const REPORT: &str = "GET /mailings/{id}/report";
const CONTENT: &str = "PUT /mailings/{id}/content";
const PREVIEW: &str = "POST /mailings/{id}/preview";
const TEST: &str = "POST /mailings/{id}/test";
const PAUSE: &str = "POST /mailings/{id}/pause";
const RESUME: &str = "POST /mailings/{id}/resume";
const CANCEL: &str = "POST /mailings/{id}/cancel";
const RETRY: &str = "POST /mailings/{id}/retry-failed";
const LINK: &str = "GET /u/{token}";
const LEAVE: &str = "POST /u/{token}";

/// The maximum size of a form: a file and the other fields.
const LARGEST_FORM: usize = LARGEST_INLINE + 512 * 1024;

/// The routes of this function. The template declares the same routes.
pub const ROUTES: &[Route] = &[
    Route::scoped(UPLOAD, "mailings").taking(LARGEST_FORM).query(&["filename", "mode", "encoding", "email_column"]),
    Route::scoped(UPLOADS, "mailings").taking(512 * 1024),
    Route::scoped(LIST, "mailings:read").query(&["limit", "cursor"]),
    Route::scoped(MAILING, "mailings:read"),
    Route::scoped(ENTRIES, "mailings:read").query(&["status", "limit", "cursor"]),
    Route::scoped(REPORT, "mailings:read").query(&["format", "limit", "cursor"]),
    Route::scoped(CONTENT, "mailings").taking(512 * 1024),
    Route::scoped(PREVIEW, "mailings:read"),
    Route::scoped(TEST, "mailings"),
    Route::scoped(PAUSE, "mailings"),
    Route::scoped(RESUME, "mailings"),
    Route::scoped(CANCEL, "mailings"),
    Route::scoped(RETRY, "mailings"),
    // These routes need no key: the link identifies the recipient, or a mail program that acts for
    // them.
    Route::public(LINK).any_query(),
    Route::public(LEAVE).any_query(),
];

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

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, request: Request) -> Result<Answer, Problem> {
    let (deps, invocation, request) = (&deps, &invocation, &request);
    match request.route.as_str() {
        UPLOAD => upload::inline(deps, invocation, request).await,
        UPLOADS => upload::by_form(deps, invocation, request).await,
        LIST => read::list(deps, invocation, request).await,
        MAILING => read::one(deps, invocation, request).await,
        ENTRIES => entries::list(deps, invocation, request).await,
        REPORT => entries::report(deps, invocation, request).await,
        CONTENT => content::put(deps, invocation, request).await,
        PREVIEW => content::preview(deps, invocation, request).await,
        TEST => content::test(deps, invocation, request).await,
        PAUSE => orders::order(deps, invocation, request, MailingEvent::Pause).await,
        RESUME => orders::order(deps, invocation, request, MailingEvent::Resume).await,
        CANCEL => orders::order(deps, invocation, request, MailingEvent::Cancel).await,
        RETRY => orders::retry_failed(deps, invocation, request).await,
        LINK => link::show(deps, invocation, request).await,
        LEAVE => link::leave(deps, invocation, request).await,
        _ => Err(Problem::not_found("there is no such route")),
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
