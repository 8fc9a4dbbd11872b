//! One turn at a shard: takes its lease, works through its entries page by page, and recounts them
//! at the end of a pass.
//!
//! Before each sub-batch, the sender reads the mailing and the suppressed and unsubscribed
//! addresses again. A pause, a cancel or an unsubscription therefore takes effect after at most one
//! sub-batch of each sender.

use std::cell::Cell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use umavez_domain::codes::SendingHold;
use umavez_domain::delivery::State;
use umavez_domain::mailings::{
    Completion, EntryNext, EntryState, LEASE_MS, MailingContent, MailingId, MailingRow, MailingState, NotTaken,
    Prepared, SUB_BATCH, ShardTurn, next_of_entry,
};
use umavez_domain::queue::ShardJob;
use umavez_domain::telemetry::{Event, Metric};
use umavez_domain::time::Timestamp;
use umavez_platform::batch::Worked;
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{MailingEntry, NoSendReason, PassEnd, Signing};
use umavez_platform::store::StoreError;

use crate::Deps;
use crate::send::{self, Batch, Sent};

/// The number of entries per read.
const PAGE: usize = 4 * SUB_BATCH;
/// The longest duration of a turn: shards of other mailings wait in the queue.
const TURN: Duration = Duration::from_secs(45);
/// The time allowed for the writes around the last calls of a turn.
const AROUND_CALLS: Duration = Duration::from_secs(10);
/// The lease is renewed when less than this is left. Renewal also runs during calls, however long
/// they take.
const LEASE_WANTED_MS: i64 = LEASE_MS / 2;
/// The delay before a failed lease renewal is retried.
const RENEWAL_MS: i64 = 1_000;
/// The maximum number of counts at the end of a pass, if the shard changes during the count.
const COUNTS: usize = 5;
/// The delay before a turn that cannot continue now is retried.
const LATER_MS: i64 = 15_000;

pub async fn run(deps: &Deps, invocation: &Invocation, job: &ShardJob) -> Result<Worked, StoreError> {
    let Some(mailing) = deps.mailings.get(invocation, &job.mailing).await? else {
        return Ok(Worked::Done("no_such_mailing"));
    };
    let turn = match deps.mailings.take_shard(invocation, &mailing, job).await? {
        Ok(turn) => turn,
        Err(NotTaken::Busy(until)) => return Ok(Worked::busy(until)),
        Err(NotTaken::Finished) => {
            complete(deps, invocation, &job.mailing).await?;
            return Ok(Worked::Done("was_finished"));
        }
        Err(NotTaken::NothingToDo) => return Ok(Worked::Done("nothing_to_do")),
    };
    let mut pass = Pass { deps, invocation, turn, begun: Instant::now(), tally: HashMap::new(), content: None };
    let ended = pass.go().await;
    pass.log_entries();
    pass.end(ended).await
}

struct Pass<'a> {
    deps: &'a Deps,
    invocation: &'a Invocation,
    turn: ShardTurn,
    begun: Instant,
    /// The number of entries that moved to each state in this turn.
    tally: HashMap<EntryState, u64>,
    /// The content of the mailing, cached: it cannot change once sending has begun.
    content: Option<Rc<(Prepared, MailingContent)>>,
}

enum Ended {
    Finished,
    Waiting,
    /// The turn is out of time, or there is no rate slot before this time.
    Release(Timestamp),
    /// The mailing is held: it must not be sent now.
    Held,
    Lost,
}

impl Pass<'_> {
    async fn go(&mut self) -> Result<Ended, StoreError> {
        loop {
            let page =
                self.deps.mailings.entries(self.invocation, &self.turn.row, self.turn.row.cursor.clone(), PAGE).await?;
            for entries in page.entries.chunks(SUB_BATCH) {
                if let Some(ended) = self.sub_batch(entries).await? {
                    return Ok(ended);
                }
            }
            match page.next {
                Some(next) => self.turn.row.cursor = Some(next),
                None => match self.count().await? {
                    Some(ended) => return Ok(ended),
                    // There is a new retry order: start from the first entry.
                    None => self.turn.row.cursor = None,
                },
            }
            // Check the time here too: skipped entries are no reason to begin another sub-batch.
            if self.is_out_of_time() {
                return Ok(Ended::Release(self.invocation.current()));
            }
        }
    }

    fn is_out_of_time(&self) -> bool {
        let needed = self.deps.providers.config.timeout + AROUND_CALLS;
        self.begun.elapsed() > TURN || self.invocation.time_left() < needed
    }

    /// Handles one sub-batch of entries. Returns `None` if the pass continues.
    async fn sub_batch(&mut self, entries: &[MailingEntry]) -> Result<Option<Ended>, StoreError> {
        if self.is_out_of_time() {
            return Ok(Some(Ended::Release(self.invocation.current())));
        }
        let mailing = match self.mailing().await? {
            Ok(mailing) => mailing,
            Err(ended) => return Ok(Some(ended)),
        };
        if !self.renew_if_short().await? {
            return Ok(Some(Ended::Lost));
        }
        let entries = self.follow_retry_order(entries).await?;
        let not_to = self.blocked_addresses(&mailing, &entries).await?;
        let mut to_send = Vec::new();
        for entry in entries {
            let why = not_to.get(&entry.id.email_hash);
            let now = self.invocation.current();
            match next_of_entry(&entry.row.delivery, mailing.state, why.is_some(), now) {
                EntryNext::Claim { attempt } => to_send.push((entry, attempt)),
                EntryNext::Suppress => {
                    let why = why.map_or("suppressed", NoSendReason::code);
                    self.end_unsent(&entry, State::Suppressed, why).await?;
                }
                EntryNext::Cancel => {
                    let failed = mailing.state == MailingState::Failed;
                    let why = if failed { "mailing_failed" } else { "mailing_canceled" };
                    self.end_unsent(&entry, State::Canceled, why).await?;
                }
                EntryNext::Lost => {
                    if let Some(state) = self.deps.mailings.lost(self.invocation, &entry, mailing.retry).await? {
                        self.moved(entry.row.state(), state);
                        send::log_entry(self.invocation, &entry, state, "sender_lost");
                    }
                }
                EntryNext::Wait { .. } | EntryNext::InFlight { .. } | EntryNext::Leave => {}
            }
        }
        if to_send.is_empty() {
            return Ok(None);
        }
        self.send(&mailing, to_send).await
    }

    /// Returns the current mailing if the pass may continue, or else how the turn ends.
    async fn mailing(&self) -> Result<Result<MailingRow, Ended>, StoreError> {
        let id = &self.turn.row.mailing_id;
        let Some(row) = self.deps.mailings.get(self.invocation, id).await? else { return Ok(Err(Ended::Lost)) };
        match row.state {
            MailingState::Processing | MailingState::Canceled | MailingState::Failed => Ok(Ok(row)),
            MailingState::Pending | MailingState::Queued => {
                Ok(self.deps.mailings.begin(self.invocation, row).await?.ok_or(Ended::Held))
            }
            MailingState::Paused | MailingState::Completed => Ok(Err(Ended::Held)),
        }
    }

    /// Renews the lease if too little of it is left for a sub-batch. Returns whether this sender
    /// still holds the shard.
    async fn renew_if_short(&mut self) -> Result<bool, StoreError> {
        let left_ms = self.turn.held.lease_until - self.invocation.current().millis();
        if left_ms >= LEASE_WANTED_MS {
            return Ok(true);
        }
        self.deps.mailings.renew_shard(self.invocation, &mut self.turn).await
    }

    /// Makes entries pending again if a retry order covers them. Leaves out an entry that changed
    /// since it was read.
    async fn follow_retry_order(&mut self, entries: &[MailingEntry]) -> Result<Vec<MailingEntry>, StoreError> {
        let (failed, unknown) = (self.turn.row.retried, self.turn.row.retried_unknown);
        let mut back = Vec::with_capacity(entries.len());
        for entry in entries {
            let order = match entry.row.state() {
                EntryState::Failed => failed,
                EntryState::Unknown => unknown,
                _ => 0,
            };
            if entry.row.retried >= order {
                back.push(entry.clone());
            } else if let Some(again) = self.deps.mailings.send_again(self.invocation, entry, order).await? {
                self.moved(entry.row.state(), again.row.state());
                back.push(again);
            }
        }
        Ok(back)
    }

    async fn blocked_addresses(
        &self,
        mailing: &MailingRow,
        entries: &[MailingEntry],
    ) -> Result<HashMap<String, NoSendReason>, StoreError> {
        let pending: Vec<_> = entries
            .iter()
            .filter(|entry| entry.row.state() == EntryState::Pending && mailing.state == MailingState::Processing)
            .map(|entry| (&entry.id, entry.row.email.as_str()))
            .collect();
        self.deps.unsubscribes.of(self.invocation, mailing.list.as_deref(), &pending).await
    }

    async fn end_unsent(&mut self, entry: &MailingEntry, state: State, reason: &str) -> Result<(), StoreError> {
        if let Some(state) = self.deps.mailings.end_unsent(self.invocation, entry, state, reason).await? {
            self.moved(entry.row.state(), state);
        }
        Ok(())
    }

    async fn send(
        &mut self,
        mailing: &MailingRow,
        mut entries: Vec<(MailingEntry, u32)>,
    ) -> Result<Option<Ended>, StoreError> {
        let later = Ended::Release(self.invocation.current().plus_ms(LATER_MS));
        let Some(content) = self.content(mailing).await? else { return Ok(Some(later)) };
        let Some(signing) = self.signing(mailing).await else { return Ok(Some(later)) };
        while !entries.is_empty() {
            let lease_until = Cell::new(self.turn.held.until());
            let batch = Batch {
                deps: self.deps,
                invocation: self.invocation,
                mailing,
                prepared: &content.0,
                content: &content.1,
                signing: signing.as_ref(),
                lease_until: &lease_until,
                held_for: Cell::new(None),
                known_us: Cell::new(0),
            };
            let sent = tokio::select! {
                biased;
                sent = batch.send(&mut entries) => sent?,
                never = keep_lease(self.deps, self.invocation, &mut self.turn, &lease_until) => match never {},
            };
            match sent {
                Sent::Some { moves, held_for } => {
                    moves.into_iter().for_each(|(from, to)| self.moved(from, to));
                    if let Some(why) = held_for {
                        return self.hold(mailing, why).await.map(Some);
                    }
                }
                Sent::NoSlotBefore(at) => return Ok(Some(Ended::Release(at))),
            }
            if !entries.is_empty() && !self.renew_if_short().await? {
                return Ok(Some(Ended::Lost));
            }
            if self.is_out_of_time() {
                return Ok(Some(Ended::Release(self.invocation.current())));
            }
        }
        Ok(None)
    }

    /// Pauses the mailing because SES refuses mail of this account or identity, so that the rest is
    /// not attempted in vain. An operator fixes the cause and resumes the mailing.
    async fn hold(&self, mailing: &MailingRow, why: SendingHold) -> Result<Ended, StoreError> {
        if self.deps.mailings.hold(self.invocation, mailing, why).await? {
            let (mailing_id, request_id) = (mailing.mailing_id.as_str(), &self.invocation.request_id);
            tracing::error!(event = Event::MailingHeld.as_str(), mailing_id, code = why.as_str(), request_id);
            metrics::counter!(Metric::MailingsHeld.as_str()).increment(1);
        }
        Ok(Ended::Held)
    }

    async fn content(&mut self, mailing: &MailingRow) -> Result<Option<Rc<(Prepared, MailingContent)>>, StoreError> {
        if self.content.is_some() {
            return Ok(self.content.clone());
        }
        let content = self.deps.mailings.content(self.invocation, &mailing.mailing_id).await?.map(|row| row.content);
        self.content = content.and_then(|content| Some(Rc::new((Prepared::of(&content).ok()?, content))));
        if self.content.is_none() {
            let mailing_id = mailing.mailing_id.as_str();
            tracing::error!(
                event = Event::MailingContentMissing.as_str(),
                mailing_id,
                request_id = self.invocation.request_id
            );
        }
        Ok(self.content.clone())
    }

    /// Returns the secret that signs the unsubscribe links, or `Some(None)` if the mailing has no
    /// such links. Returns `None` if the secret is needed but cannot be read now.
    async fn signing(&self, mailing: &MailingRow) -> Option<Option<Signing>> {
        if !mailing.unsubscribe {
            return Some(None);
        }
        match self.deps.links.get(self.invocation).await {
            Ok(signing) => Some(Some(signing)),
            Err(error) => {
                tracing::error!(event = Event::SecretNotRead.as_str(), cause = %error, request_id = self.invocation.request_id);
                None
            }
        }
    }

    /// Ends the pass: counts the entries under the lease. Returns `None` if there is a new retry
    /// order to work on.
    async fn count(&mut self) -> Result<Option<Ended>, StoreError> {
        let (id, shard) = (self.turn.row.mailing_id.clone(), self.turn.row.shard);
        for _ in 0..COUNTS {
            if !self.deps.mailings.renew_shard(self.invocation, &mut self.turn).await? {
                return Ok(Some(Ended::Lost));
            }
            let Some(seen) = self.deps.mailings.shard(self.invocation, &id, shard).await? else {
                return Ok(Some(Ended::Lost));
            };
            let ordered = (seen.retried, seen.retried_unknown);
            if ordered != (self.turn.row.retried, self.turn.row.retried_unknown) {
                (self.turn.row.retried, self.turn.row.retried_unknown) = ordered;
                return Ok(None);
            }
            // Another writer reports any change after this read through `touched`; then the shard
            // is counted again.
            self.turn.row.touched = seen.touched;
            let tally = self.deps.mailings.recount(self.invocation, &id, shard).await?;
            match self.deps.mailings.end_pass(self.invocation, &self.turn, tally).await? {
                PassEnd::Finished => return Ok(Some(Ended::Finished)),
                PassEnd::Waiting => return Ok(Some(Ended::Waiting)),
                PassEnd::Lost => return Ok(Some(Ended::Lost)),
                PassEnd::Changed => {}
            }
        }
        Ok(Some(Ended::Release(self.invocation.current())))
    }

    fn moved(&mut self, from: EntryState, to: EntryState) {
        if from != to {
            self.turn.row.counts.moved(from, to);
            *self.tally.entry(to).or_default() += 1;
        }
    }

    async fn end(self, ended: Result<Ended, StoreError>) -> Result<Worked, StoreError> {
        let (mailings, invocation) = (&self.deps.mailings, self.invocation);
        let release = |at| mailings.release_shard(invocation, &self.turn, at);
        Ok(Worked::Done(match ended {
            Ok(Ended::Finished) => {
                complete(self.deps, invocation, &self.turn.row.mailing_id).await?;
                "finished"
            }
            Ok(Ended::Waiting) => "again",
            Ok(Ended::Release(at)) => {
                release(Some(at)).await?;
                "given_back"
            }
            Ok(Ended::Held) => {
                release(None).await?;
                "held"
            }
            Ok(Ended::Lost) => "lost_the_lease",
            // Release the shard after any error, so that it need not wait for the lease to
            // expire.
            Err(error) => match release(Some(invocation.current().plus_ms(LATER_MS))).await {
                Ok(true) => {
                    let (outcome, shard) = (error.code(), self.turn.row.shard);
                    let (mailing_id, request_id) = (self.turn.row.mailing_id.as_str(), &invocation.request_id);
                    tracing::warn!(event = Event::MailingTurnFailed.as_str(), outcome, cause = %error, mailing_id, shard, request_id);
                    "given_back"
                }
                _ => return Err(error),
            },
        }))
    }

    fn log_entries(&self) {
        let count = |state| self.tally.get(&state).copied().unwrap_or(0);
        let sent = count(EntryState::Sent);
        tracing::info!(
            event = Event::MailingTurnEnded.as_str(),
            mailing_id = self.turn.row.mailing_id.as_str(),
            shard = self.turn.row.shard,
            epoch = self.turn.held.lease_epoch,
            sent,
            failed = count(EntryState::Failed),
            unknown = count(EntryState::Unknown),
            suppressed = count(EntryState::Suppressed),
            canceled = count(EntryState::Canceled),
            request_id = self.invocation.request_id,
        );
        for (state, count) in &self.tally {
            metrics::counter!(Metric::MailingEntries.as_str(), "State" => state.as_str()).increment(*count);
        }
    }
}

/// Renews the lease of a shard while its calls are under way. Once the lease is lost, no new call
/// begins.
async fn keep_lease(
    deps: &Deps,
    invocation: &Invocation,
    turn: &mut ShardTurn,
    lease_until: &Cell<Timestamp>,
) -> Infallible {
    loop {
        send::sleep(turn.held.lease_until - LEASE_WANTED_MS - invocation.current().millis()).await;
        match deps.mailings.renew_shard(invocation, turn).await {
            Ok(true) => lease_until.set(turn.held.until()),
            Ok(false) => {
                lease_until.set(Timestamp::from_millis(0));
                return std::future::pending().await;
            }
            Err(error) => {
                let (cause, request_id) = (error.to_string(), &invocation.request_id);
                tracing::warn!(event = Event::LeaseNotRenewed.as_str(), cause, request_id);
                send::sleep(RENEWAL_MS).await;
            }
        }
    }
}

/// Completes the mailing if all of its shards are finished.
async fn complete(deps: &Deps, invocation: &Invocation, id: &MailingId) -> Result<(), StoreError> {
    let Some((found, ended)) = deps.mailings.complete(invocation, id).await? else { return Ok(()) };
    let (mailing_id, request_id) = (id.as_str(), &invocation.request_id);
    match (found, ended) {
        (Completion::Complete(counts), true) => {
            let (sent, failed, unknown) = (counts.sent, counts.failed, counts.unknown);
            let event = Event::MailingCompleted.as_str();
            tracing::info!(event, mailing_id, sent, failed, unknown, total = counts.total(), request_id);
        }
        (Completion::Mismatch { counted, imported }, _) => {
            tracing::error!(event = Event::MailingMismatched.as_str(), mailing_id, counted, imported, request_id);
            metrics::counter!(Metric::MailingMismatches.as_str()).increment(1);
        }
        (Completion::Complete(_), false) | (Completion::Open(_), _) => {}
    }
    Ok(())
}
