//! Finds what was lost sight of: messages that were handed to their queue and not taken on, attempts whose sender was not
//! heard of again, backfills, imports and shards of mailings that nobody works on, conversations that nobody answers, offers
//! that nobody sent, and charges that are over.
//! Each is conditional on the row as it was read, so that it runs as often as it likes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use lambda_runtime::Error;
use serde_json::{Value, json};
use umavez_domain::channels::Channel;
use umavez_domain::codes::Event;
use umavez_domain::delivery::{UnknownPolicy, read_policies};
use umavez_domain::keys::{WAKE_SHARDS, Wake, message_id_of};
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::conversations::Conversations;
use umavez_platform::downsells::{self, Downsells, tell};
use umavez_platform::ingest::Backfills;
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{Mailings, Recovered};
use umavez_platform::messages::{Messages, Woken};
use umavez_platform::store::{Found, Store, StoreError};

const PAGE: usize = 100;
const AT_ONCE: usize = 8;
const LOW_TIME: Duration = Duration::from_secs(5);

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
        let policies = config::text("UNKNOWN_POLICIES").unwrap_or_else(|| "{}".to_owned());
        let policies = read_policies(&policies)
            .map_err(|error| ConfigError::malformed("UNKNOWN_POLICIES", format!("usable: {error}")))?;
        let store = Store::new(Aws::from_env()?.dynamodb());
        let backfills = Backfills { store: store.clone(), table: config::required("ENTRIES_TABLE")? };
        Ok(Self {
            messages: Messages::from_env(&store)?,
            mailings: Mailings::from_env(&store)?,
            conversations: Conversations::from_env(&store)?,
            downsells: Downsells::from_env(&store)?,
            backfills,
            policies,
        })
    }
}

#[derive(Default)]
struct Counts {
    emitted: u64,
    unknown: u64,
    failed: u64,
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, _tick: Value) -> Result<Value, Error> {
    let mut counts = Counts::default();
    // The few first: a flood of the many does not keep them from being found.
    let backfills = recover_backfills(&deps, &invocation, &mut counts).await;
    let mailings = recover_mailings(&deps, &invocation, &mut counts).await;
    let mut unread = backfills.is_err() || mailings.is_err();
    for shard in 0..WAKE_SHARDS {
        match recover(&deps, &invocation, shard).await {
            Ok(found) => {
                counts.emitted += found.emitted;
                counts.unknown += found.unknown;
                counts.failed += found.failed;
            }
            Err(_) => unread = true,
        }
    }
    let conversations = recover_conversations(&deps, &invocation, &mut counts).await;
    let offers = recover_downsells(&deps, &invocation, &mut counts).await;
    unread |= conversations.is_err() || offers.is_err();
    let (backfills, mailings) = (backfills.unwrap_or(0), mailings.unwrap_or(0));
    let (conversations, offers) = (conversations.unwrap_or(0), offers.unwrap_or(0));
    let Counts { emitted, unknown, failed } = counts;
    tracing::info!(
        event = "RECOVERED",
        emitted,
        unknown,
        backfills,
        mailings,
        conversations,
        offers,
        failed,
        request_id = invocation.request_id
    );
    metrics::counter!("OutboundRecovered").increment(emitted);
    metrics::counter!("OutboundLost").increment(unknown);
    // The others were done; the alarm sees that not all were.
    if unread {
        return Err("a shard could not be read".into());
    }
    Ok(json!({
        "emitted": emitted,
        "unknown": unknown,
        "backfills": backfills,
        "mailings": mailings,
        "conversations": conversations,
        "offers": offers,
        "failed": failed,
    }))
}

/// There are few of them.
async fn recover_backfills(deps: &Deps, invocation: &Invocation, counts: &mut Counts) -> Result<u64, StoreError> {
    let mut woken = 0;
    for shard in 0..WAKE_SHARDS {
        for found in deps.backfills.overdue(invocation, shard, PAGE).await? {
            match deps.backfills.wake(invocation, &found).await {
                Ok(mine) => woken += u64::from(mine),
                Err(_) => counts.failed += 1,
            }
        }
    }
    Ok(woken)
}

/// Mailings and their shards.
async fn recover_mailings(deps: &Deps, invocation: &Invocation, counts: &mut Counts) -> Result<u64, StoreError> {
    let mut recovered = 0;
    for partition in 0..WAKE_SHARDS {
        let mut after = None;
        while invocation.time_left() > LOW_TIME {
            let overdue = deps.mailings.overdue(invocation, partition, after, PAGE).await?;
            let last_page = overdue.len() < PAGE;
            after = overdue.last().map(|found| found.place.clone());
            for found in &overdue {
                match deps.mailings.recover(invocation, found).await {
                    Ok(Recovered::Left) => {}
                    Ok(what) => {
                        recovered += 1;
                        tell_mailing(invocation, found, what);
                    }
                    Err(_) => counts.failed += 1,
                }
            }
            if last_page {
                break;
            }
        }
    }
    Ok(recovered)
}

/// Conversations that wait for an answer, and those whose hold is over.
async fn recover_conversations(deps: &Deps, invocation: &Invocation, counts: &mut Counts) -> Result<u64, StoreError> {
    // Told first: a flood of those that wait does not keep it from being known.
    let oldest = deps.conversations.oldest_unanswered(invocation).await?;
    let waited_ms = oldest.map_or(0, |since| (invocation.now.millis() - since.millis()).max(0));
    metrics::gauge!("oldest_unanswered_seconds").set(waited_ms as f64 / 1_000.0);
    let mut recovered = 0;
    for (wake, shard) in [Wake::Check, Wake::Held].into_iter().flat_map(|wake| (0..WAKE_SHARDS).map(move |s| (wake, s)))
    {
        let mut after = None;
        while invocation.time_left() > LOW_TIME {
            let found = deps.conversations.unanswered(invocation, wake, shard, after, PAGE).await?;
            let last_page = found.len() < PAGE;
            after = found.last().map(|found| found.place.clone());
            let mut seen = futures::stream::iter(&found)
                .map(|found| deps.conversations.recover(invocation, found))
                .buffer_unordered(AT_ONCE);
            while let Some(seen) = seen.next().await {
                match seen {
                    Ok(None) => {}
                    Ok(Some(row)) => {
                        recovered += 1;
                        let (event, conversation_id) = (Event::ConversationRecovered.as_str(), row.id.as_str());
                        let phase = row.course.phase.as_str();
                        tracing::warn!(event, conversation_id, phase, request_id = invocation.request_id);
                    }
                    Err(_) => counts.failed += 1,
                }
            }
            if last_page {
                break;
            }
        }
    }
    metrics::counter!("ConversationsRecovered").increment(recovered);
    Ok(recovered)
}

/// Offers that nobody took on or that nobody heard of again, and charges whose end has come.
async fn recover_downsells(deps: &Deps, invocation: &Invocation, counts: &mut Counts) -> Result<u64, StoreError> {
    let policy = deps.policies.get(&Channel::Telegram).copied().unwrap_or_default();
    let mut recovered = 0;
    for shard in 0..WAKE_SHARDS {
        let mut after = None;
        while invocation.time_left() > LOW_TIME {
            let now = invocation.now;
            let found = deps.downsells.waiting(invocation, Wake::Check, shard, now, after, PAGE).await?;
            let last_page = found.len() < PAGE;
            after = found.last().map(|found| found.place.clone());
            let mut seen = futures::stream::iter(&found)
                .map(|found| deps.downsells.recover(invocation, found, policy, fastrand::u32(0..=1000)))
                .buffer_unordered(AT_ONCE);
            while let Some(seen) = seen.next().await {
                match seen {
                    Ok(downsells::Woken::Left | downsells::Woken::SeenTo) => {}
                    Ok(downsells::Woken::Emitted(offer)) => {
                        recovered += 1;
                        tell::line(invocation, &offer, Event::DownsellRecovered);
                    }
                    Ok(downsells::Woken::Unknown(offer)) => {
                        recovered += 1;
                        tell::changed(invocation, &offer);
                    }
                    Err(error) => {
                        tracing::error!(event = "NOT_RECOVERED", cause = %error, request_id = invocation.request_id);
                        counts.failed += 1;
                    }
                }
            }
            if last_page {
                break;
            }
        }
    }
    metrics::counter!("downsells_recovered").increment(recovered);
    Ok(recovered)
}

fn tell_mailing(invocation: &Invocation, found: &Found, what: Recovered) {
    let (event, what) = match what {
        Recovered::Shard => (Event::MailingRecovered, "shard"),
        Recovered::Import => (Event::MailingRecovered, "import"),
        Recovered::HandedOut => (Event::MailingRecovered, "handed_out"),
        Recovered::GivenUp => (Event::MailingImportFailed, "input_missing"),
        Recovered::Completed => (Event::MailingCompleted, "completed"),
        Recovered::Mismatch => (Event::MailingMismatch, "mismatch"),
        Recovered::Left => return,
    };
    if event == Event::MailingMismatch {
        metrics::counter!("MailingMismatch").increment(1);
    }
    let row = format!("{} {}", found.key.pk, found.key.sk);
    tracing::warn!(event = event.as_str(), what, row, request_id = invocation.request_id);
}

async fn recover(deps: &Deps, invocation: &Invocation, shard: u32) -> Result<Counts, StoreError> {
    let mut counts = Counts::default();
    let mut after = None;
    while invocation.time_left() > LOW_TIME {
        let overdue = deps.messages.waiting(invocation, Wake::Check, shard, Some(invocation.now), after, PAGE).await?;
        let last_page = overdue.len() < PAGE;
        after = overdue.last().map(|found| found.place.clone());
        let mut woken =
            futures::stream::iter(&overdue).map(|found| wake(deps, invocation, found)).buffer_unordered(AT_ONCE);
        // One row that cannot be read or written does not keep the others from being found.
        while let Some(woken) = woken.next().await {
            match woken {
                Ok(Woken::Emitted) => counts.emitted += 1,
                Ok(Woken::Unknown) => counts.unknown += 1,
                Ok(Woken::Left) => {}
                Err(_) => counts.failed += 1,
            }
        }
        if last_page {
            break;
        }
    }
    Ok(counts)
}

async fn wake(deps: &Deps, invocation: &Invocation, found: &Found) -> Result<Woken, StoreError> {
    let Some(id) = message_id_of(&found.key) else { return Ok(Woken::Left) };
    let Some(row) = deps.messages.get(invocation, &id).await? else { return Ok(Woken::Left) };
    // The index may lag behind: only what still waits for this very moment was lost sight of.
    if row.wake_at.as_deref() != Some(&found.place) {
        return Ok(Woken::Left);
    }
    let policy = deps.policies.get(&row.channel).copied().unwrap_or_default();
    let woken = deps.messages.wake(invocation, &row, policy, fastrand::u32(0..=1000)).await?;
    let event = match woken {
        Woken::Emitted => Event::OutboundRecovered,
        Woken::Unknown => Event::OutboundUnknown,
        Woken::Left => return Ok(woken),
    };
    let (message_id, channel, attempt) = (row.id.as_str(), row.channel.as_str(), row.attempt);
    tracing::warn!(event = event.as_str(), message_id, channel, attempt, request_id = invocation.request_id);
    Ok(woken)
}
