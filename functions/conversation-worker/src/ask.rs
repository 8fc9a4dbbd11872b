//! The responder is asked about a claimed batch, and what it says is written down, as long as it is still this worker's turn.

use std::time::Duration;

use umavez_domain::conversations::batch::in_order;
use umavez_domain::conversations::reply::{Heard, ResponderProblem, hear};
use umavez_domain::conversations::responder::question;
use umavez_domain::conversations::{Answer, ConversationRow, Course, Phase, StoredMessage};
use umavez_domain::delivery::CallFailure;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::time::Timestamp;
use umavez_platform::batch::Worked;
use umavez_platform::conversations::{Answered, Moved};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::StoreError;

use crate::Deps;
use crate::work::{log_batch, needs_human};

/// What the writes around a call may take.
const AROUND_CALL: Duration = Duration::from_secs(8);
/// Races with messages are looked at again this often, and so is a store that did not answer: what was heard would have to
/// be asked for again.
const ROUNDS: usize = 8;

pub fn is_time_left(invocation: &Invocation, settings: &InstanceRow) -> bool {
    invocation.time_left() > call_limit(settings) + AROUND_CALL
}

fn call_limit(settings: &InstanceRow) -> Duration {
    Duration::from_secs(u64::from(settings.responder_timeout_seconds))
}

/// `row` has the batch as this worker claimed it, and `messages` are all that it has.
pub async fn run(
    deps: &Deps,
    invocation: &Invocation,
    row: ConversationRow,
    messages: Vec<StoredMessage>,
    settings: &InstanceRow,
) -> Result<Worked, StoreError> {
    let (heard, code) = match ask(deps, invocation, &row, messages, settings).await? {
        Heard::Problem(problem) => (Heard::Problem(problem), problem.as_str()),
        Heard::Later => (Heard::Later, "later"),
        heard => (heard, "replied"),
    };
    let turn = (row.course.claimed, row.course.epoch);
    let mut row = Box::new(row);
    for round in 0..ROUNDS {
        // Another has taken over, or a person has answered: what was heard is not needed any more.
        if !row.course.is_turn(turn.0, turn.1) {
            return Ok(Worked::Done("lost_its_turn"));
        }
        let written = match write(deps, invocation, &row, settings, &heard).await {
            Err(error) if error.is_passing() && round + 1 < ROUNDS && !invocation.time_left().is_zero() => continue,
            written => written?,
        };
        row = match written {
            Written::Now(row) => return Ok(answered(invocation, &row, code)),
            Written::Before => return Ok(Worked::Done("already_answered")),
            Written::Lost(met) => met,
        };
    }
    Err(StoreError::Conflict)
}

async fn ask(
    deps: &Deps,
    invocation: &Invocation,
    row: &ConversationRow,
    messages: Vec<StoredMessage>,
    settings: &InstanceRow,
) -> Result<Heard, StoreError> {
    let Some(url) = settings.responder_url.as_ref().or(deps.responder_url.as_ref()) else {
        return Ok(Heard::Problem(ResponderProblem::NotConfigured));
    };
    let Some(batch) = row.batch() else { return Ok(Heard::Problem(ResponderProblem::NotConfigured)) };
    // Unsigned, a request would be refused, or worse, believed.
    let secrets = deps.webhooks.get(invocation, |_| true).await.map_err(|error| {
        tracing::error!(event = "NO_SECRETS", cause = %error, request_id = invocation.request_id);
        StoreError::Unavailable
    })?;
    let keys = secrets.responder_keys();
    if keys.is_empty() {
        return Ok(Heard::Problem(ResponderProblem::NotConfigured));
    }
    let messages = in_order(row.channel, messages);
    let call = question(row, &batch, &messages, settings, &keys, invocation.current());
    let limit = call_limit(settings).min(invocation.time_left());
    Ok(match deps.outgoing.call(url, &call, limit).await {
        Ok(response) => hear(response.status, &response.body),
        Err(failure) => Heard::Problem(match failure {
            CallFailure::NotConnected => ResponderProblem::NotConnected,
            CallFailure::TimedOut => ResponderProblem::TimedOut,
            CallFailure::Broken => ResponderProblem::Broken,
            CallFailure::Unreadable => ResponderProblem::TooLong,
        }),
    })
}

enum Written {
    Now(Box<ConversationRow>),
    Lost(Box<ConversationRow>),
    /// There is a reply to this batch.
    Before,
}

async fn write(
    deps: &Deps,
    invocation: &Invocation,
    row: &ConversationRow,
    settings: &InstanceRow,
    heard: &Heard,
) -> Result<Written, StoreError> {
    let (timing, now) = (settings.timing(), invocation.current());
    let course: Course = match heard {
        Heard::Reply(said) => {
            let by = Answer::Responder;
            return Ok(match deps.conversations.answer(invocation, row, said.as_deref(), by, &timing).await? {
                Answered::Now(row) => Written::Now(row),
                Answered::Lost(row) => Written::Lost(row),
                Answered::Before(_) => Written::Before,
            });
        }
        Heard::Later => row.course.awaiting(now, &timing),
        Heard::Problem(_) => row.course.failed(now, &timing),
    };
    Ok(match deps.conversations.move_on(invocation, row, course, &timing).await? {
        Moved::Done(row) => Written::Now(row),
        Moved::Lost(row) => Written::Lost(row),
    })
}

/// Logs the end of an attempt and says what becomes of its wake-up.
fn answered(invocation: &Invocation, row: &ConversationRow, code: &'static str) -> Worked {
    log_batch(invocation, row, code);
    match (row.course.phase, row.course.not_before) {
        (Phase::Stuck, _) => {
            needs_human(invocation, row, code);
            Worked::Done("needs_human")
        }
        (Phase::Asking, Some(until)) => Worked::Later { why: code, until: Timestamp::from_millis(until) },
        _ => Worked::Done(code),
    }
}
