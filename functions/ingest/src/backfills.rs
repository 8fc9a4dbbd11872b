//! `POST /backfills` and `GET /backfills/{id}`.

use serde_json::json;
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::FieldError;
use umavez_domain::idempotency::Replay;
use umavez_domain::ingest::{BackfillId, BackfillRequest, BackfillRow, BackfillState, upload_key};
use umavez_domain::telemetry::Event;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::ingest::Begun;
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
            log_begun(invocation, &job);
            answer(deps, invocation, *job)
        }
        Begun::Standing(job) => match Replay::of(&job.body_hash, &identity.body) {
            Replay::Same => Ok(answer(deps, invocation, *job)?.replayed()),
            Replay::OtherBody => Err(Problem::key_reused("a backfill with another body")),
        },
    }
}

pub async fn get(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let Some(id) = request.path.get("id").and_then(|text| BackfillId::parse(text)) else {
        let detail = "must be a backfill_id, as POST /backfills returns it";
        return Err(Problem::invalid(vec![FieldError::new("id", FieldProblem::Malformed, detail)]));
    };
    match deps.backfills.get(invocation, &id).await? {
        Some(job) => Answer::json(200, &job.view()),
        None => Err(Problem::not_found("there is no such backfill")),
    }
}

/// Returns the answer to an accepted job. A repeated request gets the same answer, except that an
/// upload form is signed again.
fn answer(deps: &Deps, invocation: &Invocation, job: BackfillRow) -> Result<Answer, Problem> {
    let state = if job.upload { BackfillState::AwaitingUpload } else { BackfillState::Queued };
    let mut view =
        json!({"backfill_id": job.backfill_id, "schema": job.schema, "state": state, "dry_run": job.dry_run});
    if job.upload && matches!(job.state, BackfillState::AwaitingUpload | BackfillState::Failed) {
        let key = upload_key(&job.backfill_id);
        view["upload"] = deps.uploads.form(invocation, &key, 1..=LARGEST_UPLOAD, None);
    }
    Answer::json(202, &view)
}

fn log_begun(invocation: &Invocation, job: &BackfillRow) {
    tracing::info!(
        event = Event::BackfillCreated.as_str(),
        backfill_id = job.backfill_id.as_str(),
        schema = job.schema.as_str(),
        dry_run = job.dry_run,
        upload = job.upload,
        request_id = invocation.request_id,
    );
}
