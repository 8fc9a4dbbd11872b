//! `POST /mailings` and `POST /mailings/uploads`: a file name belongs to one mailing, the first
//! that claims it.
//!
//! A file that comes with its request is read completely before anything is written. It is then
//! stored under a key that belongs to this request alone, and one transaction creates the mailing
//! that refers to it. A request that loses the race for the name deletes its object again.

use std::collections::BTreeMap;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::fields::FieldError;
use umavez_domain::idempotency::body_hash;
use umavez_domain::mailings::files::inline_object;
use umavez_domain::mailings::{
    Format, ImportState, KeyRow, KeyedOrder, LARGEST_INLINE, LARGEST_UPLOAD, MailingContent, MailingRow, MailingState,
    NameMode, UploadRequest, check_file, content_hash, file_error, judge_upload,
};
use umavez_domain::telemetry::{Event, Metric};
use umavez_domain::uploaded::UPLOAD_MS;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{MailingCreated, SameFile};

use crate::{Deps, form};

pub async fn inline(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let query = || request.query.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let (asked, file) = match request.media_type().as_str() {
        "multipart/form-data" => {
            let form = form::read(request).await?;
            let asked = UploadRequest::of_form(&form.file_name, &form.fields, query());
            (asked.map_err(Problem::invalid)?, form.file)
        }
        kind @ ("text/csv" | "application/octet-stream") => {
            let asked = UploadRequest::of_csv(query()).map_err(Problem::invalid)?;
            if kind == "text/csv" {
                check_is_utf8(request.body())?;
            }
            (asked, request.body().to_vec())
        }
        _ => {
            let detail = "send a form (multipart/form-data) with the field `file`, or the file itself as text/csv";
            return Err(Problem::new(415, ProblemCode::UnsupportedMediaType, detail));
        }
    };
    if file.len() > LARGEST_INLINE {
        return Err(form::too_large());
    }
    let checked = check_file(&file, &asked.options).map_err(|bad| Problem::invalid(vec![file_error(bad)]))?;
    if let Some(content) = &asked.content {
        check_columns(content, &checked.format, asked.unsubscribe)?;
    }
    let asked = UploadRequest { sha256: Some(content_hash(&file)), ..asked };
    create(deps, invocation, request, asked, Some((file, checked.format))).await
}

/// Rejects a text body that was not UTF-8. API Gateway decodes text bodies as UTF-8, so other
/// encodings arrive corrupted, with U+FFFD in place of the unknown bytes.
fn check_is_utf8(file: &[u8]) -> Result<(), Problem> {
    const REPLACED: &[u8] = "\u{fffd}".as_bytes();
    let Some(at) = file.windows(REPLACED.len()).position(|part| part == REPLACED) else { return Ok(()) };
    let line = 1 + file[..at].iter().filter(|byte| **byte == b'\n').count();
    let detail = format!(
        "line {line}: the file is not UTF-8; save it as UTF-8, or send it in a form or as application/octet-stream, \
         with encoding=latin1 if it is Latin-1 or Windows-1252"
    );
    Err(Problem::invalid(vec![FieldError::new("file", FieldProblem::Malformed, detail)]))
}

pub async fn by_form(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = UploadRequest::of_json(&request.object()?).map_err(Problem::invalid)?;
    create(deps, invocation, request, asked, None).await
}

/// Checks that the content refers only to columns of the file. A misspelt column must be found
/// before the mail goes to a thousand recipients.
fn check_columns(content: &MailingContent, format: &Format, unsubscribe: bool) -> Result<(), Problem> {
    match content.misfits(format, unsubscribe) {
        misfits if misfits.is_empty() => Ok(()),
        misfits => Err(no_columns(misfits)),
    }
}

/// Returns the problem for content that refers to unknown columns. `misfits` maps each field of the
/// content to the unknown names in it.
pub fn no_columns(misfits: BTreeMap<&'static str, Vec<String>>) -> Problem {
    let error = |(field, names): (&'static str, Vec<String>)| {
        let names: Vec<_> = names.iter().take(5).map(|name| format!("{{{{{name}}}}}")).collect();
        let detail = format!("uses columns that the file does not have: {}", names.join(", "));
        FieldError::new(field, FieldProblem::Unknown, detail)
    };
    Problem::invalid(misfits.into_iter().map(error).collect())
}

async fn create(
    deps: &Deps,
    invocation: &Invocation,
    request: &Request,
    asked: UploadRequest,
    file: Option<(Vec<u8>, Format)>,
) -> Result<Answer, Problem> {
    let caller = &request.caller()?.key_id;
    let identity = request.identity(invocation)?;
    // Hash the meaning of the request and not its bytes: a client never encodes the same form twice
    // in the same way.
    let asked_as = identity.given.then(|| KeyedOrder {
        key: identity.key,
        body: body_hash(asked.canonical_text().as_bytes()),
        entries: 0,
    });
    // The object of a try that created nothing. It is deleted when the request ends, and not before
    // the next try: that may put it again under the same name, and a first attempt of a deletion
    // that arrives late would delete what the next try has put.
    let unused: Mutex<Option<MailingRow>> = Mutex::default();
    let remember = |row: Option<MailingRow>| {
        *unused.lock().unwrap_or_else(PoisonError::into_inner) = row.filter(|_| file.is_some());
    };
    let step = || async {
        if let Some(order) = &asked_as
            && let Some(first) = deps.mailings.find_request(invocation, &order.key).await?
        {
            return answer_replay(deps, invocation, &asked, order, &first).await.map(Break);
        }
        let name = deps.mailings.find_name(invocation, &asked.file_name).await?;
        if let Some(owner) = name.as_ref().and_then(|name| name.mailing_id.as_ref()) {
            let Some(row) = deps.mailings.get(invocation, owner).await? else {
                return Err(Problem::internal().because(&"a name without its mailing"));
            };
            return answer_known_name(deps, invocation, &asked, &row).await.map(Break);
        }
        let same_file = match &asked.sha256 {
            Some(hash) => deps.mailings.same_file(invocation, hash).await?,
            None => SameFile::New,
        };
        if let (Some(earlier), NameMode::Strict) = (same_file.earlier(), asked.mode) {
            let detail = format!("{earlier} has the same content under another file name");
            return Err(Problem::new(409, ProblemCode::SameContent, detail));
        }
        let turn = name.as_ref().map_or(0, |name| name.turn);
        let mut row = MailingRow::new(&asked, turn, caller, invocation.now);
        row.same_content_as = same_file.earlier().cloned();
        match &file {
            Some((file, format)) => {
                row.progress.place = format.start;
                row.progress.format = Some(format.clone());
                row.object = inline_object(&row.mailing_id, &invocation.request_id);
                let etag = deps.uploads.put(invocation, &row.object, file.clone()).await;
                let etag = etag.map_err(|error| unavailable().because(&error))?;
                row.file_uploaded(etag, file.len() as u64, invocation.now);
            }
            None => row.wait_until(invocation.now.plus_ms(UPLOAD_MS)),
        }
        let (content, asked_as) = (asked.content.as_ref(), asked_as.as_ref());
        match deps.mailings.create(invocation, name.as_ref(), &same_file, &row, content, asked_as).await? {
            MailingCreated::New => {
                remember(None);
                log_created(invocation, &row);
                answer(deps, invocation, &asked, &row, UploadAnswer::CREATED).map(Break)
            }
            // This request created it in an earlier try whose reply was lost.
            MailingCreated::Standing(standing) if file.is_some() && standing.object == row.object => {
                remember(None);
                answer(deps, invocation, &asked, &standing, UploadAnswer::CREATED).map(Break)
            }
            MailingCreated::Standing(standing) => {
                remember(Some(row));
                answer_known_name(deps, invocation, &asked, &standing).await.map(Break)
            }
            MailingCreated::Again => {
                remember(Some(row));
                Ok(Continue(()))
            }
        }
    };
    let answered = deps.mailings.store.retry(invocation, step).await;
    let unused = unused.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(row) = unused {
        delete_object(deps, invocation, &row).await;
    }
    answered
}

fn unavailable() -> Problem {
    Problem::new(503, ProblemCode::Unavailable, "the database did not answer; retry")
}

/// Deletes the object of a try that created no mailing, unless the mailing refers to it: a try
/// whose reply was lost may have created it after all. If that fails, the bucket's lifecycle rule
/// deletes the object after some days.
async fn delete_object(deps: &Deps, invocation: &Invocation, row: &MailingRow) {
    let is_deleted = match deps.mailings.get(invocation, &row.mailing_id).await {
        Ok(Some(standing)) if standing.object == row.object => true,
        Ok(_) => deps.uploads.delete(invocation, &row.object).await.is_ok(),
        Err(_) => false,
    };
    if !is_deleted {
        tracing::warn!(event = Event::UploadNotDeleted.as_str(), request_id = invocation.request_id);
    }
}

/// Answers a request whose idempotency key has already created a mailing.
async fn answer_replay(
    deps: &Deps,
    invocation: &Invocation,
    asked: &UploadRequest,
    order: &KeyedOrder,
    first: &KeyRow,
) -> Result<Answer, Problem> {
    if first.body != order.body {
        return Err(Problem::key_reused("a mailing with another body"));
    }
    match deps.mailings.get(invocation, &first.mailing_id).await? {
        Some(row) => {
            log_repeated(invocation, &row, Some(true));
            Ok(answer(deps, invocation, asked, &row, UploadAnswer::CREATED)?.replayed())
        }
        None => Err(Problem::internal().because(&"a request without its mailing")),
    }
}

/// Answers a request whose file name already belongs to a mailing.
async fn answer_known_name(
    deps: &Deps,
    invocation: &Invocation,
    asked: &UploadRequest,
    row: &MailingRow,
) -> Result<Answer, Problem> {
    let matches = judge_upload(row.content_hash.as_deref(), asked.sha256.as_deref(), asked.mode).map_err(|how| {
        Problem::new(409, ProblemCode::NameTaken, format!("{} has this file name, {how}", row.mailing_id))
    })?;
    let stored = match asked.content {
        Some(_) => deps.mailings.content(invocation, &row.mailing_id).await?.map(|stored| stored.content),
        None => None,
    };
    let dropped = asked.content.is_some() && asked.content != stored;
    log_repeated(invocation, row, matches);
    let warning =
        dropped.then_some("the content in this request was ignored; change it with PUT /mailings/{id}/content");
    answer(deps, invocation, asked, row, UploadAnswer { created: false, matches, warning })
}

/// What the answer to an accepted request says about its mailing.
struct UploadAnswer {
    created: bool,
    /// `None` if the content of one of the files is not known.
    matches: Option<bool>,
    warning: Option<&'static str>,
}

impl UploadAnswer {
    const CREATED: Self = Self { created: true, matches: Some(true), warning: None };
}

fn answer(
    deps: &Deps,
    invocation: &Invocation,
    asked: &UploadRequest,
    row: &MailingRow,
    result: UploadAnswer,
) -> Result<Answer, Problem> {
    let mut body = json!({
        "mailingId": row.mailing_id,
        "status": row.state,
        "created": result.created,
        "contentMatches": result.matches,
    });
    let mut warnings: Vec<_> = result.warning.map(str::to_owned).into_iter().collect();
    if let Some(earlier) = row.same_content_as.as_ref().filter(|_| result.created) {
        warnings.push(format!(
            "{earlier} has the same content under another file name; its recipients get this mailing too"
        ));
        body["sameContentAs"] = json!(earlier);
    }
    if !warnings.is_empty() {
        body["warnings"] = json!(warnings);
    }
    let awaited = row.import == ImportState::AwaitingUpload && row.state != MailingState::Canceled;
    if awaited && result.matches != Some(false) {
        body["upload"] = upload_form(deps, invocation, asked, row);
    }
    Answer::json(if result.created { 202 } else { 200 }, &body)
}

/// Returns the upload form. It is signed again for every request.
fn upload_form(deps: &Deps, invocation: &Invocation, asked: &UploadRequest, row: &MailingRow) -> Value {
    let sizes = asked.size.unwrap_or(1)..=asked.size.unwrap_or(LARGEST_UPLOAD);
    let hash = row.content_hash.as_ref().or(asked.sha256.as_ref()).and_then(|hash| hex::decode(hash).ok());
    deps.uploads.form(invocation, &row.object, sizes, hash.map(|hash| BASE64_STANDARD.encode(hash)))
}

fn log_created(invocation: &Invocation, row: &MailingRow) {
    tracing::info!(
        event = Event::MailingCreated.as_str(),
        mailing_id = row.mailing_id.as_str(),
        size = row.size,
        shards = row.shards,
        content = row.content_version > 0,
        same_content_as = row.same_content_as.as_ref().map(|id| id.as_str()),
        request_id = invocation.request_id,
    );
    metrics::counter!(Metric::MailingsCreated.as_str()).increment(1);
}

/// Logs that a file was uploaded again and created no other mailing.
fn log_repeated(invocation: &Invocation, row: &MailingRow, content_matches: Option<bool>) {
    let (event, mailing_id) = (Event::MailingRepeated.as_str(), row.mailing_id.as_str());
    tracing::info!(event, mailing_id, content_matches, request_id = invocation.request_id);
    metrics::counter!(Metric::MailingsRepeated.as_str()).increment(1);
}
