//! `POST /intents/{fingerprint}/release`: gives an intent back, so that it may be sent after all.

use umavez_domain::codes::{Event, Problem as Code};
use umavez_domain::idempotency::body_hash;
use umavez_domain::intents::{IntentRow, ReleaseAnswer, Released, release_request};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::intents::{Freed, Release};
use umavez_platform::invocation::Invocation;

use super::read;
use crate::Deps;

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let body = request.object()?;
    let (key, hash) = (release_key(request, invocation)?, request.body_hash());
    let mut errors = Vec::new();
    let fingerprint = read::fingerprint(request, &mut errors);
    let asked = release_request(&body).map_err(|more| errors.extend(more)).ok();
    let (Some(fingerprint), Some((client, holder))) = (fingerprint, asked) else {
        return Err(Problem::invalid(errors));
    };
    let release = Release { client, fingerprint, holder: holder.as_deref(), key: &key, body_hash: &hash };
    match deps.messages.intents.release(invocation, &release).await? {
        Freed::Now(row) => {
            tell_released(invocation, &row);
            let last = row.last_release.as_ref().ok_or_else(Problem::internal)?;
            Answer::json(200, &ReleaseAnswer::of(&row, last, false))
        }
        Freed::Judged(Released::Replayed(answer)) => Ok(Answer::json(200, &answer)?.replayed()),
        Freed::Judged(Released::Already(answer)) => Answer::json(200, &answer),
        Freed::Judged(Released::KeyReused) => {
            let detail = "this Idempotency-Key released the intent already, in a request with another body";
            Err(Problem::new(422, Code::IdempotencyKeyReused, detail))
        }
        Freed::Judged(Released::HeldByAnother | Released::Held(_)) => {
            Err(Problem::new(409, Code::HeldByAnother, "the intent is held by another than the named holder"))
        }
        Freed::Judged(Released::NotFound) => {
            Err(Problem::not_found("this client has no such intent, or it has expired"))
        }
    }
}

/// What the release is known by. Keys of different callers are different keys; without one, only this request is this
/// release.
fn release_key(request: &Request, invocation: &Invocation) -> Result<String, Problem> {
    let known_by = match request.idempotency_key()? {
        Some(key) => format!("key:{}:{}", request.caller()?.key_id, key.as_str()),
        None => format!("request:{}", invocation.request_id),
    };
    Ok(body_hash(known_by.as_bytes()))
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
