//! What waits: found by the index by time, and taken out of it by a conditional write on the row itself.

use umavez_domain::codes::Decision;
use umavez_domain::delivery::{Outcome, State, UnknownPolicy, Verdict, code, settle};
use umavez_domain::keys::{self, Wake};
use umavez_domain::messages::ledger::LONGEST;
use umavez_domain::messages::{CHECK_AFTER_MS, MessageRow, check_after_ms};
use umavez_domain::queue;
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::messages::attempts::Settled;
use crate::messages::change::{Change, Changed, as_read, entry, is_state};
use crate::messages::table::Messages;
use crate::store::{Condition, Found, Item, Query, StoreError, Write, Written, attribute};

fn ledger_is_long(item: &Item) -> bool {
    item.get("ledger").and_then(|ledger| ledger.as_l().ok()).is_some_and(|ledger| ledger.len() >= LONGEST)
}

/// What became of a message that had waited too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Handed to its queue again.
    Emitted,
    /// Its attempt is known no more.
    Unknown,
    /// Somebody was faster.
    Left,
}

impl Messages {
    /// What waits in one shard for something that lies at or before `until`, the earliest first.
    pub async fn waiting(
        &self,
        invocation: &Invocation,
        wake: Wake,
        shard: u32,
        until: Option<Timestamp>,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Found>, StoreError> {
        let query = Query::waiting(&self.table, wake, shard).until(until).after(after).limit(limit);
        self.store.nominate(invocation, &query).await
    }

    /// Messages whose outcome nobody knows, the oldest first, from the place after `after` on.
    pub async fn unknown_page(
        &self,
        invocation: &Invocation,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<MessageRow>, Option<String>), StoreError> {
        let page = self.store.waiting_page(invocation, &self.table, Wake::Unknown, after, limit).await?;
        let (found, next) = page;
        let rows = self.rows_of(invocation, found).await?;
        Ok((rows.into_iter().map(|(row, _)| row).filter(|row| row.state == State::Unknown).collect(), next))
    }

    /// The time of a message is near: hands it to its queue, as its row has it prepared. Whether it was this sweep's doing.
    pub async fn emit_due(&self, invocation: &Invocation, found: &Found) -> Result<bool, StoreError> {
        let Some(id) = keys::message_id_of(&found.key) else { return Ok(false) };
        let now = invocation.current();
        let due_at = keys::time_of(&found.place).unwrap_or(now).max(now);
        // It still waits for this very time.
        let as_found =
            Condition::all([is_state(State::Queued)?, Condition::is("wake_at", &found.place), Condition::has("later")]);
        let write = Write::update(&self.table, found.key.clone())
            .copy("emit", "later")
            .remove("later")
            .set("wake", keys::wake(Wake::Check, keys::wake_shard(id)))
            .set("wake_at", keys::at_time(due_at.plus_ms(CHECK_AFTER_MS), id))
            .set("updated_at", now.to_string())
            .increment("version");
        // Who is limited again and again is due again and again: a long ledger does without.
        let entry = attribute(&entry(now, Decision::Due).rule("send_at"))?;
        let told = write.clone().append_value("ledger", entry);
        let short = Condition::all([as_found.clone(), Condition::shorter("ledger", LONGEST)]);
        match self.store.write(invocation, told.when(short)).await? {
            Written::New | Written::Mine => Ok(true),
            Written::Refused(Some(item)) if ledger_is_long(&item) => {
                Ok(!matches!(self.store.write(invocation, write.when(as_found)).await?, Written::Refused(_)))
            }
            Written::Refused(_) => Ok(false),
        }
    }

    /// A message goes back to its queue to wait: it is not to be looked for before that is over.
    pub async fn still_waits(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        until: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(seen) = row.wake_at.as_deref() else { return Ok(()) };
        let looked_for = keys::time_of(seen).unwrap_or(until);
        if looked_for.millis() > until.millis() + CHECK_AFTER_MS / 2 {
            return Ok(());
        }
        let as_seen = Condition::all([is_state(State::Queued)?, Condition::is("wake_at", seen), as_read(row)]);
        let write = Write::update(&self.table, keys::message(&row.id))
            .set("wake_at", keys::at_time(until.plus_ms(CHECK_AFTER_MS), &row.id))
            .increment("version")
            .when(as_seen);
        self.store.write(invocation, write).await.map(drop)
    }

    /// A message was not heard of for too long: hands it to its queue again, or gives its attempt up.
    pub async fn wake(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        policy: UnknownPolicy,
        jitter: u32,
    ) -> Result<Woken, StoreError> {
        let now = invocation.current();
        match row.state {
            State::Queued if row.later.is_none() => self.emit_again(invocation, row, now).await,
            State::Sending if row.deadline.is_some_and(|deadline| deadline <= now.millis()) => {
                let lost = Outcome::Unknown { code: code::SENDER_LOST };
                // A message that was canceled is not sent again, whatever the channel's policy is.
                let policy = if row.recalled.is_some() { UnknownPolicy::Hold } else { policy };
                let verdict = settle(&row.progress(), lost, policy, now, jitter);
                match self.settle(invocation, row, row.attempt, &verdict).await? {
                    Settled::Now => Ok(match verdict {
                        Verdict::Again { .. } => Woken::Emitted,
                        _ => Woken::Unknown,
                    }),
                    Settled::Recalled => Ok(Woken::Unknown),
                    Settled::Already | Settled::TooLate => Ok(Woken::Left),
                }
            }
            _ => Ok(Woken::Left),
        }
    }

    async fn emit_again(&self, invocation: &Invocation, row: &MessageRow, now: Timestamp) -> Result<Woken, StoreError> {
        let seq = row.emits + 1;
        let emit = queue::emit(&row.id, row.priority, seq, row.send_at.max(row.not_before).map(Timestamp::millis));
        let next = now.plus_ms(check_after_ms(row.recoveries + 1));
        let entry = entry(now, Decision::Recovered).rule("check_at");
        let write = self
            .change(row, &entry, now)?
            .set_value("emit", attribute(&emit)?)
            .set_number("emits", seq)
            .set_number("recoveries", row.recoveries + 1)
            .set("wake_at", keys::at_time(next, &row.id))
            .when(Condition::all([is_state(State::Queued)?, as_read(row)]));
        match self.make(invocation, Change::of(write)).await? {
            Changed::Done => Ok(Woken::Emitted),
            Changed::Lost(_) => Ok(Woken::Left),
        }
    }
}
