//! Limits how many shards of a mailing are processed at a time. The shards are divided into a few
//! groups, and each group has at most one active shard: one that is enqueued or with a worker. A
//! mailing therefore takes no more workers than there are groups, however large it is, and a small
//! mailing beside it gets its turn.
//!
//! No shard is forgotten: as long as a group has an unfinished shard, the write that ends the turn
//! of one shard also enqueues the next. That may be the same shard again, at its time.

use super::entry::EntryState;
use super::mailing::EntryCounts;
use super::rows::ShardRow;
use super::shard::ShardState;
use crate::lease::Lease;
use crate::time::Timestamp;

/// How many shards of one mailing are active at a time. A mailing begins with its first ones, one
/// of each group.
pub const SHARD_GROUPS: u32 = 3;

/// What a group of shards has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardGroup<'s> {
    /// This shard is active.
    Busy(&'s ShardRow),
    /// This shard is to be enqueued, no earlier than the time.
    Next(&'s ShardRow, Option<Timestamp>),
    Finished,
}

/// Returns the state of the group that contains `shard`. `shards` are all shards of the mailing, in
/// order.
///
/// A shard that was begun and does not wait comes first, then one that was not begun. If all of
/// them wait, the one with the shortest wait comes next.
pub fn shard_group(shard: u32, shards: &[ShardRow], now: Timestamp) -> ShardGroup<'_> {
    let group = shard % SHARD_GROUPS;
    let open = || shards.iter().filter(|one| one.shard % SHARD_GROUPS == group && one.state != ShardState::Finished);
    if let Some(one) = open().find(|one| one.is_active()) {
        return ShardGroup::Busy(one);
    }
    let waits = |one: &&ShardRow| one.due.is_some_and(|due| due > now);
    let begun = open().filter(|one| one.begun && !waits(one)).min_by_key(|one| (one.due, one.shard));
    if let Some(one) = begun.or_else(|| open().find(|one| !one.begun)) {
        return ShardGroup::Next(one, None);
    }
    open().min_by_key(|one| (one.due, one.shard)).map_or(ShardGroup::Finished, |one| ShardGroup::Next(one, one.due))
}

/// Returns the shards to enqueue when a mailing is started again, one per group: the active one,
/// whose worker may be about to release it, or else the next. `shards` are all shards, in order.
pub fn shards_to_enqueue(shards: &[ShardRow], now: Timestamp) -> Vec<(&ShardRow, Option<Timestamp>)> {
    let one_of = |group| match shard_group(group, shards, now) {
        // Enqueue it without delay even if it waits for its time: a shard behind it may not have to
        // wait.
        ShardGroup::Busy(one) => Some((one, None)),
        ShardGroup::Next(one, at) => Some((one, at)),
        ShardGroup::Finished => None,
    };
    (0..SHARD_GROUPS).filter_map(one_of).collect()
}

/// A recount of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub counts: EntryCounts,
    /// The earliest time for which an entry waits.
    pub next_look: Option<Timestamp>,
}

impl Tally {
    /// Counts an entry. `not_before` is the time of its next attempt, and `deadline` the time at
    /// which its attempt under way is lost.
    pub fn add(
        &mut self,
        state: EntryState,
        not_before: Option<Timestamp>,
        deadline: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.counts.add(state);
        let waits_for = match state {
            EntryState::Pending => not_before,
            EntryState::Sending => deadline,
            _ => return,
        };
        let at = waits_for.unwrap_or(now);
        self.next_look = Some(self.next_look.map_or(at, |earlier| earlier.min(at)));
    }
}

/// What the end of a pass over a shard writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PassEnding<'s> {
    /// The change of the shard. It must commit in one transaction with that of its sibling.
    Ends { before: &'s ShardRow, after: Box<ShardRow>, sibling: Sibling<'s> },
    /// The entries have changed since they were counted, or there is a new retry order.
    Changed,
    /// Another worker has taken over.
    Lost,
}

/// Another shard of the same group, in the transaction that ends a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sibling<'s> {
    /// It is enqueued.
    Enqueued {
        before: &'s ShardRow,
        after: Box<ShardRow>,
    },
    /// Check that it is still active. Otherwise two shards could rely on each other and both be
    /// forgotten.
    Active(&'s ShardRow),
    None,
}

/// Ends a worker's pass over the shard `worked`, which it knows as of its recount. The shard is
/// finished, or waits. The next shard of the group is enqueued, which may be the same one at a
/// later time. `shards` are all shards of the mailing, in order.
pub fn end_of_pass<'s>(
    worked: &ShardRow,
    held: &Lease,
    shards: &'s [ShardRow],
    tally: Tally,
    now: Timestamp,
) -> PassEnding<'s> {
    let own = shards.iter().find(|shard| shard.shard == worked.shard && shard.is_held_by(held));
    let Some(before) = own else { return PassEnding::Lost };
    let worked_on = |row: &ShardRow| (row.touched, row.retried, row.retried_unknown);
    if worked_on(before) != worked_on(worked) {
        return PassEnding::Changed;
    }
    let mut after = before.passed(tally.counts, tally.next_look, now);
    let passed = |shard: &ShardRow| if shard.shard == worked.shard { after.clone() } else { shard.clone() };
    let group: Vec<_> = shards.iter().map(passed).collect();
    let read = |number: u32| shards.iter().find(|shard| shard.shard == number);
    let sibling = match shard_group(worked.shard, &group, now) {
        ShardGroup::Next(next, not_before) if next.shard == worked.shard => {
            after = after.enqueued(not_before, now);
            Sibling::None
        }
        ShardGroup::Next(next, not_before) => {
            let after = Box::new(next.enqueued(not_before, now));
            read(next.shard).map_or(Sibling::None, |before| Sibling::Enqueued { before, after })
        }
        ShardGroup::Busy(one) => read(one.shard).map_or(Sibling::None, Sibling::Active),
        ShardGroup::Finished => Sibling::None,
    };
    PassEnding::Ends { before, after: Box::new(after), sibling }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailings::{EntryCounts, MailingId};
    use ShardState::{Finished, Pending, Processing};

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn shard(shard: u32) -> ShardRow {
        ShardRow::new(&MailingId::of("a.csv", 0), shard, EntryCounts::default())
    }

    /// A shard that was begun and released.
    fn begun(number: u32, due: Option<Timestamp>) -> ShardRow {
        ShardRow { begun: true, due, ..shard(number) }
    }

    fn handed(number: u32, state: ShardState) -> ShardRow {
        let mut one = ShardRow { state, ..shard(number) };
        one.enqueue(None, None, NOW);
        one
    }

    fn finished(number: u32) -> ShardRow {
        ShardRow { state: Finished, begun: true, ..shard(number) }
    }

    fn next(group: ShardGroup<'_>) -> Option<(u32, Option<Timestamp>)> {
        match group {
            ShardGroup::Next(one, at) => Some((one.shard, at)),
            ShardGroup::Busy(_) | ShardGroup::Finished => None,
        }
    }

    fn numbers(shards: &[ShardRow]) -> Vec<u32> {
        shards_to_enqueue(shards, NOW).into_iter().map(|(one, _)| one.shard).collect()
    }

    /// Simulates workers that sometimes finish a shard and sometimes leave it for later, with
    /// pauses in between.
    #[test]
    fn every_shard_is_finished_and_each_group_has_at_most_one_active_shard() {
        let mut dice = fastrand::Rng::with_seed(7);
        for count in [1, 3, 4, 5, 11, 99] {
            let (mut shards, mut now) = ((0..count).map(shard).collect::<Vec<_>>(), NOW);
            shards.iter_mut().take(SHARD_GROUPS as usize).for_each(|shard| shard.enqueue(None, None, NOW));
            let mut rounds = 0;
            while shards.iter().any(|one| one.state != Finished) {
                rounds += 1;
                assert!(rounds < 5_000, "{count} shards do not finish");
                let active: Vec<_> = shards.iter().filter(|one| one.is_active()).map(|one| one.shard).collect();
                assert!((1..=SHARD_GROUPS as usize).contains(&active.len()), "{active:?} at a time");
                if dice.u8(..8) == 0 {
                    // A pause, which releases all shards, and a resume.
                    shards.iter_mut().for_each(|shard| shard.work.rest());
                    let again: Vec<_> =
                        shards_to_enqueue(&shards, now).into_iter().map(|(one, at)| (one.shard, at)).collect();
                    again.into_iter().for_each(|(one, at)| shards[one as usize].enqueue(at, None, now));
                    continue;
                }
                let at = active[dice.usize(..active.len())] as usize;
                now = now.plus_ms(1_000);
                shards[at].work.rest();
                match dice.u8(..3) {
                    0 => shards[at].due = Some(now.plus_ms(dice.i64(0..20_000))),
                    _ => shards[at].state = Finished,
                }
                if let Some((one, at)) = next(shard_group(at as u32, &shards, now)) {
                    shards[one as usize].enqueue(at, None, now);
                }
            }
        }
    }

    #[test]
    fn a_shard_that_waits_for_a_retry_does_not_delay_its_group_and_is_not_lost() {
        let later = NOW.plus_ms(5_000);
        let group = [begun(0, Some(later)), finished(3), shard(6)];
        assert_eq!(next(shard_group(3, &group, NOW)), Some((6, None)));
        assert_eq!(next(shard_group(3, &group, later)), Some((0, None)), "its retry is due");
        let group = [begun(0, Some(later)), finished(3), begun(6, Some(later.plus_ms(-1)))];
        assert_eq!(next(shard_group(6, &group, NOW)), Some((6, Some(later.plus_ms(-1)))), "all shards wait");
        let group = [begun(0, Some(NOW)), handed(3, Processing), shard(6)];
        assert_eq!(shard_group(0, &group, NOW), ShardGroup::Busy(&group[1]), "the group has an active shard");
        assert_eq!(shard_group(0, &[finished(0), finished(3)], NOW), ShardGroup::Finished);
    }

    #[test]
    fn a_resumed_mailing_enqueues_one_shard_of_each_group() {
        let all = [
            finished(0),
            handed(1, Processing),
            begun(2, Some(NOW)),
            shard(3),
            begun(4, Some(NOW)),
            shard(5),
            begun(6, None),
            begun(7, None),
        ];
        assert_eq!(numbers(&all), [6, 1, 2]);
        assert_eq!(numbers(&[handed(0, Pending), begun(3, None), shard(1)]), [0, 1]);
        assert_eq!(numbers(&all[..1]), [0_u32; 0]);
    }
}
