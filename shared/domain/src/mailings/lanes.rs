//! Which shards of a mailing are worked on at a time. They stand in a few lanes, and a lane hands its next shard over when
//! one has been gone through: however large a mailing is, it takes no more senders than this, and a small one beside it has
//! its turn.

use super::rows::ShardRow;
use super::shard::ShardState;

/// Shards of one mailing that are handed to senders at a time.
pub const LANES: u32 = 3;

/// The shards that a mailing begins with.
pub fn first_in_lanes(shards: u32) -> std::ops::Range<u32> {
    0..shards.min(LANES)
}

/// The shard to hand over when `shard` was gone through, if its lane has none that is being gone through for the first time.
/// `shards` are all of the mailing's, in order.
pub fn next_in_lane(shard: u32, shards: &[ShardRow]) -> Option<&ShardRow> {
    let others = || open_in_lane(shard % LANES, shards).filter(move |other| other.shard != shard);
    if others().any(|other| other.begun && !other.passed) {
        return None;
    }
    others().find(|other| !other.begun)
}

/// The shards to hand over when a mailing is begun again: those that were begun and are not finished, and the next of each
/// lane that would stand still. `shards` are all of them, in order.
pub fn to_hand_out(shards: &[ShardRow]) -> Vec<&ShardRow> {
    let mut out: Vec<&ShardRow> = Vec::new();
    for lane in 0..LANES {
        let open = || open_in_lane(lane, shards);
        out.extend(open().filter(|one| one.begun));
        if !open().any(|one| one.begun && !one.passed) {
            out.extend(open().find(|one| !one.begun));
        }
    }
    out.sort_unstable_by_key(|one| one.shard);
    out
}

fn open_in_lane(lane: u32, shards: &[ShardRow]) -> impl Iterator<Item = &ShardRow> {
    shards.iter().filter(move |one| one.shard % LANES == lane && one.state != ShardState::Finished)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailings::{EntryCounts, MailingId};
    use ShardState::{Finished, Pending, Processing};

    fn shard(shard: u32, state: ShardState, begun: bool, passed: bool) -> ShardRow {
        ShardRow { state, begun, passed, ..ShardRow::new(&MailingId::of("a.csv", 0), shard, EntryCounts::default()) }
    }

    fn numbers(shards: Vec<&ShardRow>) -> Vec<u32> {
        shards.into_iter().map(|one| one.shard).collect()
    }

    #[test]
    fn each_shard_has_its_turn_and_no_more_than_the_lanes_at_a_time() {
        for count in [1, 3, 4, 5, 11, 99] {
            let mut shards: Vec<_> = (0..count).map(|number| shard(number, Pending, false, false)).collect();
            first_in_lanes(count).for_each(|number| shards[number as usize].begun = true);
            while let Some(at) = shards.iter().position(|one| one.begun && one.state != Finished) {
                let active = shards.iter().filter(|one| one.begun && one.state != Finished).count();
                assert!(active <= LANES as usize, "{active} at a time");
                (shards[at].state, shards[at].passed) = (Finished, true);
                if let Some(next) = next_in_lane(shards[at].shard, &shards).map(|next| next.shard) {
                    shards[next as usize].begun = true;
                }
            }
            assert!(shards.iter().all(|one| one.state == Finished), "{count}");
        }
    }

    #[test]
    fn a_shard_that_waits_for_a_retry_does_not_hold_up_its_lane() {
        let waiting = shard(0, Pending, true, true);
        let lane = [waiting.clone(), shard(3, Finished, true, true), shard(6, Pending, false, false)];
        assert_eq!(next_in_lane(3, &lane).map(|next| next.shard), Some(6));
        let lane = [waiting, shard(3, Processing, true, false), shard(6, Pending, false, false)];
        assert_eq!(next_in_lane(0, &lane), None, "the lane has one");
    }

    #[test]
    fn what_was_begun_is_handed_out_again_and_a_lane_never_stands_still() {
        let all = [
            shard(0, Finished, true, true),
            shard(1, Processing, true, false),
            shard(2, Pending, true, true),
            shard(3, Pending, false, false),
            shard(4, Pending, false, false),
            shard(5, Pending, false, false),
            shard(6, Pending, false, false),
        ];
        assert_eq!(numbers(to_hand_out(&all)), [1, 2, 3, 5]);
        assert_eq!(numbers(to_hand_out(&all[..1])), [0_u32; 0]);
    }
}
