//! Sends some entries of a shard: reserves rate slots for them, then makes a claim and one call for
//! each entry and writes the outcome.
//!
//! A crash before the claim leaves the entry pending. A crash after it leaves the entry `SENDING`,
//! and no sender repeats that attempt.

use std::cell::Cell;
use std::time::Duration;

use futures::StreamExt;
use umavez_domain::channels::Content;
use umavez_domain::codes::SendingHold;
use umavez_domain::delivery::{Claim, Outcome, Verdict, Window, code};
use umavez_domain::mailings::{
    EntryState, MailingContent, MailingEntryRow, MailingRow, Prepared, unsubscribe_headers, unsubscribe_token,
    unsubscribe_url, values,
};
use umavez_domain::queue::Priority;
use umavez_domain::senders::limiter::{Slot, reach_ms};
use umavez_domain::telemetry::Event;
use umavez_domain::time::Timestamp;
use umavez_platform::delivery::{Attempt, Claimed, Parcel, deadline, deliver_once};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::{Buckets, Grant, Held};
use umavez_platform::mailings::{MailingEntry, Signing};
use umavez_platform::providers::Envelope;
use umavez_platform::store::StoreError;

use crate::Deps;

/// The number of concurrent calls.
const AT_ONCE: usize = 10;
/// The longest time ahead for which slots are reserved, so that a sender with a single mail does
/// not wait longer than this.
const SLOTS_MS: i64 = 1_000;
/// The part of the lease that a claim may take.
const LEASE_MARGIN_MS: i64 = 2_000;
/// The longest wait for a slot. If the slot is later than this, the sender gives the shard back.
const LONGEST_WAIT_MS: i64 = 3_000;
/// The time allowed for the writes before and after a call.
const AROUND_CALL: Duration = Duration::from_secs(5);

pub struct Batch<'a> {
    pub deps: &'a Deps,
    pub invocation: &'a Invocation,
    pub mailing: &'a MailingRow,
    pub prepared: &'a Prepared,
    pub content: &'a MailingContent,
    pub signing: Option<&'a Signing>,
    /// The end of the lease after its last renewal. The lease is renewed while calls are under way.
    pub lease_until: &'a Cell<Timestamp>,
    /// Set by the first call that SES refuses because of the account or the identity. No other call
    /// begins after that.
    pub held_for: Cell<Option<SendingHold>>,
    /// When this batch last saw the rate bucket.
    pub known_us: Cell<i64>,
}

pub enum Sent {
    Some {
        /// One for each entry whose attempt was settled.
        moves: Vec<EntryMove>,
        /// SES refuses mail of this account or identity.
        held_for: Option<SendingHold>,
    },
    NoSlotBefore(Timestamp),
}

/// The states of an entry before and after an attempt.
type EntryMove = (EntryState, EntryState);

/// The result for one entry.
enum One {
    /// Its attempt was settled.
    Moved(EntryMove),
    /// Its slot was over before the attempt could begin. It needs another one.
    NoSlot,
    /// It is not to be sent in this batch.
    Skipped,
}

impl Batch<'_> {
    /// Sends as many of the entries as there are slots for now, and removes them from `entries`.
    /// Those whose slot was over before they could be sent stay there.
    pub async fn send(&self, entries: &mut Vec<(MailingEntry, u32)>) -> Result<Sent, StoreError> {
        let limit = self.deps.mail.rates.sender;
        let slots = (SLOTS_MS * 1_000 / limit.interval_us.max(1)).max(1);
        let slots = usize::try_from(slots).unwrap_or(usize::MAX).min(entries.len());
        let wanted = i64::try_from(slots).unwrap_or(1);
        let first = match self.deps.limiter.take_row(self.invocation, &self.buckets(), wanted).await? {
            Grant::At(held) => held.slot,
            Grant::Later(at) => {
                let wait_ms = at.millis() - self.invocation.current().millis();
                if wait_ms > LONGEST_WAIT_MS {
                    return Ok(Sent::NoSlotBefore(at));
                }
                // Add jitter, so that senders that were refused together do not retry together.
                sleep(wait_ms.max(0) + fastrand::i64(1..=100)).await;
                return Ok(Sent::Some { moves: Vec::new(), held_for: None });
            }
        };
        self.known_us.set(first.known_us);
        let batch: Vec<_> = entries.drain(..slots).enumerate().collect();
        let sending = batch.into_iter().map(|(n, (entry, attempt))| {
            let behind_us = limit.interval_us.saturating_mul(i64::try_from(n).unwrap_or(i64::MAX));
            let slot = first.plus_us(behind_us);
            async move {
                let one = self.one(&entry, attempt, slot).await?;
                Ok((one, (entry, attempt)))
            }
        });
        let sent: Vec<Result<_, StoreError>> = futures::stream::iter(sending).buffer_unordered(AT_ONCE).collect().await;
        // All calls have ended before the first error is returned, so one failure does not stop the
        // others.
        let mut moves = Vec::new();
        for sent in sent {
            match sent? {
                (One::Moved(moved), _) => moves.push(moved),
                (One::NoSlot, entry) => entries.push(entry),
                (One::Skipped, _) => {}
            }
        }
        Ok(Sent::Some { moves, held_for: self.held_for.get() })
    }

    fn buckets(&self) -> Buckets {
        let mail = &self.deps.mail;
        let sender = (mail.sender_bucket(), mail.rates.sender);
        Buckets { sender, reach_ms: reach_ms(Priority::Shot, 0), address: None }
    }

    /// Waits for the slot of an entry. Returns whether its attempt may begin. All entries of a
    /// batch share one look at the bucket.
    async fn is_good(&self, slot: &mut Slot) -> Result<bool, StoreError> {
        sleep((self.deps.limiter.own_time(*slot).millis() - self.invocation.current().millis()).max(0)).await;
        slot.known_us = slot.known_us.max(self.known_us.get());
        let good = self.deps.limiter.is_good(self.invocation, &self.buckets(), slot).await?;
        self.known_us.set(slot.known_us.max(self.known_us.get()));
        Ok(good)
    }

    /// Sends one entry.
    async fn one(&self, entry: &MailingEntry, attempt: u32, mut slot: Slot) -> Result<One, StoreError> {
        if !self.is_good(&mut slot).await? {
            return Ok(One::NoSlot);
        }
        if self.held_for.get().is_some() {
            return Ok(One::Skipped);
        }
        // Do not begin an attempt without the lease, or without enough time to complete it.
        let lease_left_ms = self.lease_until.get().millis() - self.invocation.current().millis();
        let needed = self.deps.providers.config.timeout + AROUND_CALL;
        if lease_left_ms < LEASE_MARGIN_MS || self.invocation.time_left() < needed {
            return Ok(One::Skipped);
        }
        let token = self.invocation.write_token();
        let claim = Claim { attempt, token, deadline: deadline(self.invocation, &self.deps.providers) };
        let claimed = match self.deps.mailings.claim(self.invocation, entry, &claim, self.mailing.retry).await? {
            Claimed::Yes(claimed) => claimed,
            Claimed::Lost(_) | Claimed::GateChanged | Claimed::Suppressed(_) | Claimed::Deferred(_) => {
                return Ok(One::Skipped);
            }
        };
        let id = entry.id.to_string();
        let content = self.content_of(entry);
        let parcel = match &content {
            Some(content) => {
                let checked = self.deps.limiter.before_call(self.invocation, &self.buckets(), Held::of_row(slot)).await;
                checked.map(|()| Parcel { content, credential: "" })
            }
            None => Err(Outcome::Permanent { code: code::TOO_LARGE, suppress: false }),
        };
        let envelope = Envelope { id: &id, sender: &self.content.from, to: &entry.row.email };
        let window = Window::default();
        let call = Attempt { number: attempt, envelope, parcel, deadline: claim.deadline, window };
        let settle = |outcome| self.settle(entry, &claimed, outcome);
        let settled = deliver_once(&self.deps.providers, None, self.invocation, call, settle).await?;
        Ok(settled.map_or(One::Skipped, |to| One::Moved((entry.row.state(), to))))
    }

    /// Renders the mail for one recipient. Returns `None` if it is too large with the recipient's
    /// values.
    fn content_of(&self, entry: &MailingEntry) -> Option<Content> {
        let email = &entry.row.email;
        let token = self.signing.map(|signing| {
            unsubscribe_token(signing.current.as_bytes(), &self.mailing.mailing_id, email, self.mailing.shards)
        });
        let link = token.as_ref().map(|token| unsubscribe_url(&self.deps.public_url, token));
        let headers = token.iter().flat_map(|token| unsubscribe_headers(&self.deps.public_url, token)).collect();
        let variables = values(&entry.row.variables, email, self.mailing.progress.format.as_ref(), link);
        let rendered = self.prepared.render(email, &variables).ok()?;
        Some(self.content.email(rendered, headers))
    }

    /// Writes the outcome of an attempt. If SES throttled the call, it first parks the rate bucket.
    /// Returns the new state of the entry.
    async fn settle(
        &self,
        entry: &MailingEntry,
        claimed: &MailingEntryRow,
        outcome: Outcome,
    ) -> Result<Option<EntryState>, StoreError> {
        let now = self.invocation.current();
        if let Outcome::Held { why } = outcome {
            self.held_for.set(Some(why));
        }
        if let Outcome::Throttled { retry_after_ms, .. } = outcome {
            let bucket = self.deps.mail.sender_bucket();
            // If the write fails, SES itself will throttle the next mail.
            if let Err(error) = self.deps.limiter.park(self.invocation, &bucket, retry_after_ms).await {
                tracing::warn!(event = Event::RateLimitNotStored.as_str(), cause = %error, request_id = self.invocation.request_id);
            }
        }
        let verdict = claimed.verdict(outcome, now, fastrand::u32(0..=1000));
        let attempt = claimed.delivery.attempt;
        let state = self.deps.mailings.settle(self.invocation, &entry.id, claimed, attempt, &verdict).await?;
        if let (Some(state), Verdict::Failed { code, .. } | Verdict::Unknown { code } | Verdict::Again { code, .. }) =
            (state, &verdict)
        {
            log_entry(self.invocation, entry, state, code);
        }
        Ok(state)
    }
}

pub async fn sleep(ms: i64) {
    if let Ok(ms) = u64::try_from(ms)
        && ms > 0
    {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// Logs one line for an entry that was not plainly sent: failed, unknown, retried or lost.
pub fn log_entry(invocation: &Invocation, entry: &MailingEntry, state: EntryState, code: &str) {
    let entry_id = entry.id.to_string();
    let event = Event::MailingRecipientNotSent.as_str();
    tracing::warn!(event, entry_id, state = state.as_str(), code, request_id = invocation.request_id);
}
