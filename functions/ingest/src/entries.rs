//! `POST /normalize/*`, `POST /db/insert`, `POST /ingest/*` and `GET /entries/{id}`.

use serde_json::{Map, Value};
use umavez_domain::codes::{Action, FieldProblem};
use umavez_domain::fields::FieldError;
use umavez_domain::ingest::{
    EntryId, EntryView, InsertAnswer, InsertOutcome, Insertion, LineRef, Normalized, Schema, resolve,
};
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::ingest::Inserted;
use umavez_platform::invocation::Invocation;

use crate::Deps;

type Normalize = fn(&Map<String, Value>) -> Result<Normalized, Vec<FieldError>>;

/// Normalizes the body. It reads and writes nothing in the store.
pub fn normalize(request: &Request, normalize: Normalize) -> Result<Answer, Problem> {
    Answer::json(200, &normalize(&request.object()?).map_err(Problem::invalid)?)
}

/// Inserts an entry with the current schema and policy. Both are read for every insert. `read`
/// reads the entry from the body.
pub async fn insert(
    deps: &Deps,
    invocation: &Invocation,
    request: &Request,
    read: Normalize,
) -> Result<Answer, Problem> {
    let normalized = read(&request.object()?).map_err(Problem::invalid)?;
    let settings = deps.settings.read(invocation).await?;
    let schema = settings.schema();
    let policy =
        resolve(&settings.policies, schema, normalized.keys.policy).map_err(|error| Problem::invalid(vec![error]))?;
    // If the request has an idempotency key, the entry's row records the request.
    let identity = request.identity(invocation)?;
    let known_by = identity.given.then(|| LineRef::of_request(&identity.key, &identity.body));
    let asked = Insertion { schema, normalized, line: known_by };
    match deps.entries.insert(invocation, &asked, policy).await? {
        Inserted::Done(outcome) => {
            log_insert(invocation, &outcome);
            Answer::json(200, &InsertAnswer::from(*outcome))
        }
        Inserted::Again(outcome) => Ok(Answer::json(200, &InsertAnswer::from(*outcome))?.replayed()),
        Inserted::Refused(errors) => Err(Problem::invalid(errors)),
        Inserted::Held => Err(Problem::internal()),
    }
}

/// Returns an entry of the requested schema, or of the schema in use if the request names none.
pub async fn get(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let id = request.path.get("id").and_then(|text| EntryId::parse(text));
    let wanted = schema(request)?;
    let Some(id) = id else {
        let detail = "must be an entry_id, as an insert returns it";
        return Err(Problem::invalid(vec![FieldError::new("id", FieldProblem::Malformed, detail)]));
    };
    let schema = match wanted {
        Some(schema) => schema,
        None => deps.settings.read(invocation).await?.schema(),
    };
    match deps.entries.get(invocation, schema, &id).await? {
        Some(row) => Answer::json(200, &EntryView::from(row)),
        None => Err(Problem::not_found(format!("there is no such entry in {schema}"))),
    }
}

/// Reads the query parameter `?schema=pkm|pkm_test`. Returns `None` if it is absent.
pub fn schema(request: &Request) -> Result<Option<Schema>, Problem> {
    let Some(text) = request.query.get("schema") else { return Ok(None) };
    Schema::parse(text).map(Some).ok_or_else(|| {
        let detail = "must be pkm or pkm_test";
        Problem::invalid(vec![FieldError::new("schema", FieldProblem::NotAllowed, detail)])
    })
}

fn log_insert(invocation: &Invocation, outcome: &InsertOutcome) {
    let event = match outcome.action {
        Action::Inserted => Event::EntryInserted,
        Action::Skipped => Event::EntrySkipped,
        Action::Updated => Event::EntryUpdated,
    };
    let policy = outcome.row.keys.policy.as_str();
    tracing::info!(
        event = event.as_str(),
        entry_id = outcome.row.entry_id.as_str(),
        schema = outcome.row.schema.as_str(),
        policy,
        matched_by = outcome.matched_by.map(|matched| matched.as_str()),
        reason = outcome.reason.map(|reason| reason.as_str()),
        request_id = invocation.request_id,
    );
    metrics::counter!(Metric::Entries.as_str(), "Action" => outcome.action.as_str(), "Policy" => policy).increment(1);
}
