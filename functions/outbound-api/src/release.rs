//! `POST /intents/{fingerprint}/release`: gives an intent back, so that it may be sent after all.

use serde_json::json;
use umavez_domain::codes::{Event, Problem as Code};
use umavez_domain::intents::{IntentRow, IntentView, release_request};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::intents::{Freed, Release};
use umavez_platform::invocation::Invocation;

use crate::{Deps, read};

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let body = request.object()?;
    let key = request.idempotency_key()?;
    // Keys of different callers are different keys.
    let key = key.map(|key| Ok::<_, Problem>(format!("{}:{}", request.caller()?.key_id, key.as_str()))).transpose()?;
    let mut errors = Vec::new();
    let fingerprint = read::fingerprint(request, &mut errors);
    let asked = release_request(&body).map_err(|more| errors.extend(more)).ok();
    let (Some(fingerprint), Some((client, holder))) = (fingerprint, asked) else {
        return Err(Problem::invalid(errors));
    };
    let release = Release { client, fingerprint, holder: holder.as_deref(), key: key.as_deref() };
    match deps.intents.release(invocation, &release).await? {
        Freed::Now(row) => {
            tell_released(invocation, &row);
            answer(*row)
        }
        Freed::Already(row) => Ok(answer(*row)?.replayed()),
        Freed::NotFound => Err(Problem::not_found("this client has no such intent, or it has expired")),
        Freed::HeldByAnother => {
            Err(Problem::new(409, Code::HeldByAnother, "the intent is held by another than the named holder"))
        }
    }
}

fn answer(row: IntentRow) -> Result<Answer, Problem> {
    Answer::json(200, &json!({"released": true, "intent": IntentView::from(row)}))
}

fn tell_released(invocation: &Invocation, row: &IntentRow) {
    tracing::info!(
        event = Event::IntentReleased.as_str(),
        intent_type = row.intent_type,
        fingerprint = row.fingerprint,
        client_id = row.client_id,
        request_id = invocation.request_id,
    );
    metrics::counter!("IntentsReleased", "IntentType" => row.intent_type.clone()).increment(1);
}
