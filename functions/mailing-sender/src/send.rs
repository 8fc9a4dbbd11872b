//! Some entries of a shard are sent: slots for them first, then for each a claim, one call, and its outcome.
//!
//! A crash before a claim leaves the entry pending, and after it leaves it `SENDING`, which nobody repeats.

use std::cell::Cell;
use std::time::Duration;

use futures::StreamExt;
use umavez_domain::channels::content::Email;
use umavez_domain::codes::{Event, SendingHold};
use umavez_domain::delivery::{Outcome, Verdict, code};
use umavez_domain::mailings::{
    EntryProgress, EntryState, MailingContent, MailingRow, Prepared, settle_entry, unsubscribe_headers,
    unsubscribe_token, unsubscribe_url, values,
};
use umavez_domain::queue::Priority;
use umavez_domain::senders::limiter::reach_ms;
use umavez_domain::time::Timestamp;
use umavez_platform::invocation::Invocation;
use umavez_platform::lease::Held;
use umavez_platform::limiter::Grant;
use umavez_platform::mailings::{Attempt, Claim, Entry, EntrySettled, Signing};
use umavez_platform::providers::Mail;
use umavez_platform::store::StoreError;

use crate::Deps;

/// Calls that are under way at a time.
const AT_ONCE: usize = 10;
/// Slots are taken for so long ahead, at most: whoever has a single mail to send is not kept waiting longer.
const SLOTS_MS: i64 = 1_000;
/// Between the end of a call and the moment when its attempt counts as lost.
const MARGIN_MS: i64 = 10_000;
/// What the claim may take of the lease.
const LEASE_MARGIN_MS: i64 = 2_000;
/// A slot is waited for this long; for a later one the shard is given back.
const LONGEST_WAIT_MS: i64 = 3_000;
/// An outcome that was not written is an attempt that nobody knows: it is tried this often.
const OUTCOME_TRIES: usize = 4;

pub struct Batch<'a> {
    pub deps: &'a Deps,
    pub invocation: &'a Invocation,
    pub mailing: &'a MailingRow,
    pub prepared: &'a Prepared,
    pub content: &'a MailingContent,
    pub signing: Option<&'a Signing>,
    pub held: &'a Held,
    /// As it was last renewed; it is, as long as calls are under way.
    pub lease_until: &'a Cell<Timestamp>,
    /// Set by the first call that SES refuses to the account or the identity: no other is begun.
    pub held_for: Cell<Option<SendingHold>>,
}

pub enum Sent {
    Some {
        /// The states that entries went from and to.
        moves: Vec<(EntryState, EntryState)>,
        /// SES takes no mails of this account or identity.
        held_for: Option<SendingHold>,
    },
    NoSlotBefore(Timestamp),
}

struct One {
    from: EntryState,
    to: EntryState,
}

impl Batch<'_> {
    /// Sends as many of the entries as there are slots for at once, and takes them out.
    pub async fn send(&self, entries: &mut Vec<(Entry, u32)>) -> Result<Sent, StoreError> {
        let (limit, bucket) = (self.deps.mail.rates.sender, self.deps.mail.sender_bucket());
        let slots = (SLOTS_MS * 1_000 / limit.interval_us.max(1)).max(1);
        let slots = usize::try_from(slots).unwrap_or(usize::MAX).min(entries.len());
        let wanted = i64::try_from(slots).unwrap_or(1);
        let reach = reach_ms(Priority::Shot, 0);
        // Other senders ask for the same slots: most refusals are foreseen.
        let granted = match self.deps.limiter.look(self.invocation, &bucket, limit, reach).await? {
            Some(at) => Grant::Later(at),
            None => self.deps.limiter.grant_row(self.invocation, &bucket, limit, reach, wanted).await?,
        };
        let first = match granted {
            Grant::At(first) => first,
            Grant::Later(at) => {
                let wait_ms = at.millis() - self.invocation.current().millis();
                if wait_ms > LONGEST_WAIT_MS {
                    return Ok(Sent::NoSlotBefore(at));
                }
                // Those who were refused together do not come back together.
                sleep(wait_ms.max(0) + fastrand::i64(1..=100)).await;
                return Ok(Sent::Some { moves: Vec::new(), held_for: None });
            }
        };
        let batch: Vec<_> = entries.drain(..slots).enumerate().collect();
        let sending = batch.into_iter().map(|(n, (entry, attempt))| {
            let behind_us = limit.interval_us.saturating_mul(i64::try_from(n).unwrap_or(i64::MAX));
            let slot = first.plus_ms(behind_us / 1_000);
            async move { self.one(&entry, attempt, slot).await }
        });
        let moves: Vec<Result<_, StoreError>> =
            futures::stream::iter(sending).buffer_unordered(AT_ONCE).collect().await;
        // One that went wrong does not hide what became of the others.
        let mut told = Vec::with_capacity(moves.len());
        for moved in moves {
            let Some(One { from, to }) = moved? else { continue };
            told.push((from, to));
        }
        Ok(Sent::Some { moves: told, held_for: self.held_for.get() })
    }

    /// What became of an entry; `None` if nothing was done with it.
    async fn one(&self, entry: &Entry, attempt: u32, slot: Timestamp) -> Result<Option<One>, StoreError> {
        sleep(slot.millis() - self.invocation.current().millis()).await;
        let timeout = self.deps.providers.config.timeout;
        let now = self.invocation.current();
        if self.held_for.get().is_some() {
            return Ok(None);
        }
        // Not begun without the lease, nor without the time to see it through.
        let lease_left_ms = self.lease_until.get().millis() - now.millis();
        if lease_left_ms < LEASE_MARGIN_MS || self.invocation.time_left() < timeout + Duration::from_secs(5) {
            return Ok(None);
        }
        let timeout_ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        let settle_by = now.plus_ms(timeout_ms + MARGIN_MS);
        let begun = Attempt { number: attempt, settle_by, order: self.mailing.retry };
        let outcome = match self.deps.mailings.claim(self.invocation, self.held, entry, begun).await? {
            Claim::Yes => self.call(entry, attempt, settle_by).await,
            Claim::Late => Outcome::Transient { code: code::NOT_CALLED },
            Claim::Lost => return Ok(None),
        };
        let now = self.invocation.current();
        if let Outcome::Held { why } = outcome {
            self.held_for.set(Some(why));
        }
        if let Outcome::Throttled { retry_after_ms, .. } = outcome {
            let bucket = self.deps.mail.sender_bucket();
            // Not parked, the next mail is told to wait by SES itself.
            if self.deps.limiter.park(self.invocation, &bucket, now.plus_ms(retry_after_ms)).await.is_err() {
                tracing::warn!(event = "NOT_PARKED", request_id = self.invocation.request_id);
            }
        }
        let progress = EntryProgress { state: EntryState::Sending, attempt, ..entry.row.progress() };
        let verdict = settle_entry(&progress, outcome, now, fastrand::u32(0..=1000));
        let settled = self.write_outcome(entry, attempt, &verdict).await?;
        let state = match settled {
            EntrySettled::Now(state) | EntrySettled::Known(state) => state,
            EntrySettled::Gone => return Ok(None),
        };
        if let Verdict::Failed { code, .. } | Verdict::Unknown { code } | Verdict::Again { code, .. } = verdict {
            tell(self.invocation, entry, state, code);
        }
        Ok(Some(One { from: entry.row.state, to: state }))
    }

    /// The one call of the attempt, unless the claim took so long that it could not end in time.
    async fn call(&self, entry: &Entry, attempt: u32, settle_by: Timestamp) -> Outcome {
        let left_ms = settle_by.millis() - MARGIN_MS / 2 - self.invocation.current().millis();
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)).min(self.invocation.time_left());
        if left < Duration::from_secs(1) {
            return Outcome::Transient { code: code::NOT_CALLED };
        }
        let email = &entry.row.email;
        let token = self.signing.map(|signing| {
            unsubscribe_token(signing.current.as_bytes(), &self.mailing.mailing_id, email, self.mailing.shards)
        });
        let link = token.as_ref().map(|token| unsubscribe_url(&self.deps.public_url, token));
        let headers = token.iter().flat_map(|token| unsubscribe_headers(&self.deps.public_url, token)).collect();
        let variables = values(&entry.row.variables, email, self.mailing.progress.format.as_ref(), link);
        let Ok(rendered) = self.prepared.render(email, &variables) else {
            return Outcome::Permanent { code: code::TOO_LARGE, suppress: false };
        };
        let mail = Email {
            from: self.content.from.clone(),
            subject: rendered.subject,
            text: rendered.text,
            html: rendered.html,
            reply_to: self.content.reply_to.clone(),
            headers,
        };
        let id = entry.id.to_string();
        let mail = Mail { id: &id, attempt, to: email, email: &mail };
        self.deps.providers.send_mail(&mail, left).await
    }

    async fn write_outcome(&self, entry: &Entry, attempt: u32, verdict: &Verdict) -> Result<EntrySettled, StoreError> {
        let mut tries = 0;
        loop {
            match self.deps.mailings.settle(self.invocation, entry, attempt, verdict).await {
                Err(error) if error.is_passing() && tries < OUTCOME_TRIES && !self.invocation.time_left().is_zero() => {
                    tries += 1;
                }
                settled => return settled,
            }
        }
    }
}

pub async fn sleep(ms: i64) {
    if let Ok(ms) = u64::try_from(ms)
        && ms > 0
    {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// One line for each entry that was not simply sent.
pub fn tell(invocation: &Invocation, entry: &Entry, state: EntryState, code: &str) {
    let entry_id = entry.id.to_string();
    let event = Event::MailingEntry.as_str();
    tracing::warn!(event, entry_id, state = state.as_str(), code, request_id = invocation.request_id);
}
