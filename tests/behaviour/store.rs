//! Conditional writes, transactions and leases, with the real SDK and the emulator.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;
use umavez_domain::change::{Fence, Row};
use umavez_domain::keys::{self, Key, Wake};
use umavez_domain::lease::Lease;
use umavez_domain::time::Timestamp;
use umavez_platform::due;
use umavez_platform::invocation::Invocation;
use umavez_platform::lease::{self, LeaseTaken};
use umavez_platform::store::{
    Beside, Committed, Condition, Decided, Found, Start, StoreError, Transacted, Write, Written, read_row, row_of,
};
use umavez_tests::{Setup, World, play, play_with};

const TABLE: &str = "probe-jobs";

fn probe() -> Setup {
    Setup::of_template(include_str!("../fixtures/probe.yaml"))
}

fn key(id: &str) -> Key {
    Key { pk: id.to_owned(), sk: "ROW".to_owned() }
}

fn put(id: &str, value: u32) -> Write {
    Write::put(TABLE, key(id), &json!({"value": value})).expect("a row").when(Condition::Absent)
}

async fn value(world: &World, id: &str) -> Option<u64> {
    let row: Option<serde_json::Value> = world.store.get(&world.invocation(), TABLE, &key(id)).await.expect("read");
    row.and_then(|row| row["value"].as_u64())
}

#[tokio::test]
async fn a_lost_race_returns_the_row_that_won() {
    play_with(probe(), async |world| {
        assert_eq!(world.store.write(&world.invocation(), put("a", 1)).await, Ok(Written::New));
        let Ok(Written::Refused(Some(item))) = world.store.write(&world.invocation(), put("a", 2)).await else {
            panic!("not refused")
        };
        let row: serde_json::Value = read_row(item).expect("a row");
        assert_eq!(row["value"], 1);
        // The token names the invocation, the run and the write.
        let writer = row["writer"].as_str().map(|token| token.split('/').collect::<Vec<_>>());
        assert!(matches!(writer.as_deref(), Some(["test-0", _, "0"])), "{row}");
        let absent = Write::delete(TABLE, key("b")).when(Condition::has("pk"));
        assert_eq!(world.store.write(&world.invocation(), absent).await, Ok(Written::Refused(None)));
    })
    .await;
}

#[tokio::test]
async fn of_sixty_four_concurrent_writers_one_is_new() {
    play_with(probe(), async |world| {
        let written = join_all((0..64).map(|number| async move {
            world.store.write(&world.invocation(), put("a", number)).await.expect("an answer")
        }))
        .await;
        assert_eq!(written.iter().filter(|written| **written == Written::New).count(), 1);
        assert!(written.iter().all(|written| !matches!(written, Written::Mine | Written::Refused(None))));
    })
    .await;
}

#[tokio::test]
async fn a_transaction_is_atomic_and_reports_which_condition_failed() {
    play_with(probe(), async |world| {
        let writes = || vec![put("a", 1), put("b", 2), Write::check(TABLE, key("c"), Condition::Absent)];
        assert_eq!(world.store.transact(&world.invocation(), writes()).await, Ok(Transacted::Done));
        let more = vec![put("d", 4), put("b", 3), Write::check(TABLE, key("a"), Condition::is_number("value", 1))];
        let Ok(Transacted::Refused(refusals)) = world.store.transact(&world.invocation(), more).await else {
            panic!("not refused")
        };
        assert_eq!(refusals.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
        let item = refusals.into_iter().flatten().next().and_then(|refusal| refusal.item).expect("the row");
        assert_eq!(read_row::<serde_json::Value>(item).expect("a row")["value"], 2);
        assert_eq!((value(world, "d").await, value(world, "b").await), (None, Some(2)));
    })
    .await;
}

#[tokio::test]
async fn an_update_sets_removes_counts_and_appends() {
    play_with(probe(), async |world| {
        let first =
            Write::update(TABLE, key("a")).set("name", "x").set_number("n", 5).increment("count").append("log", "one");
        assert_eq!(world.store.write(&world.invocation(), first).await, Ok(Written::New));
        let second = Write::update(TABLE, key("a")).remove("name").increment("count").append("log", "two");
        let second = second.when(Condition::all([
            Condition::at_most("n", 5),
            Condition::more_than("n", 4),
            Condition::is_not("name", "y"),
        ]));
        assert_eq!(world.store.write(&world.invocation(), second).await, Ok(Written::New));
        let row: serde_json::Value =
            world.store.get(&world.invocation(), TABLE, &key("a")).await.expect("read").expect("a row");
        assert_eq!(
            (&row["n"], &row["count"], &row["log"], row.get("name")),
            (&json!(5), &json!(2), &json!(["one", "two"]), None)
        );
    })
    .await;
}

fn at(world: &World, ms: i64) -> Invocation {
    let moment = Timestamp::from_millis(1_000_000 + ms);
    Invocation::new(world.invocation().request_id, moment, std::time::Duration::from_secs(30))
}

async fn take(world: &World, owner: &str, ms: i64) -> LeaseTaken {
    lease::take(&world.store, &at(world, ms), TABLE, &key("a"), owner, 30_000).await.expect("an answer")
}

#[tokio::test]
async fn a_lease_has_one_owner_until_it_expires_and_the_next_turn_fences_the_last() {
    play_with(probe(), async |world| {
        assert_eq!(take(world, "w1", 0).await, LeaseTaken::NoRow);
        world.store.write(&world.invocation(), put("a", 1)).await.expect("written");
        let LeaseTaken::Mine(first) = take(world, "w1", 0).await else { panic!("a free lease was not taken") };
        assert_eq!(first.lease_epoch, 1);
        assert!(first.until() >= Timestamp::from_millis(1_030_000), "{}", first.until());
        assert!(matches!(take(world, "w2", 20_000).await, LeaseTaken::Busy(until) if until == first.until()));
        let renewed = renew(world, &first, 20_000).await;
        let Some(renewed) = renewed else { panic!("a held lease was not renewed") };
        assert!(matches!(take(world, "w2", 40_000).await, LeaseTaken::Busy(_)), "the renewed lease was taken");
        let LeaseTaken::Mine(second) = take(world, "w2", 60_000).await else {
            panic!("an expired lease was not taken")
        };
        assert_eq!(second.lease_epoch, 2);
        // The first worker is late: neither its renewal nor its writes have an effect.
        assert_eq!(renew(world, &renewed, 60_001).await, None);
        let late = Write::update(TABLE, key("a"))
            .set_number("value", 13)
            .when(Condition::of(&renewed.fence()).expect("a condition"));
        assert!(matches!(world.store.write(&world.invocation(), late).await, Ok(Written::Refused(Some(_)))));
        let good = Write::update(TABLE, key("a"))
            .set_number("value", 7)
            .when(Condition::of(&second.fence()).expect("a condition"));
        assert_eq!(world.store.write(&world.invocation(), good).await, Ok(Written::New));
        assert_eq!(value(world, "a").await, Some(7));
    })
    .await;
}

async fn renew(world: &World, held: &Lease, ms: i64) -> Option<Lease> {
    lease::renew(&world.store, &at(world, ms), TABLE, &key("a"), held, 30_000).await.expect("an answer")
}

#[tokio::test]
async fn a_lease_taken_by_its_own_first_attempt_is_held_even_if_the_row_was_written_since() {
    play_with(probe(), async |world| {
        world.store.write(&world.invocation(), put("a", 1)).await.expect("written");
        let LeaseTaken::Mine(first) = take(world, "w1", 0).await else { panic!("a free lease was not taken") };
        let other = Write::update(TABLE, key("a")).set_number("value", 2);
        world.store.write(&world.invocation(), other).await.expect("written");
        let LeaseTaken::Mine(again) = take(world, "w1", 1).await else { panic!("blocked by its own lease") };
        assert_eq!(again, first);
    })
    .await;
}

#[tokio::test]
async fn of_many_workers_that_find_an_expired_lease_one_gets_the_next_turn() {
    play_with(probe(), async |world| {
        world.store.write(&world.invocation(), put("a", 1)).await.expect("written");
        for turn in 1..=3 {
            let owners: Vec<_> = (0..16).map(|number| format!("w{number}")).collect();
            let taken = join_all(owners.iter().map(|owner| take(world, owner, turn * 40_000))).await;
            let held: Vec<_> = taken
                .iter()
                .filter_map(|taken| match taken {
                    LeaseTaken::Mine(held) => Some(held.lease_epoch),
                    _ => None,
                })
                .collect();
            assert_eq!(held, [u64::try_from(turn).expect("positive")]);
        }
    })
    .await;
}

/// A row of the probe's table that counts its changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Counter {
    id: String,
    value: u32,
    version: u64,
}

impl Row for Counter {
    fn key(&self) -> Key {
        key(&self.id)
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
}

fn counted(before: &Counter) -> Counter {
    Counter { value: before.value + 1, version: before.version + 1, ..before.clone() }
}

#[tokio::test]
async fn a_change_that_loses_a_race_is_decided_again_on_the_row_that_won() {
    play_with(probe(), async |world| {
        let new = Counter { id: "c".to_owned(), value: 0, version: 0 };
        let first = counted(&new);
        assert!(world.store.commit(&world.invocation(), TABLE, &new, &first, Vec::new()).await.expect("an answer"));
        assert!(!world.store.commit(&world.invocation(), TABLE, &new, &first, Vec::new()).await.expect("an answer"));
        // All of them start with the same row.
        let change = async |n: usize| {
            let invocation = Invocation::new(format!("worker-{n}"), world.now(), Duration::from_secs(30));
            let asked = AtomicU32::new(0);
            let rule = |row: &Counter| {
                asked.fetch_add(1, Ordering::Relaxed);
                Ok(Decided::commit(counted(row), row.value))
            };
            let committed = world.store.change(&invocation, TABLE, &first, rule).await.expect("an answer");
            let Committed::Done(row, saw) = committed else { panic!("not committed: {committed:?}") };
            assert_eq!(row.value, saw + 1, "decided on another row than it replaced");
            asked.into_inner()
        };
        let asked = join_all((0..8).map(change)).await;
        assert_eq!(value(world, "c").await, Some(9), "not every change was applied once");
        assert!(asked.iter().sum::<u32>() > 8, "no rule ran again: {asked:?}");
        let stop = |row: &Counter| Ok(Decided::<Counter, _>::Stop(row.value));
        let stopped = world.store.change(&world.invocation(), TABLE, Start::Key(key("c")), stop).await;
        assert!(matches!(stopped, Ok(Committed::Stopped(row, 9)) if row.version == 9));
        let gone = world.store.change(&world.invocation(), TABLE, Start::Key(key("d")), stop).await;
        assert!(matches!(gone, Ok(Committed::Gone)));
    })
    .await;
}

#[tokio::test]
async fn a_refused_required_write_prevents_the_change_and_the_rule_runs_again() {
    play_with(probe(), async |world| {
        let row = Counter { id: "c".to_owned(), value: 1, version: 1 };
        let write = Write::put(TABLE, key("c"), &row).expect("a row");
        world.store.write(&world.invocation(), write).await.expect("written");
        for other in ["other", "third"] {
            world.store.write(&world.invocation(), put(other, 1)).await.expect("written");
        }
        let asked = AtomicU32::new(0);
        let rule = |before: &Counter| {
            // The first time, the condition expects that the other row is absent, which it is not.
            let other = match asked.fetch_add(1, Ordering::Relaxed) {
                0 => Condition::Absent,
                _ => Condition::has("pk"),
            };
            let check = Write::check(TABLE, key("other"), other);
            // This insert is left out, because the row already exists.
            let with = vec![put("third", 2).into(), Beside::required(check)];
            Ok(Decided::Commit { row: counted(before), with, out: () })
        };
        let committed = world.store.change(&world.invocation(), TABLE, &row, rule).await.expect("an answer");
        assert!(matches!(committed, Committed::Done(row, ()) if row.value == 2));
        assert_eq!((asked.into_inner(), value(world, "third").await), (2, Some(1)));
    })
    .await;
}

#[tokio::test]
async fn recovery_finds_every_row_of_a_shard_however_many_there_are() {
    const ROWS: usize = 450;
    play(async |world| {
        let table = world.stack.output("OutboundTable").expect("a table").to_owned();
        let invocation = world.invocation();
        let rows = (0..ROWS).map(|n| {
            let at = keys::at_time(world.now().plus_ms(-1_000), &format!("row-{n:04}"));
            let row =
                json!({"pk": format!("WAITS#{n:04}"), "sk": "ROW", "wake": keys::wake(Wake::Check, 2), "wake_at": at});
            row_of(&row).expect("a row")
        });
        world.store.insert_many(&invocation, &table, rows.collect()).await.expect("an answer");
        let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
        let recover = async |found: Found| {
            let is_new = seen.lock().expect("no panic").insert(found.key.pk.clone());
            assert!(is_new, "{} is found twice", found.key.pk);
            // One row that cannot be handled does not hide the others.
            if found.place.ends_with("0007") { Err(StoreError::Throttled) } else { Ok(true) }
        };
        let swept = due::recover(&world.store, &invocation, &table, Wake::Check, Duration::ZERO, recover).await;
        assert_eq!((swept.found, swept.done, swept.failed), (ROWS as u64, ROWS as u64 - 1, 1));
        assert!(swept.finished && swept.unread == 0);
    })
    .await;
}
