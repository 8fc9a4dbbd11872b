//! The life cycle of a message: each change of its delivery, with the work that follows and the
//! ledger entry.

use super::ledger::{LedgerEntry, has_room};
use super::row::{IntentRef, MessageRow, Resend};
use crate::change::{Fence, Row};
use crate::channels::email::ses_events::SesEvent;
use crate::codes::{Decision, Reason};
use crate::delivery::{
    Again, Cancel, Claim, Delivered, Delivery, Gate, Recovery, Settled, State, UnknownPolicy, Verdict,
};
use crate::intents::IntentHold;
use crate::keys::{self, Key, Wake};
use crate::queue;
use crate::time::{DAY_MS, SECOND_MS, Timestamp};

/// A message that waits for the window of another send looks at the guard again this often, because
/// that send may turn out not to have been made.
const LONGEST_DEFERRAL_MS: i64 = DAY_MS;
/// If the other attempt has just begun, its outcome is known after this time.
const ATTEMPT_MS: i64 = 60 * SECOND_MS;

impl Row for MessageRow {
    fn key(&self) -> Key {
        keys::message(&self.id)
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
}

impl Delivered for MessageRow {
    fn delivery(&self) -> &Delivery {
        &self.delivery
    }
}

impl MessageRow {
    /// Returns the conditions for the beginning of an attempt.
    pub fn gates(&self, sender: &str) -> Vec<Gate> {
        vec![Gate::NotSuppressed { channel: self.channel, to: self.to.clone(), sender: sender.to_owned() }]
    }

    /// Begins an attempt. `None` if it is not the next attempt, or the message is not queued.
    pub fn claimed(&self, claim: &Claim, now: Timestamp) -> Option<Self> {
        let delivery = self.delivery.claimed(claim)?;
        let entry = LedgerEntry::new(now, Decision::Claimed).attempt(claim.attempt);
        Some(self.with(delivery, entry, now, 0))
    }

    /// Defers the message, because the window of `by`, another send of its intent, is not over. It
    /// looks again when the window ends, within a day in any case, and as soon as it has become too
    /// late to send it. `None` if it is not queued.
    pub fn deferred(&self, by: &IntentHold, now: Timestamp) -> Option<Self> {
        let until = Timestamp::from_seconds(by.until);
        let has_just_begun = Timestamp::from_seconds(by.at).plus_ms(ATTEMPT_MS) > now;
        let look_again = until.min(now.plus_ms(if has_just_begun { ATTEMPT_MS } else { LONGEST_DEFERRAL_MS }));
        let too_late = self.not_after.map(|not_after| not_after.plus_ms(SECOND_MS));
        let at = too_late.map_or(look_again, |too_late| look_again.min(too_late));
        let reason = Reason::IntentDuplicate.as_str();
        let delivery = self.delivery.deferred(at, reason)?;
        let entry = LedgerEntry::new(now, Decision::Deferred).reason(reason).rule("rolling_window");
        let mut row = self.with(delivery, entry.matched(&by.holder).until(until), now, 0);
        row.schedule(Some(at), now);
        Some(row)
    }

    /// Settles the attempt.
    pub fn settled(&self, attempt: u32, verdict: &Verdict, now: Timestamp, keep_days: i64) -> Settled<Self> {
        self.delivery.settled(attempt, verdict, now).map(|delivery| {
            let entry = self.entry_of(attempt, verdict, &delivery, now);
            self.with(delivery, entry, now, keep_days)
        })
    }

    fn entry_of(&self, attempt: u32, verdict: &Verdict, after: &Delivery, now: Timestamp) -> LedgerEntry {
        let entry = |code: Decision| LedgerEntry::new(now, code).attempt(attempt);
        if let Some(provider_id) = after.provider_id.as_deref().filter(|_| after.sent_attempt().is_some()) {
            // Use the provider's confirmation, also if a later attempt is still under way or has
            // just ended.
            let is_its_own = after.state == State::Sent && after.sent_attempt() == Some(attempt);
            let code = if is_its_own { Decision::Sent } else { Decision::Reconciled };
            let attempt = after.sent_attempt().unwrap_or(attempt);
            return LedgerEntry::new(now, code).attempt(attempt).matched(format!("provider:{provider_id}"));
        }
        match verdict {
            Verdict::Sent { .. } => entry(Decision::Sent),
            Verdict::Failed { code, .. } => entry(Decision::Failed).reason(code),
            Verdict::Expired { code } => entry(Decision::Expired).reason(code).rule("not_after"),
            Verdict::Unknown { code } => entry(Decision::Unknown).reason(code),
            Verdict::Again { .. } if after.state == State::Canceled => entry(Decision::Canceled).rule("operator"),
            Verdict::Again { code, .. } if after.state == State::Unknown => entry(Decision::Unknown).reason(code),
            // The attempt had been given up as lost, and is now known not to have been sent.
            Verdict::Again { code, .. } if after.state == State::Failed => entry(Decision::Failed).reason(code),
            Verdict::Again { why, code, not_before } => {
                let (decision, rule) = match why {
                    Again::Retry => (Decision::Retry, None),
                    Again::Throttled => (Decision::Throttled, None),
                    Again::Policy => (Decision::Resent, Some("unknown_policy:resend")),
                };
                let entry = entry(decision).reason(code).until(*not_before);
                rule.map_or(entry.clone(), |rule| entry.rule(rule))
            }
        }
    }

    /// Applies an event about `attempt`. Returns the new row and whether the state changed. `None`
    /// if the row already contains everything that the event says.
    pub fn of_event(&self, event: &SesEvent, attempt: u32, now: Timestamp, keep_days: i64) -> Option<(Self, bool)> {
        let effect = self.delivery.of_event(self.marks, event, attempt)?;
        let entry = match (effect.reconciled, effect.delivery.state) {
            (true, State::Sent) => {
                let matched = format!("provider:{}", event.provider_id);
                LedgerEntry::new(now, Decision::Reconciled).matched(matched)
            }
            (true, _) => {
                let entry = LedgerEntry::new(now, Decision::Rejected).rule("ses");
                effect.delivery.reason.as_deref().map_or(entry.clone(), |reason| entry.reason(reason))
            }
            (false, _) => LedgerEntry::new(now, event.kind.decision()).rule("ses"),
        };
        let row = Self { marks: effect.marks, ..self.with(effect.delivery, entry.attempt(attempt), now, keep_days) };
        Some((row, effect.reconciled))
    }

    /// Ends a message that must not be sent. `None` if it is not queued.
    pub fn ended(&self, state: State, entry: &LedgerEntry, now: Timestamp, keep_days: i64) -> Option<Self> {
        let delivery = self.delivery.ended(state, entry.reason.as_deref())?;
        Some(self.with(delivery, entry.clone(), now, keep_days))
    }

    /// Cancels the message by an operator's order. A queued message ends at once; if an attempt is
    /// under way, no other attempt follows. The second part is the row to write, `None` if nothing
    /// changes.
    pub fn cancel(&self, now: Timestamp, keep_days: i64) -> (Cancel, Option<Self>) {
        let (cancel, delivery) = self.delivery.cancel();
        let row = delivery.map(|delivery| {
            let entry = match delivery.state {
                State::Sending => LedgerEntry::new(now, Decision::Recalled).attempt(delivery.attempt),
                _ => LedgerEntry::new(now, Decision::Canceled),
            };
            self.with(delivery, entry.rule("operator"), now, keep_days)
        });
        (cancel, row)
    }

    /// Queues a message again that failed or is unknown. `None` if it is neither. `intent` is the
    /// intent that the message holds from now on, if it had released its own.
    pub fn resent(&self, order: Resend, intent: Option<IntentRef>, now: Timestamp) -> Option<Self> {
        let delivery = self.delivery.resent()?;
        let entry = LedgerEntry::new(now, Decision::Resent).rule("operator").attempt(self.delivery.attempt);
        let mut row = self.with(delivery, entry, now, 0);
        // The rejection was about an earlier attempt.
        row.marks.rejected_at = None;
        row.resends.push(order);
        row.intent = intent.or(row.intent);
        Some(row)
    }

    /// Settles an unknown message as an operator declares. `None` if it is not unknown.
    pub fn declared(&self, was_sent: bool, now: Timestamp, keep_days: i64) -> Option<Self> {
        let delivery = self.delivery.declared(was_sent, now)?;
        let code = if was_sent { Decision::Sent } else { Decision::Failed };
        let entry = LedgerEntry::new(now, code).rule("operator").attempt(self.delivery.attempt);
        Some(self.with(delivery, entry, now, keep_days))
    }

    /// Enqueues the message again, or gives up its attempt, if it is overdue.
    pub fn recovered(&self, policy: UnknownPolicy, now: Timestamp, jitter: u32, keep_days: i64) -> Recovery<Self> {
        if let Some(verdict) = self.delivery.lost(self.window(), policy, now, jitter) {
            return match self.settled(self.delivery.attempt, &verdict, now, keep_days) {
                Settled::Now(row) if row.delivery.state == State::Queued => Recovery::Emitted(row),
                Settled::Now(row) => Recovery::GivenUp(row),
                Settled::Already | Settled::TooLate => Recovery::Nothing,
            };
        }
        let is_checked = self.work.wakes_at(Wake::Check, self.id.as_str()).is_some();
        if self.delivery.state != State::Queued || !is_checked {
            return Recovery::Nothing;
        }
        let entry = LedgerEntry::new(now, Decision::Recovered).rule("check_at");
        let mut row = self.with(self.delivery.clone(), entry, now, keep_days);
        row.work.recovered();
        let (id, priority, at) = (&row.id, row.priority, self.send_at.max(self.delivery.not_before));
        row.work
            .hand_over(id.as_str(), at, now, |seq| queue::emit_message(id, priority, seq, at.map(Timestamp::millis)));
        Recovery::Emitted(row)
    }

    /// Delays the recovery check: the queue hides the message until `until`, so recovery need not
    /// check it before. `None` if nothing changes.
    pub fn postponed(&self, until: Timestamp, now: Timestamp) -> Option<Self> {
        let is_queued = self.delivery.state == State::Queued;
        let work = self.work.postponed(self.id.as_str(), until, now).filter(|_| is_queued)?;
        Some(Self { work, version: self.version + 1, ..self.clone() })
    }

    /// Returns when an operator declared the message not sent. `None` if it did not end that way.
    pub fn declared_unsent_at(&self) -> Option<Timestamp> {
        let last = self.ledger.last().filter(|_| self.delivery.state == State::Failed)?;
        (last.code == Decision::Failed && last.rule.as_deref() == Some("operator")).then_some(last.at)
    }

    /// Returns the intent that the change from `before` to this row releases, because the message
    /// ended without being sent.
    pub fn released_intent(&self, before: &Self) -> Option<&IntentRef> {
        let ends = self.delivery.state.is_unsent() && !before.delivery.state.is_unsent();
        self.intent.as_ref().filter(|_| ends)
    }

    /// Returns the intent that the change from `before` to this row takes again, because the
    /// message had ended unsent and turns out to have been sent.
    pub fn retaken_intent(&self, before: &Self) -> Option<&IntentRef> {
        let is_proved = self.delivery.state == State::Sent && before.delivery.state.is_unsent();
        self.intent.as_ref().filter(|_| is_proved)
    }

    /// Returns the intent whose rolling window counts from the send of this message.
    pub fn rolling_intent(&self) -> Option<&IntentRef> {
        self.intent.as_ref().filter(|intent| intent.rolling && intent.guard.is_some())
    }

    /// Returns the intent whose hold the change from `before` to this row makes pending, because
    /// the attempt was not sent and the message is queued again.
    pub fn suspended_intent(&self, before: &Self) -> Option<&IntentRef> {
        let is_clean = |row: &Self| row.delivery.state == State::Queued && !row.delivery.may_be_sent();
        self.rolling_intent().filter(|_| is_clean(self) && !is_clean(before))
    }

    /// Returns the row after a change of its delivery.
    fn with(&self, delivery: Delivery, entry: LedgerEntry, now: Timestamp, keep_days: i64) -> Self {
        let changed = delivery.state != self.delivery.state;
        let mut row = Self { delivery, updated_at: now, version: self.version + 1, ..self.clone() };
        if has_room(row.ledger.len(), entry.code) {
            row.ledger.push(entry);
        }
        if changed {
            let (id, priority) = (&row.id, row.priority);
            row.work.follow(&row.delivery, id.as_str(), now, |seq, at| queue::emit_message(id, priority, seq, at));
            row.emit_end();
            let is_over = row.delivery.state.is_settled() && row.delivery.state != State::Unknown;
            row.expires_at = is_over.then(|| now.plus_days(keep_days).seconds());
        }
        row
    }

    /// Wakes the conversation that waits for the end of the message. The job is part of the write
    /// that ends the message.
    fn emit_end(&mut self) {
        if let Some(then) = self.then.as_ref().filter(|_| self.delivery.state.is_settled()) {
            self.work.emits += 1;
            self.work.emit = Some(then.emit(&self.id, self.work.emits));
        }
    }
}
