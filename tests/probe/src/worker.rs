//! Processes a job under its lease. The outcome distinguishes a job that is done from one that
//! another worker holds.

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use lambda_runtime::Error;
use umavez_domain::queue::Unreadable;
use umavez_platform::batch::{self, Handled, RecordError};
use umavez_platform::invocation::Invocation;
use umavez_platform::lease::{self, LeaseTaken};
use umavez_platform::store::{Condition, StoreError, Write, Written};

use crate::broken::Broken;
use crate::job::{Job, Message, State, key};
use crate::{Deps, hang};

/// Longer than a worker may take, shorter than the visibility timeout.
const LEASE_MS: i64 = 30_000;

pub async fn run(deps: &Deps, invocation: &Invocation, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    Ok(batch::messages(invocation, event, 1, |message| handle(deps, invocation, message)).await)
}

async fn handle(deps: &Deps, invocation: &Invocation, message: SqsMessage) -> Handled {
    let body = message.body.clone().unwrap_or_default();
    match serde_json::from_str(&body).map_err(|_| Unreadable("a message"))? {
        Message::Job { v: 1, id } => work(deps, invocation, &id).await,
        Message::Job { .. } => Err(Unreadable("a message of a known version").into()),
        Message::Panic => panic!("a test asked for it, with a secret: canary-panic"),
        Message::Fail => Err(StoreError::Unavailable.into()),
        Message::Hang => hang().await,
        Message::Hide { seconds } => hide(deps, message.receipt_handle, message.event_source_arn, seconds).await,
    }
}

/// Changes the visibility timeout of the message and fails, so that the message is redelivered
/// after `seconds`.
async fn hide(deps: &Deps, receipt: Option<String>, arn: Option<String>, seconds: i32) -> Handled {
    let queue = arn.unwrap_or_default().rsplit(':').next().unwrap_or_default().to_owned();
    let work = &deps.relay.queues["work"];
    let url = work.rsplit_once('/').map_or(queue.clone(), |(base, _)| format!("{base}/{queue}"));
    let change = deps.relay.sqs.change_message_visibility().queue_url(url).set_receipt_handle(receipt);
    change.visibility_timeout(seconds).send().await.expect("a queue that hides it");
    Err(RecordError::Later("hidden"))
}

async fn work(deps: &Deps, invocation: &Invocation, id: &str) -> Handled {
    let job: Option<Job> = deps.store.get(invocation, &deps.table, &key(id)).await?;
    let Some(job) = job else { return Ok("no_such_job") };
    if job.state == State::Done {
        return Ok("already_done");
    }
    let owner = &invocation.request_id;
    let taken = lease::take(&deps.store, invocation, &deps.table, &key(id), owner, LEASE_MS).await?;
    let held = match taken {
        LeaseTaken::Mine(held) => held,
        LeaseTaken::Busy(_) => return Err(RecordError::Later("held_by_another")),
        LeaseTaken::NoRow => return Ok("no_such_job"),
    };
    // The lease is still held, and the job is still pending.
    let mine_and_pending = Condition::all([Condition::of(&held.fence())?, Condition::is("state", "PENDING")]);
    let done = Write::update(&deps.table, key(id))
        .set("state", "DONE")
        .append("completions", format!("{owner}#{}", held.lease_epoch));
    let done = if deps.broken == Some(Broken::UnfencedWrite) { done } else { done.when(mine_and_pending) };
    match deps.store.write(invocation, done).await? {
        Written::New | Written::Mine => Ok("done"),
        Written::Refused(_) => Ok("lost_the_lease"),
    }
}
