//! The unit of work: a shard under its lease. A sender takes it, goes through its entries, and gives it back; whatever it
//! writes about the shard names the lease's epoch.

use futures::future::try_join_all;
use umavez_domain::keys;
use umavez_domain::lease::Lease;
use umavez_domain::mailings::jobs::ShardWork;
use umavez_domain::mailings::{
    AfterPass, Completion, EntryCounts, ImportState, LEASE_MS, MailingEvent, MailingId, MailingRow, MailingState, Move,
    Recover, ShardRow, ShardState, Take, after_pass, completion, is_abandoned, move_mailing, next_in_lane,
    recover_shard, take, to_hand_out,
};
use umavez_domain::time::Timestamp;

use super::{BY_TIME, Mailings, ROUNDS};
use crate::invocation::Invocation;
use crate::lease::Held;
use crate::store::{Condition, Found, IndexOf, Returned, StoreError, Transacted, Write, Written, read_row};

/// A shard that is this sender's, as of its last write.
#[derive(Debug)]
pub struct ShardTurn {
    pub held: Held,
    pub row: ShardRow,
}

#[derive(Debug)]
pub enum Taken {
    Mine(Box<ShardTurn>),
    Busy(Timestamp),
    /// Nothing is left to do in it; whether that ends the mailing is to be seen.
    Finished,
    NothingToDo,
}

/// What came of the end of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    Yes,
    /// Some of its entries are looked at again later.
    Again,
    /// Its entries have changed since they were counted, or there is a new order: count again, or go through it again.
    Changed,
    /// Another has taken over.
    Lost,
}

/// What recovery did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovered {
    Shard,
    Import,
    /// A file did not come.
    GivenUp,
    HandedOut,
    Completed,
    Mismatch,
    Left,
}

impl Mailings {
    pub async fn shard(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        shard: u32,
    ) -> Result<Option<ShardRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::mailing_shard(id, shard)).await
    }

    /// Takes the lease of a shard, if there is something to do and nobody does it.
    pub async fn take_shard(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        work: &ShardWork,
    ) -> Result<Taken, StoreError> {
        let shard = work.shard;
        let Some(seen) = self.shard(invocation, &mailing.mailing_id, shard).await? else {
            return Ok(Taken::NothingToDo);
        };
        let now = invocation.current();
        let (epoch, until) = match take(seen.state, seen.lease.as_ref(), mailing.state, now) {
            Take::Lease { epoch, until } => (epoch, until),
            Take::Busy { until } => return Ok(Taken::Busy(until)),
            Take::Leave if seen.state == ShardState::Finished => return Ok(Taken::Finished),
            Take::Leave => return Ok(Taken::NothingToDo),
        };
        // It was handed over again since: whoever has that word does it, at its time.
        if work.seq < seen.emits && work.seq > 0 {
            return Ok(Taken::NothingToDo);
        }
        let held = Held { owner: invocation.request_id.clone(), epoch, until };
        let lease = Lease { lease_owner: held.owner.clone(), lease_epoch: epoch, lease_until: until.millis() };
        let mut row = ShardRow {
            state: ShardState::Processing,
            lease: Some(lease),
            last_attempt: Some(now),
            emit: None,
            ..seen.clone()
        };
        // An order that came since is about all of its entries.
        if seen.cursor_order != seen.retried {
            row.cursor = None;
        }
        row.waits(until);
        let write = Write::changes(&self.table, keys::mailing_shard(&mailing.mailing_id, shard), &seen, &row)?;
        match self.store.write(invocation, write.when(unleased_as_read(&seen))).await? {
            Written::New | Written::Mine => Ok(Taken::Mine(Box::new(ShardTurn { held, row }))),
            Written::Refused(_) => Ok(Taken::Busy(now.plus_ms(1_000))),
        }
    }

    /// Extends the lease, and tells how far the pass is. Whether the shard is still this sender's.
    pub async fn keep_shard(&self, invocation: &Invocation, turn: &mut ShardTurn) -> Result<bool, StoreError> {
        let until = invocation.current().plus_ms(LEASE_MS);
        let mut row = turn.row.clone();
        row.waits(until);
        let (wake, wake_at) = (row.wake.clone().unwrap_or_default(), row.wake_at.clone().unwrap_or_default());
        let write = self.turn_write(turn, until)?.set("wake", wake).set("wake_at", wake_at).set_number("recoveries", 0);
        match self.store.update_returning(invocation, write.when(working(&turn.held))).await? {
            Returned::Row(item) => {
                // What events and orders say of it meanwhile is told at its end.
                let met: ShardRow = read_row(item)?;
                turn.held.until = until;
                turn.row = ShardRow { emits: met.emits, emit: met.emit, ..row };
                Ok(true)
            }
            Returned::Refused(_) => Ok(false),
        }
    }

    /// Gives the shard back in the middle of a pass: to whoever is handed it next, no earlier than `again`, or to nobody
    /// while the mailing is held. Whether it was still this sender's.
    pub async fn give_back(
        &self,
        invocation: &Invocation,
        turn: &ShardTurn,
        again: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        for _ in 0..ROUNDS {
            let id = &turn.row.mailing_id;
            let Some(seen) = self.shard(invocation, id, turn.row.shard).await? else { return Ok(false) };
            if !is_mine(&seen, &turn.held) || seen.state != ShardState::Processing {
                return Ok(false);
            }
            let now = invocation.current();
            let ShardRow { counts, cursor, .. } = turn.row.clone();
            let cursor_order = turn.row.retried;
            let mut after =
                ShardRow { state: ShardState::Pending, counts, cursor, cursor_order, recoveries: 0, ..seen.clone() };
            if let Some(lease) = &mut after.lease {
                lease.lease_until = now.millis();
            }
            match again {
                Some(at) => after.hand_over(Some(at).filter(|at| *at > now), None, now),
                // Handed out meanwhile, it is looked for as any other; else nobody is to look for it.
                None if seen.emits != turn.row.emits => after.hand_over(None, None, now),
                None => after.rests(),
            }
            // It is still this sender's, and handed out as it was read.
            let mine = Condition::all([working(&turn.held), Condition::is_number("emits", seen.emits)]);
            let write = Write::changes(&self.table, keys::mailing_shard(id, seen.shard), &seen, &after)?;
            if !matches!(self.store.write(invocation, write.when(mine)).await?, Written::Refused(_)) {
                return Ok(true);
            }
        }
        Err(StoreError::Conflict)
    }

    /// What a turn knows of its shard, with a lease until then.
    fn turn_write(&self, turn: &ShardTurn, until: Timestamp) -> Result<Write, StoreError> {
        let row = &turn.row;
        let write = Write::update(&self.table, keys::mailing_shard(&row.mailing_id, row.shard))
            .set_row(&row.counts, &[])?
            .set_number("cursor_order", row.retried)
            .set_number("lease_until", until.millis());
        Ok(match &row.cursor {
            Some(cursor) => write.set("cursor", cursor),
            None => write.remove("cursor"),
        })
    }

    /// The shard was gone through and counted. It is finished, or handed over again for what waits; and the next of its
    /// lane is handed over with that.
    pub async fn pass_ended(
        &self,
        invocation: &Invocation,
        turn: &ShardTurn,
        counts: EntryCounts,
        next_look: Option<Timestamp>,
    ) -> Result<Finished, StoreError> {
        let id = &turn.row.mailing_id;
        for _ in 0..ROUNDS {
            let shards = self.shards(invocation, id).await?;
            let Some(seen) = shards.iter().find(|one| one.shard == turn.row.shard) else { return Ok(Finished::Lost) };
            if !is_mine(seen, &turn.held) || seen.state != ShardState::Processing {
                return Ok(Finished::Lost);
            }
            let same = seen.touched == turn.row.touched
                && (seen.retried, seen.retried_unknown) == (turn.row.retried, turn.row.retried_unknown);
            if !same {
                return Ok(Finished::Changed);
            }
            let now = invocation.current();
            let mut after = ShardRow { counts, cursor: None, passed: true, recoveries: 0, ..seen.clone() };
            if let Some(lease) = &mut after.lease {
                lease.lease_until = now.millis();
            }
            let ended = match after_pass(&counts, next_look, now) {
                AfterPass::Finished => {
                    after.state = ShardState::Finished;
                    after.rests();
                    Finished::Yes
                }
                AfterPass::Again { not_before } => {
                    after.state = ShardState::Pending;
                    after.hand_over(Some(not_before).filter(|at| *at > now), None, now);
                    Finished::Again
                }
            };
            // It is this sender's, and as it was when its entries were counted.
            let counted = Condition::all([
                working(&turn.held),
                Condition::is_number("touched", seen.touched),
                Condition::is_number("retried", seen.retried),
                Condition::is_number("retried_unknown", seen.retried_unknown),
                Condition::is_number("emits", seen.emits),
            ]);
            let key = keys::mailing_shard(id, seen.shard);
            let mut writes = vec![Write::changes(&self.table, key, seen, &after)?.when(counted)];
            if let Some(next) = next_in_lane(seen.shard, &shards) {
                writes.push(self.handing_over(next, None, now)?);
            }
            if self.store.transact(invocation, writes).await? == Transacted::Done {
                return Ok(ended);
            }
        }
        Err(StoreError::Conflict)
    }

    /// Hands a shard over, if nobody has done so since it was read.
    fn handing_over(&self, seen: &ShardRow, id: Option<String>, now: Timestamp) -> Result<Write, StoreError> {
        let mut after = seen.clone();
        let lease_over = seen.lease.as_ref().is_none_or(|lease| lease.is_over(now));
        after.hand_over(None, id, now);
        // Whoever works on it is looked after by its lease.
        if seen.state == ShardState::Processing && !lease_over {
            (after.wake, after.wake_at) = (seen.wake.clone(), seen.wake_at.clone());
        }
        let write = Write::changes(&self.table, keys::mailing_shard(&seen.mailing_id, seen.shard), seen, &after)?;
        let unchanged =
            Condition::all([Condition::is_number("emits", seen.emits), Condition::is("state", seen.state.as_str())]);
        Ok(write.when(unchanged))
    }

    /// Hands the shards of a mailing to senders that stand still: after content, resume, cancel, or an order to send failed
    /// entries again. Done twice, a shard is handed over twice, which its lease makes the same.
    pub async fn hand_out(&self, invocation: &Invocation, id: &MailingId) -> Result<usize, StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(0) };
        if !is_worked_on(&row) {
            return Ok(0);
        }
        let now = invocation.current();
        let shards = self.shards(invocation, id).await?;
        let reopened = shards.iter().map(|shard| self.follow_order(invocation, &row, shard));
        let shards = try_join_all(reopened).await?;
        let to_hand_out = to_hand_out(&shards);
        for shard in &to_hand_out {
            self.hand_over(invocation, shard, now).await?;
        }
        match to_hand_out.is_empty() {
            // Every shard is finished: it only has to be ended.
            true => drop(self.complete(invocation, id).await?),
            false => self.handed_out(invocation, row).await?,
        }
        Ok(to_hand_out.len())
    }

    /// Until it is handed over, by whoever: a sender may have given it back since it was read.
    async fn hand_over(&self, invocation: &Invocation, shard: &ShardRow, now: Timestamp) -> Result<(), StoreError> {
        let mut seen = shard.clone();
        for _ in 0..ROUNDS {
            let write = self.handing_over(&seen, None, now)?;
            match self.store.write(invocation, write).await? {
                Written::New | Written::Mine => return Ok(()),
                Written::Refused(None) => return Ok(()),
                Written::Refused(Some(item)) => seen = read_row(item)?,
            }
            if seen.state == ShardState::Finished || seen.emits != shard.emits {
                return Ok(());
            }
        }
        Err(StoreError::Conflict)
    }

    /// The mailing's own word is done with, unless there is a newer one.
    async fn handed_out(&self, invocation: &Invocation, row: MailingRow) -> Result<(), StoreError> {
        let (emits, mut row) = (row.emits, row);
        for _ in 0..ROUNDS {
            let mut after = MailingRow { emit: None, recoveries: 0, ..row.clone() };
            if is_worked_on(&row) {
                after.is_watched(invocation.current());
            }
            match self.change(invocation, &row, after).await? {
                // Whoever ended it meanwhile has seen to that nobody looks for it.
                Err(Some(met)) if met.emits == emits && met.wake.is_some() => row = met,
                Ok(_) | Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Reopens a shard that has entries which an order is about, or tells it of the order.
    async fn follow_order(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        shard: &ShardRow,
    ) -> Result<ShardRow, StoreError> {
        if shard.retried >= mailing.retry {
            return Ok(shard.clone());
        }
        let unknown = mailing.retry_unknown > shard.retried_unknown && shard.counts.unknown > 0;
        let concerned = shard.counts.failed > 0 || unknown;
        let mut after = ShardRow { retried: mailing.retry, retried_unknown: mailing.retry_unknown, ..shard.clone() };
        if shard.state == ShardState::Finished && concerned {
            after = ShardRow { state: ShardState::Pending, begun: false, passed: false, cursor: None, ..after };
        }
        let unchanged = Condition::all([
            Condition::is("state", shard.state.as_str()),
            Condition::is_number("retried", shard.retried),
            Condition::is_number("touched", shard.touched),
        ]);
        let key = keys::mailing_shard(&shard.mailing_id, shard.shard);
        let write = Write::changes(&self.table, key, shard, &after)?.when(unchanged);
        match self.store.write(invocation, write).await? {
            Written::New | Written::Mine => Ok(after),
            // The whole is done again.
            Written::Refused(_) => Err(StoreError::Conflict),
        }
    }

    /// A sender has taken a shard: the mailing is being sent. `None`: it is not to be, by now.
    pub async fn begin(&self, invocation: &Invocation, row: MailingRow) -> Result<Option<MailingRow>, StoreError> {
        let mut row = row;
        for _ in 0..ROUNDS {
            let state = match move_mailing(row.state, MailingEvent::Begun, row.is_ready()) {
                Move::To(state) => state,
                Move::Already => return Ok(Some(row)),
                Move::Refused => return Ok(None),
            };
            let now = invocation.current();
            let started_at = row.started_at.or(Some(now));
            let mut after = MailingRow { state, started_at, last_attempt: Some(now), ..row.clone() };
            if row.wake.is_none() {
                after.is_watched(now);
            }
            match self.change(invocation, &row, after).await? {
                Ok(row) => return Ok(Some(row)),
                Err(Some(met)) => row = met,
                Err(None) => return Ok(None),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Ends the mailing if all of its shards are finished and their counts add up. What was found is told in any case.
    pub async fn complete(
        &self,
        invocation: &Invocation,
        id: &MailingId,
    ) -> Result<Option<(Completion, Option<MailingRow>)>, StoreError> {
        for _ in 0..ROUNDS {
            let Some(row) = self.get(invocation, id).await? else { return Ok(None) };
            let shards = self.shards(invocation, id).await?;
            let finished: Vec<_> = shards
                .iter()
                .filter(|shard| shard.state == ShardState::Finished)
                .map(|shard| (shard.shard, shard.counts))
                .collect();
            let found = completion(row.shards, &finished, row.progress.entries());
            if row.import != ImportState::Done || !matches!(found, Completion::Complete(_)) {
                return Ok(Some((found, None)));
            }
            // An order that a shard has not followed yet will reopen it.
            let ordered = shards.iter().any(|shard| shard.retried < row.retry);
            let mut after = row.clone();
            match move_mailing(row.state, MailingEvent::Finished, row.is_ready()) {
                _ if ordered && row.state != MailingState::Canceled => return Ok(Some((found, None))),
                Move::To(state) => {
                    (after.state, after.finished_at) = (state, Some(invocation.current()));
                    after.rests();
                }
                _ if row.wake.is_some() => after.rests(),
                _ => return Ok(Some((found, None))),
            }
            let ended = after.state != row.state;
            if let Ok(row) = self.change(invocation, &row, after).await? {
                return Ok(Some((found, Some(row).filter(|_| ended))));
            }
        }
        Err(StoreError::Conflict)
    }

    /// Mailings and shards that were not heard of until now.
    pub async fn overdue(
        &self,
        invocation: &Invocation,
        partition: u32,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Found>, StoreError> {
        let of = IndexOf {
            table: &self.table,
            index: BY_TIME,
            partition: ("wake", keys::wake(keys::Wake::Check, partition)),
            place: "wake_at",
            after,
            before: Some(keys::until_time(invocation.now)),
            newest_first: false,
            limit,
        };
        self.store.indexed(invocation, of).await
    }

    /// Hands over again what was lost sight of.
    pub async fn recover(&self, invocation: &Invocation, found: &Found) -> Result<Recovered, StoreError> {
        match keys::mailing_of(&found.key) {
            Some((id, Some(shard))) => self.recover_shard(invocation, &id, shard, found).await,
            Some((id, None)) => self.recover_mailing(invocation, &id, found).await,
            None => Ok(Recovered::Left),
        }
    }

    async fn recover_shard(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        shard: u32,
        found: &Found,
    ) -> Result<Recovered, StoreError> {
        let (Some(mailing), Some(seen)) = (self.get(invocation, id).await?, self.shard(invocation, id, shard).await?)
        else {
            return Ok(Recovered::Left);
        };
        if seen.wake_at.as_deref() != Some(&found.place) {
            return Ok(Recovered::Left);
        }
        let now = invocation.now;
        let lost = recover_shard(id, shard, seen.state, seen.lease.as_ref(), now);
        let mut after = ShardRow { recoveries: seen.recoveries + 1, ..seen.clone() };
        let unchanged = match (&lost, seen.state) {
            (Recover::Requeue { .. }, _) => {
                (after.state, after.last_attempt) = (ShardState::Pending, None);
                unleased_as_read(&seen)
            }
            // Handed over, and not taken on.
            (Recover::Leave, ShardState::Pending) => {
                Condition::all([Condition::is_number("emits", seen.emits), Condition::is("state", seen.state.as_str())])
            }
            // Nobody is to look for it.
            (Recover::Leave, ShardState::Finished) => {
                after.recoveries = seen.recoveries;
                Condition::is("state", ShardState::Finished.as_str())
            }
            (Recover::Leave, ShardState::Processing) => return Ok(Recovered::Left),
        };
        let emit_id = match lost {
            Recover::Requeue { emit_id, .. } => Some(emit_id),
            Recover::Leave => None,
        };
        match is_worked_on(&mailing) && seen.state != ShardState::Finished {
            true => after.hand_over(None, emit_id, now),
            false => after.rests(),
        }
        let key = keys::mailing_shard(id, shard);
        let write = Write::changes(&self.table, key, &seen, &after)?.when(unchanged);
        let refused = matches!(self.store.write(invocation, write).await?, Written::Refused(_));
        if refused || seen.state == ShardState::Finished {
            return Ok(Recovered::Left);
        }
        self.abandon(invocation, id).await?;
        Ok(Recovered::Shard)
    }

    /// A mailing that nobody works on is not being worked on.
    async fn abandon(&self, invocation: &Invocation, id: &MailingId) -> Result<(), StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(()) };
        let shards = self.shards(invocation, id).await?;
        let leases = shards.iter().map(|shard| (shard.state, shard.lease.as_ref()));
        if !is_abandoned(row.state, leases, invocation.now) {
            return Ok(());
        }
        if let Move::To(state) = move_mailing(row.state, MailingEvent::Abandoned, row.is_ready()) {
            let after = MailingRow { state, last_attempt: None, ..row.clone() };
            // Changed meanwhile: somebody works on it.
            self.change(invocation, &row, after).await?.ok();
        }
        Ok(())
    }

    async fn recover_mailing(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        found: &Found,
    ) -> Result<Recovered, StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(Recovered::Left) };
        if row.wake_at.as_deref() != Some(&found.place) {
            return Ok(Recovered::Left);
        }
        let now = invocation.now;
        let mut after = MailingRow { recoveries: row.recoveries + 1, ..row.clone() };
        let recovered = match row.import {
            ImportState::AwaitingUpload => {
                let missing = Self::missing(umavez_domain::codes::Reason::InputMissing);
                let failed = self.import_failed(invocation, None, id, missing).await?;
                return Ok(failed.map_or(Recovered::Left, |_| Recovered::GivenUp));
            }
            ImportState::Queued | ImportState::Running => {
                after.hand_to_importer(now);
                Recovered::Import
            }
            ImportState::Failed => return Ok(Recovered::Left),
            ImportState::Done => {
                let shards = self.shards(invocation, id).await?;
                let ordered = shards.iter().any(|shard| shard.retried < row.retry);
                match self.complete(invocation, id).await? {
                    Some((Completion::Complete(_), Some(_))) => return Ok(Recovered::Completed),
                    // An order that no shard was told of is told again.
                    Some((Completion::Complete(_), None)) if !ordered => return Ok(Recovered::Left),
                    Some((Completion::Complete(_), None)) => {}
                    Some((Completion::Mismatch { .. }, _)) => {
                        after.is_watched(now);
                        self.change(invocation, &row, after).await?.ok();
                        return Ok(Recovered::Mismatch);
                    }
                    Some((Completion::Open(_), _)) | None => {}
                }
                let still = to_hand_out(&shards).into_iter().any(|shard| shard.wake.is_none());
                let told = row.emit.is_some() || ordered;
                match is_worked_on(&row) && (still || told) {
                    true => after.hand_out(now),
                    false => {
                        after.recoveries = 0;
                        after.is_watched(now);
                    }
                }
                if still || told { Recovered::HandedOut } else { Recovered::Left }
            }
        };
        match self.change(invocation, &row, after).await? {
            Ok(_) => Ok(recovered),
            Err(_) => Ok(Recovered::Left),
        }
    }
}

/// Its shards are to be gone through: to be sent, or to be told that they will not be.
fn is_worked_on(row: &MailingRow) -> bool {
    let canceled = row.state == MailingState::Canceled;
    let open = matches!(row.state, MailingState::Pending | MailingState::Queued | MailingState::Processing);
    row.import == ImportState::Done && (canceled || open && row.is_ready())
}

/// It is this sender's, and being worked on: recovery takes it from a sender that is late, and what is finished stays so.
fn working(held: &Held) -> Condition {
    Condition::all([held.fence(), Condition::is("state", ShardState::Processing.as_str())])
}

/// Nobody has taken or renewed its lease since it was read.
fn unleased_as_read(seen: &ShardRow) -> Condition {
    let state = Condition::is("state", seen.state.as_str());
    match &seen.lease {
        None => Condition::all([state, Condition::has_not("lease_epoch")]),
        Some(lease) => Condition::all([
            state,
            Condition::is_number("lease_epoch", lease.lease_epoch),
            Condition::is_number("lease_until", lease.lease_until),
        ]),
    }
}

fn is_mine(row: &ShardRow, held: &Held) -> bool {
    row.lease.as_ref().is_some_and(|lease| lease.lease_owner == held.owner && lease.lease_epoch == held.epoch)
}
