//! `POST /backfills` and `GET /backfills/{id}`.

use serde_json::{Value, json};
use umavez_domain::codes::{Event, FieldProblem};
use umavez_domain::fields::FieldError;
use umavez_domain::idempotency::Replay;
use umavez_domain::ingest::{BackfillId, BackfillRequest, BackfillRow, BackfillState, BackfillView, upload_key};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::ingest::{Begun, Job};
use umavez_platform::invocation::Invocation;

use crate::Deps;

/// The maximum size of an uploaded file, in bytes.
const LARGEST_UPLOAD: u64 = 1 << 30;

/// Creates a backfill job. The job keeps the schema in use now, even if the test mode is toggled
/// later.
pub async fn begin(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = BackfillRequest::read(&request.object()?).map_err(Problem::invalid)?;
    let identity = request.identity(invocation)?;
    let schema = deps.settings.read(invocation).await?.schema();
    let id = BackfillId::of(&identity.key);
    let row = BackfillRow::new(id, schema, &asked, &identity.body, invocation.now);
    match deps.backfills.begin(invocation, row, &asked).await? {
        Begun::New(job) => {
            tell(invocation, &job);
            answer(deps, invocation, *job)
        }
        Begun::Standing(job) => match Replay::of(&job.row.body_hash, &identity.body) {
            Replay::Same => Ok(answer(deps, invocation, *job)?.replayed()),
            Replay::OtherBody => Err(Problem::key_reused("a backfill with another body")),
        },
    }
}

pub async fn get(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let Some(id) = request.path.get("id").and_then(|text| BackfillId::parse(text)) else {
        let detail = "must be a backfill_id, such as POST /backfills answers";
        return Err(Problem::invalid(vec![FieldError::new("id", FieldProblem::Malformed, detail)]));
    };
    match deps.backfills.get(invocation, &id).await? {
        Some(job) => Answer::json(200, &view(job)?),
        None => Err(Problem::not_found("there is no such backfill")),
    }
}

fn view(job: Job) -> Result<Value, Problem> {
    serde_json::to_value(BackfillView::from(job.row)).map_err(|error| Problem::internal().because(&error))
}

/// Returns the answer to an accepted job. A repeated request gets the same answer, except that an
/// upload form is signed again.
fn answer(deps: &Deps, invocation: &Invocation, job: Job) -> Result<Answer, Problem> {
    let state = if job.row.upload { BackfillState::AwaitingUpload } else { BackfillState::Queued };
    let mut view = serde_json::Map::new();
    view.insert("backfill_id".to_owned(), job.row.backfill_id.as_str().into());
    view.insert("schema".to_owned(), job.row.schema.as_str().into());
    view.insert("state".to_owned(), state.as_str().into());
    view.insert("dry_run".to_owned(), job.row.dry_run.into());
    if job.row.upload && matches!(job.row.state, BackfillState::AwaitingUpload | BackfillState::Failed) {
        let key = upload_key(&job.row.backfill_id);
        let form = deps.uploads.form(invocation, &key, 1..=LARGEST_UPLOAD, None);
        let fields: Value = form.post.fields.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        let upload = json!({
            "url": form.post.url, "fields": fields, "expires_at": form.expires_at, "max_bytes": LARGEST_UPLOAD,
        });
        view.insert("upload".to_owned(), upload);
    }
    Answer::json(202, &view)
}

fn tell(invocation: &Invocation, job: &Job) {
    tracing::info!(
        event = Event::BackfillBegun.as_str(),
        backfill_id = job.row.backfill_id.as_str(),
        schema = job.row.schema.as_str(),
        dry_run = job.row.dry_run,
        upload = job.row.upload,
        request_id = invocation.request_id,
    );
}
