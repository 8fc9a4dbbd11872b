//! Rate limits with the real SDK and the emulator, and with the time as an argument.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::join_all;
use umavez_domain::keys::Key;
use umavez_domain::queue::Priority;
use umavez_domain::senders::limiter::{Limit, reach_ms};
use umavez_domain::time::Timestamp;
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::{Grant, Limiter};
use umavez_tests::{Setup, World, play_with};

fn probe() -> Setup {
    Setup::of_template(include_str!("../fixtures/probe.yaml"))
}

fn limiter(world: &World) -> Limiter {
    Limiter { store: world.store.clone(), table: "probe-jobs".to_owned() }
}

fn bucket() -> Key {
    Key { pk: "bucket".into(), sk: "ROW".into() }
}

/// Returns an invocation at this time of the test's own clock. The real time that passes is a few
/// milliseconds.
fn at(world: &World, ms: i64) -> Invocation {
    let id = world.invocation().request_id;
    Invocation::new(id, Timestamp::from_millis(1_000_000_000 + ms), Duration::from_secs(30))
}

/// Returns the largest number of grants in any second.
fn most_in_a_second(mut slots: Vec<i64>) -> usize {
    slots.sort_unstable();
    (0..slots.len())
        .map(|first| slots[first..].iter().take_while(|slot| **slot < slots[first] + 1_000).count())
        .max()
        .unwrap_or(0)
}

#[tokio::test]
async fn concurrent_senders_never_get_more_slots_than_the_limit() {
    play_with(probe(), async |world| {
        let limiter = limiter(world);
        let mut slots = Vec::new();
        for round in 0..4 {
            let grants = join_all((0..40).map(|_| async {
                let invocation = at(world, round * 1_000);
                limiter
                    .grant(&invocation, &bucket(), Limit::BOT, reach_ms(Priority::Start, 0), 1)
                    .await
                    .expect("an answer")
            }))
            .await;
            slots.extend(grants.into_iter().filter_map(|grant| match grant {
                Grant::At(slot) => Some(slot.millis()),
                Grant::Later(_) => None,
            }));
        }
        assert!(slots.len() >= 90, "the limit is not used up: {}", slots.len());
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
                    let granted =
                        limiter.grant(&at(world, now), &bucket(), Limit::BOT, reach, 1).await.expect("an answer");
                    let Grant::At(slot) = granted else { break };
                    waiting[class].pop_front();
                    sent[class].push(slot.millis() - 1_000_000_000);
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
        let until = Timestamp::from_millis(1_000_000_000 + 33_000);
        limiter.park(&at(world, 0), &bucket(), until).await.expect("parked");
        limiter.park(&at(world, 0), &bucket(), until.plus_ms(-20_000)).await.expect("parked");
        let ask =
            async |ms: i64| limiter.grant(&at(world, ms), &bucket(), Limit::BOT, 500, 1).await.expect("an answer");
        assert_eq!(ask(0).await, Grant::Later(until));
        assert_eq!(ask(30_000).await, Grant::Later(until));
        assert!(matches!(ask(33_000).await, Grant::At(slot) if slot >= until));
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
                    service: None,
                    operation: Some("UpdateItem".into()),
                    target: None,
                    nth: 1,
                    times: 1,
                    action,
                    delay_ms: 0,
                    answer: None,
                };
                world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
                let granted = limiter.grant(&at(world, 0), &bucket(), Limit::BOT, 1_500, 1).await.expect("an answer");
                let Grant::At(slot) = granted else { panic!("no slot") };
                slots.push(slot.millis());
            }
        }
        slots.dedup();
        assert_eq!(slots.len(), 4, "a slot was granted twice: {slots:?}");
        assert!(slots.windows(2).all(|pair| pair[1] - pair[0] >= 33), "{slots:?}");
    })
    .await;
}
