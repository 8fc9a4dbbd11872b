//! Asks the responder about a claimed batch, and writes its answer as long as this worker still has
//! the turn.

use std::ops::ControlFlow::{Break, Continue};
use std::time::Duration;

use umavez_domain::conversations::batch::in_order;
use umavez_domain::conversations::reply::{ResponderAnswer, ResponderProblem, read_answer};
use umavez_domain::conversations::responder::question;
use umavez_domain::conversations::{AnsweredBy, ConversationRow, Course, Phase, StoredMessage};
use umavez_domain::delivery::CallFailure;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::telemetry::Event;
use umavez_domain::time::Timestamp;
use umavez_platform::batch::Worked;
use umavez_platform::conversations::Answered;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{StoreError, persist};

use crate::Deps;
use crate::work::{log_batch, log_needs_human};

/// The time allowed for the writes before and after a call.
const AROUND_CALL: Duration = Duration::from_secs(8);
pub fn is_time_left(invocation: &Invocation, settings: &InstanceRow) -> bool {
    invocation.time_left() > call_limit(settings) + AROUND_CALL
}

fn call_limit(settings: &InstanceRow) -> Duration {
    Duration::from_secs(u64::from(settings.responder_timeout_seconds))
}

/// Asks the responder and writes its answer. `row` must contain the batch as this worker claimed
/// it, and `messages` must be all messages of the batch.
pub async fn run(
    deps: &Deps,
    invocation: &Invocation,
    row: ConversationRow,
    messages: Vec<StoredMessage>,
    settings: &InstanceRow,
) -> Result<Worked, StoreError> {
    let (heard, code) = match ask(deps, invocation, &row, messages, settings).await? {
        ResponderAnswer::Problem(problem) => (ResponderAnswer::Problem(problem), problem.as_str()),
        ResponderAnswer::Later => (ResponderAnswer::Later, "later"),
        heard => (heard, "replied"),
    };
    let (turn, heard) = (&row, &heard);
    // Retry the write while the store does not answer. Otherwise the responder would have to be
    // asked again.
    persist(invocation, || write(deps, invocation, turn, settings, (heard, code))).await
}

async fn ask(
    deps: &Deps,
    invocation: &Invocation,
    row: &ConversationRow,
    messages: Vec<StoredMessage>,
    settings: &InstanceRow,
) -> Result<ResponderAnswer, StoreError> {
    let Some(url) = settings.responder_url.as_ref().or(deps.responder_url.as_ref()) else {
        return Ok(ResponderAnswer::Problem(ResponderProblem::NotConfigured));
    };
    let Some(batch) = row.batch() else { return Ok(ResponderAnswer::Problem(ResponderProblem::NotConfigured)) };
    // Never send an unsigned request: the responder would refuse it, or worse, accept it.
    let secrets = deps.webhooks.get(invocation, |_| true).await.map_err(|error| {
        tracing::error!(event = Event::SecretNotRead.as_str(), cause = %error, request_id = invocation.request_id);
        StoreError::Unavailable
    })?;
    let keys = secrets.responder_keys();
    if keys.is_empty() {
        return Ok(ResponderAnswer::Problem(ResponderProblem::NotConfigured));
    }
    let messages = in_order(row.channel, messages);
    let call = question(row, &batch, &messages, settings, &keys, invocation.current());
    let limit = call_limit(settings).min(invocation.time_left());
    Ok(match deps.outgoing.call(url, &call, limit).await {
        Ok(response) => read_answer(response.status, &response.body),
        Err(failure) => ResponderAnswer::Problem(match failure {
            CallFailure::NotConnected => ResponderProblem::NotConnected,
            CallFailure::TimedOut => ResponderProblem::TimedOut,
            CallFailure::Broken => ResponderProblem::Broken,
            CallFailure::Unreadable => ResponderProblem::TooLong,
        }),
    })
}

/// Writes the responder's answer. It retries when the conversation changes concurrently, as long as
/// this worker has the turn. It loses the turn if another worker has taken over or a person has
/// answered; the responder's answer is then no longer needed. `turn` is the conversation as the
/// worker claimed it, and `code` names the answer in the log.
async fn write(
    deps: &Deps,
    invocation: &Invocation,
    turn: &ConversationRow,
    settings: &InstanceRow,
    (heard, code): (&ResponderAnswer, &'static str),
) -> Result<Worked, StoreError> {
    let (conversations, timing) = (&deps.conversations, settings.timing());
    let timing = &timing;
    let step = |row: Option<ConversationRow>| async move {
        let Some(row) = row.filter(|row| row.course.is_turn(turn.course.claimed, turn.course.epoch)) else {
            return Ok(Break(Worked::Done("lost_its_turn")));
        };
        let now = invocation.current();
        let course: Course = match heard {
            ResponderAnswer::Reply(said) => {
                let answered = conversations.answer(invocation, &row, said.as_deref(), AnsweredBy::Responder, timing);
                return Ok(match answered.await? {
                    Answered::Now(row) => Break(end_attempt(invocation, &row, code)),
                    Answered::Lost => Continue(conversations.get(invocation, &turn.id).await?),
                    Answered::Before(_) => Break(Worked::Done("already_answered")),
                });
            }
            ResponderAnswer::Later => row.course.awaiting(now, timing),
            ResponderAnswer::Problem(_) => row.course.failed(now, timing),
        };
        Ok(match conversations.move_on(invocation, &row, course, timing).await? {
            Some(row) => Break(end_attempt(invocation, &row, code)),
            None => Continue(conversations.get(invocation, &turn.id).await?),
        })
    };
    conversations.store.retry_from(invocation, Some(turn.clone()), step).await
}

/// Logs the end of an attempt, and returns whether its wake-up is done or comes again later.
fn end_attempt(invocation: &Invocation, row: &ConversationRow, code: &'static str) -> Worked {
    log_batch(invocation, row, code);
    match (row.course.phase, row.course.not_before) {
        (Phase::Stuck, _) => {
            log_needs_human(invocation, row, code);
            Worked::Done("needs_human")
        }
        (Phase::Asking, Some(until)) => Worked::Later { why: code, until: Timestamp::from_millis(until) },
        _ => Worked::Done(code),
    }
}
