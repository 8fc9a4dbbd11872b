//! `POST /intents/{fingerprint}/release`: releases an intent, so that it may be sent after all.

use umavez_domain::codes::{Event, ProblemCode};
use umavez_domain::intents::{IntentRow, ReleaseAnswer, Released, release_request};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::intents::{Freed, Release};
use umavez_platform::invocation::Invocation;

use super::read;
use crate::Deps;

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let body = request.object()?;
    let identity = request.identity(invocation)?;
    let mut errors = Vec::new();
    let fingerprint = read::fingerprint(request, &mut errors);
    let asked = release_request(&body).map_err(|more| errors.extend(more)).ok();
    let (Some(fingerprint), Some((client, holder))) = (fingerprint, asked) else {
        return Err(Problem::invalid(errors));
    };
    let release =
        Release { client, fingerprint, holder: holder.as_deref(), key: &identity.key, body_hash: &identity.body };
    match deps.messages.intents.release(invocation, &release).await? {
        Freed::Now(row) => {
            tell_released(invocation, &row);
            let last = row.last_release.as_ref().ok_or_else(Problem::internal)?;
            Answer::json(200, &ReleaseAnswer::of(&row, last, false))
        }
        Freed::Judged(Released::Replayed(answer)) => Ok(Answer::json(200, &answer)?.replayed()),
        Freed::Judged(Released::Already(answer)) => Answer::json(200, &answer),
        Freed::Judged(Released::KeyReused) => Err(Problem::key_reused("a release with another body")),
        Freed::Judged(Released::HeldByAnother | Released::Held(_)) => {
            Err(Problem::new(409, ProblemCode::HeldByAnother, "the intent is held by another than the named holder"))
        }
        Freed::Judged(Released::NotFound) => {
            Err(Problem::not_found("this client has no such intent, or it has expired"))
        }
    }
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
