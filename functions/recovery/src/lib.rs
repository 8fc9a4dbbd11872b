//! Recovers work that is overdue: messages and offers that no sender claimed, attempts whose sender
//! crashed, backfills, imports and shards that no worker holds, unanswered conversations, and
//! expired charges. Every step is conditional on the row as it was read, so recovery may run any
//! number of times.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use lambda_runtime::Error;
use serde_json::{Value, json};
use umavez_domain::channels::Channel;
use umavez_domain::conversations::ConversationRow;
use umavez_domain::delivery::{Recovery, State, UnknownPolicy, read_policies};
use umavez_domain::keys::Wake;
use umavez_domain::messages::MessageRow;
use umavez_domain::telemetry::{Event, Metric};
use umavez_domain::time::Timestamp;
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::conversations::Conversations;
use umavez_platform::downsells::{Downsells, log};
use umavez_platform::due::{self, Shares, Swept};
use umavez_platform::ingest::Backfills;
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{MailingRecovery, Mailings};
use umavez_platform::messages::Messages;
use umavez_platform::store::{Found, Store, StoreError};

/// The kinds of rows that recovery handles, one after the other.
const KINDS: u32 = 9;

#[derive(Debug)]
pub struct Deps {
    pub messages: Messages,
    pub backfills: Backfills,
    pub mailings: Mailings,
    pub conversations: Conversations,
    pub downsells: Downsells,
    pub policies: BTreeMap<Channel, UnknownPolicy>,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let store = Store::new(Aws::from_env()?.dynamodb());
        let backfills = Backfills { store: store.clone(), table: config::required("ENTRIES_TABLE")? };
        Ok(Self {
            messages: Messages::from_env(&store)?,
            mailings: Mailings::from_env(&store)?,
            conversations: Conversations::from_env(&store)?,
            downsells: Downsells::from_env(&store)?,
            backfills,
            policies: config::options("UNKNOWN_POLICIES", read_policies)?,
        })
    }
}

pub async fn run(deps: &Deps, invocation: &Invocation, _tick: Value) -> Result<Value, Error> {
    let run = Run { deps, invocation, emitted: AtomicU64::new(0), lost: AtomicU64::new(0) };
    let store = &deps.messages.store;
    let wake = Wake::Check;
    // Each kind has a share of the time, so that a flood of one does not keep the others from being
    // found.
    let mut shares = Shares::among(KINDS, invocation);
    let (table, leave) = (&deps.backfills.table, shares.leave());
    let backfills = due::recover(store, invocation, table, wake, leave, |found| run.backfill(found)).await;
    let (table, leave) = (&deps.mailings.table, shares.leave());
    let mailings = due::recover(store, invocation, table, wake, leave, |found| run.mailing(found)).await;
    let (table, leave) = (&deps.messages.table, shares.leave());
    let messages = due::recover(store, invocation, table, wake, leave, |found| run.message(found)).await;
    // Measure this before the sweep, so that a flood of waiting conversations does not prevent the
    // metric.
    let unanswered = run.oldest_unanswered().await;
    let (table, leave) = (&deps.conversations.table, shares.leave());
    let conversations = due::recover(store, invocation, table, wake, leave, |found| run.conversation(found)).await;
    let leave = shares.leave();
    let held = due::recover(store, invocation, table, Wake::Held, leave, |found| run.conversation(found)).await;
    let (table, leave) = (&deps.downsells.table, shares.leave());
    let offers = due::recover(store, invocation, table, wake, leave, |found| run.offer(found)).await;
    let kept = run.keep_messages(&mut shares).await;
    let mut all = vec![&backfills, &mailings, &messages, &conversations, &held, &offers];
    all.extend(&kept);
    let failed: u64 = all.iter().map(|swept| swept.failed).sum();
    let (emitted, unknown) = (run.emitted.load(Ordering::Relaxed), run.lost.load(Ordering::Relaxed));
    let conversations = conversations.done + held.done;
    tracing::info!(
        event = Event::RecoveryRan.as_str(),
        emitted,
        unknown,
        backfills = backfills.done,
        mailings = mailings.done,
        conversations,
        offers = offers.done,
        failed,
        request_id = invocation.request_id
    );
    metrics::counter!(Metric::OutboundRecovered.as_str()).increment(emitted);
    metrics::counter!(Metric::OutboundUnknown.as_str()).increment(unknown);
    metrics::counter!(Metric::ConversationsRecovered.as_str()).increment(conversations);
    metrics::counter!(Metric::DownsellsRecovered.as_str()).increment(offers.done);
    // All other rows were handled. The error shows the alarm that some were not.
    if all.iter().any(|swept: &&Swept| swept.unread > 0) || unanswered.is_err() {
        return Err("a shard could not be read".into());
    }
    Ok(json!({
        "emitted": emitted,
        "unknown": unknown,
        "backfills": backfills.done,
        "mailings": mailings.done,
        "conversations": conversations,
        "offers": offers.done,
        "failed": failed,
    }))
}

/// One run of recovery. Each method recovers one row and returns whether there was anything to
/// recover.
struct Run<'a> {
    deps: &'a Deps,
    invocation: &'a Invocation,
    /// Messages that were enqueued again (`emitted`), and messages whose attempt was given up as
    /// UNKNOWN (`lost`).
    emitted: AtomicU64,
    lost: AtomicU64,
}

impl Run<'_> {
    async fn backfill(&self, found: Found) -> Result<bool, StoreError> {
        self.deps.backfills.wake(self.invocation, &found).await
    }

    async fn mailing(&self, found: Found) -> Result<bool, StoreError> {
        let recovered = self.deps.mailings.recover(self.invocation, &found).await?;
        log_mailing(self.invocation, &found, recovered);
        Ok(recovered != MailingRecovery::Left)
    }

    async fn message(&self, found: Found) -> Result<bool, StoreError> {
        let jitter = fastrand::u32(0..=1000);
        let recovery = self.deps.messages.recover(self.invocation, &found, &self.deps.policies, jitter).await?;
        match &recovery {
            Recovery::Emitted(row) => {
                self.emitted.fetch_add(1, Ordering::Relaxed);
                log_message(self.invocation, row, Event::OutboundRecovered);
            }
            Recovery::GivenUp(row) if row.delivery.state == State::Unknown => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                log_message(self.invocation, row, Event::OutboundUnknown);
            }
            Recovery::GivenUp(row) => log_message(self.invocation, row, Event::OutboundReconciled),
            Recovery::Nothing => {}
        }
        Ok(recovery != Recovery::Nothing)
    }

    /// Recovers a conversation that waits for an answer, or whose hold has expired.
    async fn conversation(&self, found: Found) -> Result<bool, StoreError> {
        let recovered = self.deps.conversations.recover(self.invocation, &found).await?;
        recovered.iter().for_each(|row| log_conversation(self.invocation, row));
        Ok(recovered.is_some())
    }

    /// Keeps the unanswered messages of conversations from expiring. It looks at each
    /// conversation once an hour.
    async fn keep_messages(&self, shares: &mut Shares<'_>) -> Vec<Swept> {
        let (store, conversations) = (&self.deps.messages.store, &self.deps.conversations);
        let now = self.invocation.now;
        let keep = async |found: Found| match due::is_of_this_minute(&found, now) {
            true => self.keep_messages_of(&found).await,
            false => Ok(false),
        };
        let mut kept = Vec::new();
        // Held conversations are in the index by the end of their hold.
        let since = Some(conversations.unanswered_before(now));
        for waiting in [(Wake::Held, None), (Wake::Human, since), (Wake::Check, since)] {
            let leave = shares.leave();
            kept.push(due::each(store, self.invocation, &conversations.table, waiting, leave, &keep).await);
        }
        kept
    }

    async fn keep_messages_of(&self, found: &Found) -> Result<bool, StoreError> {
        let Some(kept) = self.deps.conversations.keep_messages(self.invocation, found).await? else { return Ok(false) };
        let (event, conversation_id) = (Event::ConversationMessagesKept.as_str(), kept.row.id.as_str());
        let (until, is_last) = (Timestamp::from_seconds(kept.until), kept.is_last);
        tracing::warn!(event, conversation_id, %until, is_last, request_id = self.invocation.request_id);
        Ok(true)
    }

    /// Emits a metric: how long the oldest unanswered message of any conversation has waited.
    async fn oldest_unanswered(&self) -> Result<(), StoreError> {
        let oldest = self.deps.conversations.oldest_unanswered(self.invocation).await.inspect_err(|error| {
            let request_id = &self.invocation.request_id;
            tracing::error!(event = Event::IndexNotRead.as_str(), cause = %error, request_id);
        })?;
        let waited_ms = oldest.map_or(0, |since| (self.invocation.now.millis() - since.millis()).max(0));
        metrics::gauge!(Metric::OldestUnansweredSeconds.as_str()).set(waited_ms as f64 / 1_000.0);
        Ok(())
    }

    /// Recovers an offer that no sender claimed or whose sender crashed, or handles expired
    /// charges.
    async fn offer(&self, found: Found) -> Result<bool, StoreError> {
        let policy = self.deps.policies.get(&Channel::Telegram).copied().unwrap_or_default();
        let jitter = fastrand::u32(0..=1000);
        let recovery = self.deps.downsells.recover(self.invocation, &found, policy, jitter).await?;
        match &recovery {
            Recovery::Emitted(offer) => log::offer_event(self.invocation, offer, Event::DownsellRecovered),
            Recovery::GivenUp(offer) => log::changed(self.invocation, offer),
            Recovery::Nothing => return Ok(false),
        }
        Ok(true)
    }
}

fn log_message(invocation: &Invocation, row: &MessageRow, event: Event) {
    let (message_id, channel, attempt) = (row.id.as_str(), row.channel.as_str(), row.delivery.attempt);
    tracing::warn!(event = event.as_str(), message_id, channel, attempt, request_id = invocation.request_id);
}

fn log_conversation(invocation: &Invocation, row: &ConversationRow) {
    let (event, conversation_id) = (Event::ConversationRecovered.as_str(), row.id.as_str());
    let phase = row.course.phase.as_str();
    tracing::warn!(event, conversation_id, phase, request_id = invocation.request_id);
}

fn log_mailing(invocation: &Invocation, found: &Found, recovered: MailingRecovery) {
    let (event, what) = match recovered {
        MailingRecovery::Shard => (Event::MailingRecovered, "shard"),
        MailingRecovery::Import => (Event::MailingRecovered, "import"),
        MailingRecovery::HandedOut => (Event::MailingRecovered, "handed_out"),
        MailingRecovery::GivenUp => (Event::MailingImportFailed, "input_missing"),
        MailingRecovery::Completed => (Event::MailingCompleted, "completed"),
        MailingRecovery::Mismatch => (Event::MailingMismatched, "mismatch"),
        MailingRecovery::Left => return,
    };
    if event == Event::MailingMismatched {
        metrics::counter!(Metric::MailingMismatches.as_str()).increment(1);
    }
    let row = format!("{} {}", found.key.pk, found.key.sk);
    tracing::warn!(event = event.as_str(), what, row, request_id = invocation.request_id);
}
