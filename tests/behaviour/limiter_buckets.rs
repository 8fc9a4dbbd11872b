//! The rows of rate limits with the real SDK and the emulator, and with the time as an argument.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::{join, join_all};
use serde_json::json;
use umavez_domain::keys::Key;
use umavez_domain::queue::Priority;
use umavez_domain::senders::limiter::{Ask, Bucket, CLOCKS_DIFFER_MS, Limit, Take, Wanted, ask, reach_ms};
use umavez_domain::time::Timestamp;
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::{Buckets, Grant, Limiter};
use umavez_platform::store::{Returned, Write, read_row};
use umavez_tests::{Setup, World, play_with};

fn probe() -> Setup {
    Setup::of_template(include_str!("../fixtures/probe.yaml"))
}

const TABLE: &str = "probe-jobs";

fn limiter(world: &World) -> Limiter {
    Limiter::new(world.store.clone(), TABLE.to_owned())
}

fn key(name: &str) -> Key {
    Key { pk: name.into(), sk: "ROW".into() }
}

fn bot(reach_ms: i64) -> Buckets {
    Buckets { sender: (key("bot"), Limit::BOT), reach_ms, address: None }
}

/// Returns an invocation at this time of the test's own clock. The real time that passes is a few
/// milliseconds.
fn at(world: &World, ms: i64) -> Invocation {
    let id = world.invocation().request_id;
    Invocation::new(id, Timestamp::from_millis(1_000_000_000 + ms), Duration::from_secs(30))
}

/// Takes one slot of the bot, without waiting for it. Returns its time in microseconds, or when to
/// ask again.
async fn take(world: &World, limiter: &Limiter, ms: i64, reach_ms: i64) -> Result<i64, Timestamp> {
    match limiter.take_row(&at(world, ms), &bot(reach_ms), 1).await.expect("an answer") {
        Grant::At(held) => Ok(held.slot.at_us),
        Grant::Later(at) => Err(at),
    }
}

/// Returns the largest number of grants in any second.
fn most_in_a_second(mut slots: Vec<i64>) -> usize {
    slots.sort_unstable();
    (0..slots.len())
        .map(|first| slots[first..].iter().take_while(|slot| **slot < slots[first] + 1_000_000).count())
        .max()
        .unwrap_or(0)
}

#[tokio::test]
async fn concurrent_senders_never_get_more_slots_than_the_limit() {
    play_with(probe(), async |world| {
        let limiter = limiter(world);
        let mut slots = Vec::new();
        for round in 0..4 {
            let grants = join_all((0..40).map(|_| take(world, &limiter, round * 1_000, 1_500))).await;
            slots.extend(grants.into_iter().flatten());
        }
        // The real time of the calls passes too, so it depends on the machine how many there are.
        assert!(slots.len() >= 30, "the limit is not used: {}", slots.len());
        assert!(most_in_a_second(slots.clone()) <= 30, "{}", most_in_a_second(slots));
    })
    .await;
}

#[tokio::test]
async fn the_higher_priority_goes_first_and_the_lowest_is_not_starved() {
    play_with(probe(), async |world| {
        let limiter = limiter(world);
        // 45 messages of each priority arrive in one second, more than fit. Each priority asks in
        // turn, every 100 ms.
        let mut waiting: [VecDeque<i64>; 2] = [(0..45).map(|_| 0).collect(), (0..45).map(|_| 0).collect()];
        let mut sent: [Vec<i64>; 2] = [Vec::new(), Vec::new()];
        let mut now = 0;
        while waiting.iter().any(|queue| !queue.is_empty()) {
            for (class, priority) in [(1, Priority::Downsell), (0, Priority::Start)] {
                while let Some(since) = waiting[class].front().copied() {
                    let reach = reach_ms(priority, now - since);
                    let Ok(slot) = take(world, &limiter, now, reach).await else { break };
                    waiting[class].pop_front();
                    sent[class].push(slot);
                }
            }
            now += 100;
            assert!(now < 20_000, "messages wait forever: {waiting:?}");
        }
        let all: Vec<_> = sent.iter().flatten().copied().collect();
        assert_eq!(all.len(), 90);
        assert!(most_in_a_second(all) <= 30);
        let median = |slots: &[i64]| slots[slots.len() / 2];
        assert!(median(&sent[0]) < median(&sent[1]), "the higher priority waits longer");
    })
    .await;
}

#[tokio::test]
async fn a_parked_bucket_grants_nothing_before_its_time_and_a_shorter_park_does_not_shorten_it() {
    play_with(probe(), async |world| {
        let limiter = limiter(world);
        limiter.park(&at(world, 0), &key("bot"), 33_000).await.expect("parked");
        limiter.park(&at(world, 0), &key("bot"), 13_000).await.expect("parked");
        let until = Timestamp::from_millis(1_000_000_000 + 33_000);
        let refused = async |ms: i64| take(world, &limiter, ms, 500).await.expect_err("it is parked");
        // The real time of the calls passes too.
        for ms in [0, 30_000] {
            let at = refused(ms).await;
            assert!((until..until.plus_ms(2_000)).contains(&at), "{at}");
        }
        let slot = take(world, &limiter, 35_000, 500).await.expect("it is not parked any more");
        assert!(slot >= until.millis() * 1_000);
    })
    .await;
}

#[tokio::test]
async fn a_lost_reply_costs_a_slot_and_never_gives_one_twice() {
    play_with(probe(), async |world| {
        let limiter = limiter(world);
        let mut slots = Vec::new();
        for action in [Action::DropReply, Action::ErrorAfter] {
            for _ in 0..2 {
                let fault = CallFault {
                    function: Some("test".into()),
                    operation: Some("UpdateItem".into()),
                    ..CallFault::first(action)
                };
                world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
                slots.push(take(world, &limiter, 0, 1_500).await.expect("a slot"));
            }
        }
        slots.dedup();
        assert_eq!(slots.len(), 4, "a slot was granted twice: {slots:?}");
        assert!(slots.windows(2).all(|pair| pair[1] - pair[0] >= 33_000), "{slots:?}");
    })
    .await;
}

#[tokio::test]
async fn a_slot_of_the_sender_is_released_if_another_message_takes_that_of_the_address() {
    play_with(probe(), async |world| {
        let limiter = limiter(world);
        let group = Limit::per(1, 60_000);
        let both = Buckets { sender: (key("bot"), Limit::BOT), reach_ms: 500, address: Some((key("group"), group)) };
        let of_group = Buckets { sender: (key("group"), group), reach_ms: 0, address: None };
        let free_at = async || {
            let row: Option<Bucket> = world.store.get(&world.invocation(), TABLE, &key("bot")).await.expect("a row");
            row.unwrap_or_default().free_at_us
        };
        // The slot of the bot is the first write, and that of the group the second.
        let late = CallFault {
            function: Some("test".into()),
            operation: Some("UpdateItem".into()),
            nth: 2,
            delay_ms: 500,
            ..CallFault::first(Action::DelayBefore)
        };
        world.stack.add_fault(Fault::Call(late)).await.expect("armed");
        let invocation = world.invocation();
        let another = async {
            while free_at().await == 0 {}
            limiter.take_row(&world.invocation(), &of_group, 1).await.expect("an answer")
        };
        let (refused, taken) = join(limiter.take(&invocation, &both), another).await;
        assert!(matches!(taken, Grant::At(_)), "{taken:?}");
        assert!(matches!(refused, Ok(Grant::Later(_))), "{refused:?}");
        let next = limiter.take_row(&world.invocation(), &bot(500), 1).await.expect("an answer");
        let Grant::At(next) = next else { panic!("no slot") };
        let one = Limit::BOT.interval_us;
        assert_eq!(free_at().await - next.slot.at_us, one);
        assert!(next.slot.at_us < invocation.current().millis() * 1_000 + one, "the slot was not given back");
    })
    .await;
}

/// The writes that the rule makes of a bucket that is idle, is in use, or was used by a process
/// with a wrong clock.
fn takes(now_us: i64) -> Vec<Take> {
    let wanted = Wanted { from_us: now_us + 10_000, ..Wanted::one(Limit::BOT, 500) };
    let wrong = now_us + 7 * 86_400_000_000;
    [0, now_us + 100_000, wrong]
        .into_iter()
        .map(|free_at_us| match ask(Bucket { free_at_us, ..Bucket::default() }, wanted, now_us) {
            Ask::Take(take) => take,
            Ask::Later(at) => panic!("{free_at_us} is within reach: {at}"),
        })
        .collect()
}

#[tokio::test]
async fn the_expression_of_a_grant_is_the_rule() {
    play_with(probe(), async |world| {
        let limiter = limiter(world);
        let now_us = 1_000_000_000_000;
        let mut made = 0;
        for take in takes(now_us) {
            for free_ms in [None, Some(0), Some(10), Some(11), Some(510), Some(511), Some(7 * 86_400_000)] {
                for seen_ms in [None, Some(2_000), Some(2_001), Some(CLOCKS_DIFFER_MS + 1)] {
                    for parked_ms in [None, Some(10), Some(11)] {
                        let after_us = |ms: Option<i64>| ms.map(|ms| now_us + ms * 1_000);
                        let (free_at_us, seen_us) = (after_us(free_ms), after_us(seen_ms));
                        let parked_until = parked_ms.map(|ms| now_us / 1_000 + ms);
                        let numbers =
                            [("free_at_us", free_at_us), ("seen_us", seen_us), ("parked_until", parked_until)];
                        let row: serde_json::Map<_, _> =
                            numbers.iter().filter_map(|(name, n)| Some(((*name).to_owned(), json!((*n)?)))).collect();
                        let put = Write::put(TABLE, key("bot"), &row).expect("a row");
                        world.store.write(&world.invocation(), put).await.expect("stored");
                        let bucket = Bucket {
                            free_at_us: free_at_us.unwrap_or(0),
                            seen_us: seen_us.unwrap_or(0),
                            parked_until: parked_until.unwrap_or(0),
                        };
                        let by_rule = take.apply(bucket);
                        let by_table = match limiter.make(&world.invocation(), &key("bot"), &take).await {
                            Ok(Returned::Row(item)) => Some(read_row::<Bucket>(item).expect("a bucket")),
                            Ok(Returned::Refused(_)) => None,
                            Err(error) => panic!("{error}"),
                        };
                        assert_eq!(by_table, by_rule, "{take:?} of {bucket:?}");
                        made += usize::from(by_rule.is_some());
                    }
                }
            }
        }
        assert!(made > 10, "{made} of the writes were made");
    })
    .await;
}
