//! The unit of work: one shard of one mailing, under a lease. Recovery releases shards that no
//! worker processes. It never changes an entry, because an entry that is `SENDING` may have been
//! sent.

use super::identity::MailingId;
use super::mailing::{EntryCounts, MailingState};
use crate::codes::codes;
use crate::lease::Lease;
use crate::time::Timestamp;

/// The duration of a lease, renewed between sub-batches. It applies both to a worker that wants the
/// shard and to recovery.
pub const LEASE_MS: i64 = 30_000;

/// How many mails are sent between two checks for pause, cancel and suppression. At most this many
/// leave after such a request.
pub const SUB_BATCH: usize = 25;

codes! {
    ShardState {
        Pending = "PENDING",
        Processing = "PROCESSING",
        /// Every entry of the shard is settled.
        Finished = "FINISHED",
    }
}

/// What a worker does with the shard of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Take {
    /// Write this lease, conditional on the one before it.
    Lease(Lease),
    /// Another worker has the lease. The queue message is not deleted: it is redelivered when the
    /// lease may have ended.
    Busy { until: Timestamp },
    /// There is nothing to do.
    Leave,
}

pub fn take(shard: ShardState, lease: Option<&Lease>, mailing: MailingState, owner: &str, now: Timestamp) -> Take {
    let works = matches!(
        mailing,
        MailingState::Pending
            | MailingState::Queued
            | MailingState::Processing
            | MailingState::Canceled
            | MailingState::Failed
    );
    // Only a shard that is being processed is leased: a sender that gives it back ends its lease.
    let current = lease.map(|lease| if shard == ShardState::Processing { lease.clone() } else { lease.ending(now) });
    match shard {
        ShardState::Finished => Take::Leave,
        _ if !works => Take::Leave,
        _ => match Lease::taken(current.as_ref(), owner, now, LEASE_MS) {
            Ok(lease) => Take::Lease(lease),
            Err(until) => Take::Busy { until },
        },
    }
}

/// What happens to a shard after a worker's pass over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterPass {
    /// Write `FINISHED` with the counts, conditional on the lease's epoch.
    Finished,
    /// Write `PENDING` with an emit that is delivered no earlier than the time, conditional on the
    /// lease's epoch.
    Again { not_before: Timestamp },
}

/// Decides what happens after a pass. `counts` are a recount under the lease; `next_look` is the
/// earliest time that an entry waits for.
pub fn after_pass(counts: &EntryCounts, next_look: Option<Timestamp>, now: Timestamp) -> AfterPass {
    match counts.open() {
        0 => AfterPass::Finished,
        _ => AfterPass::Again { not_before: next_look.map_or(now, |at| at.max(now)) },
    }
}

/// What recovery does with a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recover {
    /// Write `PENDING` without a last attempt and with an emit of this id, conditional on
    /// `PROCESSING` with this epoch and this end of the lease. If the lease was renewed since, its
    /// worker is alive and the write fails. A second run of recovery is a no-op.
    Requeue {
        epoch: u64,
        lease_until: i64,
        emit_id: String,
    },
    Leave,
}

pub fn recover_shard(
    mailing: &MailingId,
    shard: u32,
    state: ShardState,
    lease: Option<&Lease>,
    now: Timestamp,
) -> Recover {
    match (state, lease) {
        (ShardState::Processing, Some(lease)) if lease.is_over(now) => Recover::Requeue {
            epoch: lease.lease_epoch,
            lease_until: lease.lease_until,
            emit_id: format!("requeue#{mailing}#{shard:02}#{}", lease.lease_epoch),
        },
        _ => Recover::Leave,
    }
}

/// Returns whether a mailing is `PROCESSING` although no worker processes any of its shards.
/// `shards` are all of its shards.
pub fn is_abandoned<'a>(
    mailing: MailingState,
    shards: impl IntoIterator<Item = (ShardState, Option<&'a Lease>)>,
    now: Timestamp,
) -> bool {
    let alive =
        |state, lease: Option<&Lease>| state == ShardState::Processing && lease.is_some_and(|l| !l.is_over(now));
    let (mut unfinished, mut any_alive) = (false, false);
    for (state, lease) in shards {
        unfinished |= state != ShardState::Finished;
        any_alive |= alive(state, lease);
    }
    mailing == MailingState::Processing && unfinished && !any_alive
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn lease(left_ms: i64) -> Lease {
        Lease { lease_owner: "a".into(), lease_epoch: 4, lease_until: NOW.plus_ms(left_ms).millis() }
    }

    #[test]
    fn one_sender_has_a_shard_and_the_next_has_the_next_epoch() {
        let take = |state, lease: Option<&Lease>| take(state, lease, MailingState::Processing, "b", NOW);
        let taken = |lease_epoch| {
            let lease_until = NOW.plus_ms(LEASE_MS).millis();
            Take::Lease(Lease { lease_owner: "b".into(), lease_epoch, lease_until })
        };
        assert_eq!(take(ShardState::Pending, None), taken(1));
        assert_eq!(take(ShardState::Processing, Some(&lease(1))), Take::Busy { until: NOW.plus_ms(1) });
        assert_eq!(take(ShardState::Processing, Some(&lease(0))), taken(5));
        assert_eq!(take(ShardState::Pending, Some(&lease(-9))), taken(5));
        assert_eq!(take(ShardState::Finished, Some(&lease(-9))), Take::Leave);
    }

    #[test]
    fn a_shard_is_finished_when_none_of_its_entries_is_open() {
        let done = EntryCounts { sent: 3, unknown: 1, ..EntryCounts::default() };
        assert_eq!(after_pass(&done, None, NOW), AfterPass::Finished);
        let later = NOW.plus_ms(5);
        for open in [EntryCounts { pending: 1, ..done }, EntryCounts { sending: 1, ..done }] {
            assert_eq!(after_pass(&open, Some(later), NOW), AfterPass::Again { not_before: later });
            assert_eq!(after_pass(&open, Some(NOW.plus_ms(-5)), NOW), AfterPass::Again { not_before: NOW });
            assert_eq!(after_pass(&open, None, NOW), AfterPass::Again { not_before: NOW });
        }
    }

    #[test]
    fn a_held_mailing_is_not_begun_and_one_that_is_not_to_be_sent_is_cleared() {
        for (mailing, taken) in [
            (MailingState::Paused, false),
            (MailingState::Failed, true),
            (MailingState::Completed, false),
            (MailingState::Queued, true),
            (MailingState::Canceled, true),
        ] {
            let take = take(ShardState::Pending, None, mailing, "b", NOW);
            assert_eq!(matches!(take, Take::Lease(_)), taken, "{mailing}");
        }
    }

    #[test]
    fn recovery_gives_a_shard_back_once_and_never_a_live_one() {
        let id = MailingId::of("monthly.csv", 0);
        let recover = |state, lease: Option<&Lease>| recover_shard(&id, 7, state, lease, NOW);
        let over = lease(-1);
        let requeue =
            Recover::Requeue { epoch: 4, lease_until: over.lease_until, emit_id: format!("requeue#{id}#07#4") };
        assert_eq!(recover(ShardState::Processing, Some(&over)), requeue);
        assert_eq!(recover(ShardState::Processing, Some(&over)), requeue, "the same work, known by the same id");
        for (state, lease) in [
            (ShardState::Processing, Some(&lease(1))),
            (ShardState::Pending, Some(&over)),
            (ShardState::Finished, Some(&over)),
            (ShardState::Pending, None),
        ] {
            assert_eq!(recover(state, lease), Recover::Leave, "{state}");
        }
    }

    #[test]
    fn a_mailing_is_abandoned_when_no_shard_is_alive() {
        let (live, over) = (lease(1), lease(0));
        let abandoned =
            |state, shards: &[(ShardState, Option<&Lease>)]| is_abandoned(state, shards.iter().copied(), NOW);
        let dead = [(ShardState::Processing, Some(&over)), (ShardState::Pending, None)];
        assert!(abandoned(MailingState::Processing, &dead));
        assert!(!abandoned(MailingState::Pending, &dead) && !abandoned(MailingState::Paused, &dead));
        assert!(!abandoned(MailingState::Processing, &[dead[0], (ShardState::Processing, Some(&live))]));
        assert!(
            !abandoned(MailingState::Processing, &[(ShardState::Finished, Some(&over))]),
            "it only has to be ended"
        );
    }
}
