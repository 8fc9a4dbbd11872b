//! Handles one wake-up of a conversation: decides on the next step and performs it.

use std::ops::ControlFlow::{self, Break, Continue};

use umavez_domain::conversations::batch::{self, Portion};
use umavez_domain::conversations::{ConversationRow, Phase, WorkerStep};
use umavez_domain::queue::WakeUp;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::batch::Worked;
use umavez_platform::conversations::ReplyProgress;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::StoreError;

use crate::{Deps, ask};

/// The result of one step. `Continue` means that the conversation changed since it was read: decide
/// again on the current row.
type Stepped = ControlFlow<Worked>;

pub async fn run(deps: &Deps, invocation: &Invocation, wake: &WakeUp) -> Result<Worked, StoreError> {
    let conversations = &deps.conversations;
    conversations
        .store
        .retry(invocation, || async {
            let Some(row) = conversations.get(invocation, &wake.conversation).await? else {
                return Ok(Break(Worked::Done("no_such_conversation")));
            };
            let settings = conversations.settings(invocation, &row).await?;
            step(deps, invocation, wake, &row, &settings).await
        })
        .await
}

async fn step(
    deps: &Deps,
    invocation: &Invocation,
    wake: &WakeUp,
    row: &ConversationRow,
    settings: &InstanceRow,
) -> Result<Stepped, StoreError> {
    let (timing, conversations) = (settings.timing(), &deps.conversations);
    let done = |code: &'static str| Ok(Break(Worked::Done(code)));
    match row.course.next(invocation.current(), &timing) {
        WorkerStep::Rest => done("nothing_to_do"),
        // A later message has arrived, and it has its own wake-up.
        WorkerStep::Wait(_) if row.course.phase == Phase::Idle && wake.received < row.course.received => done("early"),
        WorkerStep::Wait(until) => Ok(Break(Worked::Later { why: "early", until })),
        WorkerStep::Claim | WorkerStep::Ask(_) if !ask::is_time_left(invocation, settings) => {
            Ok(Break(Worked::Later { why: "out_of_time", until: invocation.current() }))
        }
        WorkerStep::Claim => claim(deps, invocation, row, settings).await,
        WorkerStep::Ask(course) => {
            let moved = conversations.move_on(invocation, row, course, &timing).await?;
            let Some(claimed) = moved else { return Ok(Continue(())) };
            log_batch(invocation, &claimed, "claimed");
            let messages = conversations.messages_of(invocation, &claimed).await?;
            if !messages.is_empty() {
                return ask::run(deps, invocation, claimed, messages, settings).await.map(Break);
            }
            // All messages of the batch are no longer stored: there is nothing to ask about.
            log_expired(invocation, &claimed, claimed.course.claimed - claimed.course.answered);
            let course = claimed.course.replied(0, invocation.current());
            let moved = conversations.move_on(invocation, &claimed, course, &timing).await?;
            Ok(moved.map_or(Continue(()), |_| Break(Worked::Done("expired"))))
        }
        WorkerStep::HandOver(course) => {
            let moved = conversations.hand_over(invocation, row, course, &timing).await?;
            Ok(moved_on(invocation, moved.as_ref(), "handed_over"))
        }
        WorkerStep::CheckReply => match conversations.check_reply(invocation, row, &timing).await? {
            ReplyProgress::InFlight => done("on_its_way"),
            ReplyProgress::Moved(moved) => Ok(moved_on(invocation, moved.as_deref(), "settled")),
        },
        WorkerStep::GiveUp(course) => {
            let moved = conversations.move_on(invocation, row, course, &timing).await?;
            let Some(row) = moved else { return Ok(Continue(())) };
            log_needs_human(invocation, &row, "attempts");
            done("needs_human")
        }
    }
}

/// Claims as many of the pending messages as fit into one batch, and asks the responder about them.
/// The write that finishes the batch schedules a wake-up for the rest.
async fn claim(
    deps: &Deps,
    invocation: &Invocation,
    row: &ConversationRow,
    settings: &InstanceRow,
) -> Result<Stepped, StoreError> {
    let (timing, conversations) = (settings.timing(), &deps.conversations);
    let mut messages = conversations.pending_messages(invocation, row).await?;
    let Some(portion) = batch::portion(&row.course, &messages, invocation.current()) else {
        // Fail the record, so that the queue redelivers the wake-up.
        return Err(StoreError::Unavailable);
    };
    if let Portion::Expired { last } = portion {
        log_expired(invocation, row, last - row.course.claimed);
    }
    let course = row.course.claim(portion, invocation.current(), &timing);
    let Some(claimed) = conversations.move_on(invocation, row, course, &timing).await? else {
        return Ok(Continue(()));
    };
    if let Portion::Expired { .. } = portion {
        return Ok(Break(Worked::Done("expired")));
    }
    log_batch(invocation, &claimed, "claimed");
    messages.retain(|message| message.number <= Some(claimed.course.claimed));
    ask::run(deps, invocation, claimed, messages, settings).await.map(Break)
}

fn moved_on(invocation: &Invocation, moved: Option<&ConversationRow>, outcome: &'static str) -> Stepped {
    let Some(row) = moved else { return Continue(()) };
    log_batch(invocation, row, outcome);
    Break(Worked::Done(outcome))
}

/// Reports a conversation that a person must look at.
pub fn log_needs_human(invocation: &Invocation, row: &ConversationRow, code: &str) {
    let (conversation_id, batch) = (row.id.as_str(), row.course.claimed);
    let event = Event::ConversationNeedsHuman.as_str();
    tracing::error!(event, conversation_id, batch, code, request_id = invocation.request_id);
    metrics::counter!(Metric::ConversationsNeedHuman.as_str()).increment(1);
}

/// Reports messages that the retention period removed before they were answered. It runs before the
/// write that skips them, so that a crash in between repeats the log line and does not lose it.
fn log_expired(invocation: &Invocation, row: &ConversationRow, messages: u64) {
    let (event, conversation_id) = (Event::ConversationMessagesExpired.as_str(), row.id.as_str());
    tracing::error!(event, conversation_id, messages, request_id = invocation.request_id);
    metrics::counter!(Metric::ConversationMessagesExpired.as_str()).increment(messages);
}

pub fn log_batch(invocation: &Invocation, row: &ConversationRow, outcome: &str) {
    tracing::info!(
        event = Event::ConversationBatchAdvanced.as_str(),
        conversation_id = row.id.as_str(),
        channel = row.channel.as_str(),
        batch = row.course.claimed,
        attempt = row.course.attempts,
        outcome,
        request_id = invocation.request_id,
    );
    let (channel, outcome) = (row.channel.as_str(), outcome.to_owned());
    metrics::counter!(Metric::ConversationBatches.as_str(), "Channel" => channel, "Outcome" => outcome).increment(1);
}
