//! `POST /intents/{fingerprint}/release`: releases an intent, so that it may be sent after all.

use umavez_domain::codes::ProblemCode;
use umavez_domain::intents::{LastRelease, ReleaseAnswer, Released, release_request};
use umavez_domain::keys;
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use super::{log_intent, read};
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
    let (key, last_release_at) = (keys::intent(client, fingerprint), invocation.now);
    let release = LastRelease { last_release: identity.key, last_release_body: identity.body, last_release_at };
    match deps.intents.release(invocation, key, holder.as_deref(), &release).await? {
        Released::Now(row) => {
            log_intent(invocation, &row, Event::IntentReleased, None);
            metrics::counter!(Metric::IntentsReleased.as_str(), "IntentType" => row.intent_type.clone()).increment(1);
            Answer::json(200, &ReleaseAnswer::of(&row, &release, false))
        }
        Released::Replayed(answer) => Ok(Answer::json(200, &answer)?.replayed()),
        Released::Already(answer) => Answer::json(200, &answer),
        Released::KeyReused => Err(Problem::key_reused("a release with another body")),
        Released::HeldByAnother => Err(Problem::new(409, ProblemCode::HeldByAnother, "another holder has the intent")),
        Released::NotFound => Err(Problem::not_found("this client has no such intent, or it has expired")),
    }
}
