//! One attempt: begun by one write, ended by one write.
//!
//! Interleavings. Two senders with one message: the second finds `SENDING(n)` and leaves it. A cancel before the claim: the
//! claim finds `CANCELED`. A cancel after it marks the row as recalled: the outcome that would queue the message again is
//! refused by that mark, and ends the message instead. A suppression before the claim is met by the claim's own
//! transaction. A sender that dies after the claim leaves `SENDING(n)`, which nobody claims again: recovery turns it into
//! `UNKNOWN(n)` after its deadline. A sender that comes back after that may still say `SENT(n)`, and nothing else.

use umavez_domain::channels::email::ses_events;
use umavez_domain::channels::email::ses_events::Learned;
use umavez_domain::codes::Decision;
use umavez_domain::delivery::{Again, State, Verdict};
use umavez_domain::keys::{self, Wake};
use umavez_domain::messages::ledger::Entry;
use umavez_domain::messages::{HandOver, MessageRow};
use umavez_domain::suppression::{SuppressionRow, source};
use umavez_domain::time::Timestamp;
use umavez_domain::work::due;

use crate::invocation::Invocation;
use crate::messages::change::{Change, Changed, as_read, entry, is_state, stands};
use crate::messages::table::Messages;
use crate::store::{Condition, StoreError, Transacted, Write, attribute, read_row};
use crate::suppressions;

/// Races with other writers are looked at again this often.
const ROUNDS: usize = 5;

/// What came of the claim of an attempt.
#[derive(Debug)]
pub enum Claimed {
    /// It is this sender's to make.
    Yes,
    Suppressed(Box<SuppressionRow>),
    /// The row has changed: as it stands now, or nothing if it is gone.
    Lost(Option<Box<MessageRow>>),
}

/// What came of the outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Now,
    /// The row says so already.
    Already,
    /// The message was canceled while the attempt was under way: it ended instead of being tried again.
    Recalled,
    /// It came too late to count.
    TooLate,
}

impl Messages {
    /// Begins attempt n of a message that was read as `row`, unless its address is suppressed, for
    /// all or for `sender` (the name of its credential).
    pub async fn claim(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        attempt: u32,
        deadline: Timestamp,
        sender: &str,
    ) -> Result<Claimed, StoreError> {
        let now = invocation.current();
        let claim = invocation.write_token();
        let entry = entry(now, Decision::Claimed).attempt(attempt);
        let message = self
            .change(row, &entry, now)?
            .set_value("state", attribute(&State::Sending)?)
            .set_number("attempt", attempt)
            .set_number("deadline", deadline.millis())
            .set("claim", &claim)
            .set("wake", keys::wake(Wake::Check, keys::wake_shard(&row.id)))
            .set("wake_at", keys::at_time(deadline, &row.id))
            .remove("emit")
            .remove("later")
            .remove("not_before")
            // The attempt before this one is over and was not sent.
            .when(Condition::all([stands(State::Queued, attempt - 1)?, as_read(row)]));
        let not_suppressed = suppressions::not_suppressed(&self.table, row.channel, &row.to, sender)?;
        let refusals = match self.store.transact(invocation, vec![message, not_suppressed]).await {
            Ok(Transacted::Done) => return Ok(Claimed::Yes),
            Ok(Transacted::Refused(refusals)) => refusals,
            Err(error) if error.is_passing() => return self.claimed_after_all(invocation, row, &claim, error).await,
            Err(error) => return Err(error),
        };
        let mut items = refusals.into_iter().map(|refusal| refusal.map(|refusal| refusal.item));
        match (items.next().flatten(), items.next().flatten()) {
            (Some(item), _) => {
                let met: Option<MessageRow> = item.map(read_row).transpose()?;
                match met {
                    Some(met) if met.claim.as_deref() == Some(&claim) && met.state == State::Sending => {
                        Ok(Claimed::Yes)
                    }
                    met => Ok(Claimed::Lost(met.map(Box::new))),
                }
            }
            (None, Some(Some(item))) => Ok(Claimed::Suppressed(Box::new(read_row(item)?))),
            (None, _) => Err(StoreError::Corrupt("a claim that nothing refused")),
        }
    }

    /// The store did not say whether the claim was made. Without asking, an attempt that was never made would end as
    /// unknown.
    async fn claimed_after_all(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        claim: &str,
        error: StoreError,
    ) -> Result<Claimed, StoreError> {
        match self.get(invocation, &row.id).await {
            Ok(Some(met)) if met.claim.as_deref() == Some(claim) && met.state == State::Sending => Ok(Claimed::Yes),
            _ => Err(error),
        }
    }

    /// Writes what came of attempt n, whose message was claimed as `row`. A block of one bot is
    /// noted for `sender` (the name of its credential).
    pub async fn settle(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        attempt: u32,
        verdict: &Verdict,
        sender: &str,
    ) -> Result<Settled, StoreError> {
        let now = invocation.current();
        // Nobody has told meanwhile that an earlier attempt was sent.
        let under_way = Condition::all([stands(State::Sending, attempt)?, Condition::has_not("sent_attempt")]);
        let change = match verdict {
            Verdict::Sent { provider_id } => {
                let change = self.sent(row, attempt, provider_id, Decision::Sent, now)?;
                // Where others have gone on from it, they are told with the row as it stands.
                change.when(stands(State::Sending, attempt)?)
            }
            Verdict::Failed { code, suppress } => {
                let entry = entry(now, Decision::Failed).reason(code).attempt(attempt);
                let mut change = self.ending(row, State::Failed, &entry, now)?.when(under_way);
                if *suppress {
                    let found = SuppressionRow::by_message(row, code, source::PROVIDER, now).seen_by(sender);
                    change.beside.push(suppressions::adding(&self.table, &found)?);
                }
                change
            }
            Verdict::Expired { code } => {
                let entry = entry(now, Decision::Expired).reason(code).rule("not_after").attempt(attempt);
                self.ending(row, State::Expired, &entry, now)?.when(under_way)
            }
            Verdict::Unknown { code } => Change::of(self.unknown(row, attempt, code, now)?).when(under_way),
            Verdict::Again { why, code, .. } if row.recalled.is_some() => {
                self.recalled(row, attempt, *why, code, now)?.when(under_way)
            }
            Verdict::Again { why, code, not_before } => {
                // Nobody has canceled the message meanwhile.
                let wanted = Condition::all([under_way, Condition::has_not("recalled")]);
                Change::of(self.again(row, attempt, *why, code, *not_before, now)?).when(wanted)
            }
        };
        match (self.make(invocation, change).await?, verdict) {
            (Changed::Done, Verdict::Again { .. }) if row.recalled.is_some() => Ok(Settled::Recalled),
            (Changed::Done, _) => Ok(Settled::Now),
            (Changed::Lost(Some(met)), Verdict::Sent { provider_id }) => {
                self.sent_late(invocation, *met, attempt, provider_id).await
            }
            // The cancel was committed first: settle again with the recalled row.
            (Changed::Lost(Some(met)), Verdict::Again { .. })
                if row.recalled.is_none() && is_recalled(&met, attempt) =>
            {
                Box::pin(self.settle(invocation, &met, attempt, verdict, sender)).await
            }
            (Changed::Lost(Some(met)), _) if met.state == State::Sending && met.attempt == attempt => {
                // An earlier attempt was sent, and this one is over: the message was sent.
                let before = met.sent_attempt.unwrap_or(attempt);
                let provider_id = met.provider_id.clone().unwrap_or_default();
                let change = self.sent(&met, before, &provider_id, Decision::Reconciled, now)?.when(as_read(&met));
                match self.make(invocation, change).await? {
                    Changed::Done => Ok(Settled::Now),
                    Changed::Lost(_) => Err(StoreError::Conflict),
                }
            }
            (Changed::Lost(Some(met)), Verdict::Again { why, .. })
                if met.recalled == Some(attempt) && met.state == why.when_recalled().in_doubt(met.doubt) =>
            {
                Ok(Settled::Recalled)
            }
            (Changed::Lost(Some(met)), _) if met.attempt == attempt && says(met.state, verdict) => Ok(Settled::Already),
            (Changed::Lost(_), _) => Ok(Settled::TooLate),
        }
    }

    /// The provider's own word that the last attempt of a message was sent, from whoever heard it.
    pub async fn confirm(
        &self,
        invocation: &Invocation,
        row: MessageRow,
        provider_id: &str,
    ) -> Result<Settled, StoreError> {
        let attempt = row.attempt;
        self.sent_late(invocation, row, attempt, provider_id).await
    }

    /// "Sent" is said of an attempt that others may have gone on from.
    async fn sent_late(
        &self,
        invocation: &Invocation,
        mut row: MessageRow,
        attempt: u32,
        provider_id: &str,
    ) -> Result<Settled, StoreError> {
        for _ in 0..ROUNDS {
            let now = invocation.current();
            let change = match ses_events::sent(&row, attempt) {
                Some(Learned::SentBefore) => self.sent_before(&row, attempt, provider_id, now)?,
                Some(_) => self.sent(&row, attempt, provider_id, Decision::Sent, now)?,
                None if row.state == State::Sent => return Ok(Settled::Already),
                None => return Ok(Settled::TooLate),
            };
            match self.make(invocation, change.when(as_read(&row))).await? {
                Changed::Done => return Ok(Settled::Now),
                Changed::Lost(Some(met)) => row = *met,
                Changed::Lost(None) => return Ok(Settled::TooLate),
            }
        }
        Err(StoreError::Conflict)
    }

    /// The attempt is known to have been sent: also when it was given up as unknown, or queued for another attempt, which
    /// is then not made. The condition is the caller's.
    pub(super) fn sent(
        &self,
        row: &MessageRow,
        attempt: u32,
        provider_id: &str,
        code: Decision,
        now: Timestamp,
    ) -> Result<Change, StoreError> {
        let entry = entry(now, code).attempt(attempt).matched(format!("provider:{provider_id}"));
        let mut change = self.ending(row, State::Sent, &entry, now)?;
        change.message = change.message.set("provider_id", provider_id).set("sent_at", now.to_string()).remove("doubt");
        Ok(change)
    }

    /// An earlier attempt is known to have been sent while another is under way: that one's end is the message's.
    pub(super) fn sent_before(
        &self,
        row: &MessageRow,
        attempt: u32,
        provider_id: &str,
        now: Timestamp,
    ) -> Result<Change, StoreError> {
        let entry = entry(now, Decision::Reconciled).attempt(attempt).matched(format!("provider:{provider_id}"));
        let write = self.change(row, &entry, now)?.set_number("sent_attempt", attempt).set("provider_id", provider_id);
        Ok(Change::of(write))
    }

    /// Nobody knows how the attempt ended: it waits for an event or a person, and keeps its intent.
    fn unknown(&self, row: &MessageRow, attempt: u32, code: &str, now: Timestamp) -> Result<Write, StoreError> {
        let entry = entry(now, Decision::Unknown).reason(code).attempt(attempt);
        let write = self
            .change(row, &entry, now)?
            .set_value("state", attribute(&State::Unknown)?)
            .set("reason", code)
            .remove("deadline");
        self.unknown_since(write, row, now)
    }

    /// There would be another attempt, and the message was canceled while this one was under way: it ends.
    fn recalled(
        &self,
        row: &MessageRow,
        attempt: u32,
        why: Again,
        code: &str,
        now: Timestamp,
    ) -> Result<Change, StoreError> {
        match why.when_recalled() {
            State::Unknown => Ok(Change::of(self.unknown(row, attempt, code, now)?)),
            state => {
                let entry = entry(now, Decision::Canceled).rule("operator").attempt(attempt);
                self.ending(row, state, &entry, now)
            }
        }
    }

    /// There will be another attempt.
    pub(super) fn again(
        &self,
        row: &MessageRow,
        attempt: u32,
        why: Again,
        code: &str,
        not_before: Timestamp,
        now: Timestamp,
    ) -> Result<Write, StoreError> {
        let (decision, tries_from) = match why {
            Again::Retry => (Decision::Retry, row.tries_from),
            Again::Throttled => (Decision::Throttled, row.tries_from + 1),
            Again::Policy => (Decision::Resent, row.tries_from),
        };
        let entry = entry(now, decision).reason(code).attempt(attempt).until(not_before);
        let entry = if why == Again::Policy { entry.rule("unknown_policy:resend") } else { entry };
        let seq = row.emits + 1;
        let handed = HandOver::of(&row.id, row.priority, due(Some(not_before), now), now, seq);
        let write = self
            .change(row, &entry, now)?
            .set_value("state", attribute(&State::Queued)?)
            .set("reason", code)
            .set_number("tries_from", tries_from)
            .set("not_before", not_before.to_string())
            .remove("deadline");
        let write = if why == Again::Policy { write.set_number("doubt", attempt) } else { write };
        Self::handing_over(write, &handed, seq)
    }

    /// Ends a message that was read as `row` and is not to be sent any more.
    pub async fn end_unsent(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        state: State,
        entry: &Entry,
    ) -> Result<Option<Box<MessageRow>>, StoreError> {
        let as_seen = Condition::all([is_state(State::Queued)?, as_read(row)]);
        let change = self.ending(row, state, entry, invocation.current())?.when(as_seen);
        match self.make(invocation, change).await? {
            Changed::Done => Ok(None),
            Changed::Lost(met) => Ok(met),
        }
    }
}

/// Whether the attempt is still under way and the message was canceled.
fn is_recalled(row: &MessageRow, attempt: u32) -> bool {
    row.state == State::Sending && row.attempt == attempt && row.recalled.is_some() && row.sent_attempt.is_none()
}

/// Whether a row in this state says what the verdict would have made it say.
fn says(state: State, verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Sent { .. } => state == State::Sent,
        Verdict::Failed { .. } => state == State::Failed,
        Verdict::Again { .. } => state == State::Queued,
        Verdict::Expired { .. } => state == State::Expired,
        Verdict::Unknown { .. } => state == State::Unknown,
    }
}
