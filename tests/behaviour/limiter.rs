//! Rate limits, measured at the provider: calls per second by the catcher's times, while the clocks
//! of the senders differ, the table stalls, and a bot or a group is busy.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use umavez_domain::keys;
use umavez_domain::time::Timestamp;
use umavez_local::catcher::Sent;
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_tests::{Setup, World, play_with};

use crate::mailings::{content_without_columns, upload};
use crate::mailings_sending::{file, rate, until_sent};
use crate::outbound::{accept, sending, sent, telegram, with};

/// Returns the largest number of calls to providers in any second.
pub fn most_in_a_second(calls: &[Sent]) -> usize {
    let mut times: Vec<i64> = calls.iter().map(at_ms).collect();
    times.sort_unstable();
    let within = |first: &i64| times.iter().filter(|at| (*first..*first + 1_000).contains(at)).count();
    times.iter().map(within).max().unwrap_or(0)
}

fn at_ms(call: &Sent) -> i64 {
    Timestamp::parse(&call.at).expect("a time").millis()
}

/// Returns the largest number of calls that a second may have with this limit. A slot may be used
/// 250 ms after its time, so a second may have the calls of one and a quarter.
pub fn allowed(limit: usize) -> usize {
    limit + limit / 4 + 1
}

fn mail(to: &str, more: Value) -> Value {
    let content = json!({"subject": "Oi", "text": "Oi", "from": "loja@example.com"});
    with(json!({"channel": "email", "to": to, "content": content, "priority": "start"}), more)
}

async fn accept_many(world: &World, count: usize, more: Value) {
    let more = &more;
    let accept_one = |n: usize| async move {
        accept(world, &format!("single-{n}"), &mail(&format!("single{n}@example.com"), more.clone())).await;
    };
    futures::StreamExt::for_each_concurrent(futures::stream::iter(0..count), 16, accept_one).await;
}

/// Accepts mails that become due together, and lets them become due.
async fn become_due_together(world: &World, count: usize) {
    let at = world.now().plus_ms(800_000);
    accept_many(world, count, json!({"send_at": at.to_string()})).await;
    world.drain().await;
    let ahead = at.millis() - world.now().millis();
    world.advance(Duration::from_millis(u64::try_from(ahead).expect("there was time enough"))).await;
}

/// Delays the reply to the nth matching call of the sender of single messages.
async fn delay(world: &World, operation: &str, nth: u64, delay_ms: u64) {
    let fault = CallFault {
        function: Some("outbound-sender".to_owned()),
        operation: Some(operation.to_owned()),
        nth,
        delay_ms,
        ..CallFault::first(Action::DelayAfter)
    };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

/// The limit of mails per second while a mailing and single mails are sent.
const MAILS_PER_SECOND: usize = 10;

/// Sends a mailing and single mails at the same time, from two functions with these clocks. Both
/// take slots of the one bucket for mail. Returns the calls, and the largest number within a
/// second.
async fn meet(mailings_ms: i64, singles_ms: i64, priority: &'static str) -> (Vec<Sent>, usize) {
    const MAILING: usize = 60;
    const SINGLES: usize = 20;
    let setup = rate(10, MAILING + SINGLES);
    let setup = setup.clock_skew("mailing-sender", mailings_ms).clock_skew("outbound-sender", singles_ms);
    let calls = Mutex::new(Vec::new());
    play_with(setup, async |world| {
        upload(world, "a.csv", &file(MAILING), &content_without_columns()).await;
        until_sent(world, 5).await;
        accept_many(world, SINGLES, json!({"priority": priority})).await;
        until_sent(world, MAILING + SINGLES).await;
        *calls.lock().expect("one test") = sent(world);
    })
    .await;
    let calls = calls.into_inner().expect("one test");
    let most = most_in_a_second(&calls);
    (calls, most)
}

/// Checks that two functions with these clocks neither double the rate nor starve each other.
async fn with_clocks(mailings_ms: i64, singles_ms: i64) {
    let clocks = format!("clocks {mailings_ms} and {singles_ms}");
    // With the same reach. When the clock that is ahead comes in, the calls of the next 250 ms are
    // made beside its own.
    let (_, most) = meet(mailings_ms, singles_ms, "shot").await;
    let most_allowed = allowed(MAILS_PER_SECOND) + MAILS_PER_SECOND / 4;
    assert!(most <= most_allowed, "{clocks}: {most} calls in a second");
    // Single mails that reach further ahead than the second that a mailing reserves: only a
    // difference between the clocks could keep them from a slot. While both have something to send,
    // both send.
    let (calls, most) = meet(mailings_ms, singles_ms, "start").await;
    assert!(most < 2 * MAILS_PER_SECOND, "{clocks}: {most} calls in a second");
    let is_single = |call: &Sent| call.caller == "outbound-sender";
    let first = calls.iter().position(is_single).expect("a single mail");
    let last_of = |single: bool| calls.iter().rposition(|call| is_single(call) == single).expect("a call");
    let both = calls.get(first..last_of(true).min(last_of(false))).unwrap_or_default();
    let singles = both.iter().filter(|call| is_single(call)).count();
    let mailing = both.len() - singles;
    println!("{clocks}: {most} in a second; beside each other {singles} single mails and {mailing} of the mailing");
    assert!(singles >= 3 && mailing >= 3, "{clocks}: one starves: {singles} single mails, {mailing} of the mailing");
}

#[tokio::test]
async fn a_sender_whose_clock_is_ahead_neither_doubles_the_rate_nor_starves_another() {
    with_clocks(-2_000, 0).await;
    with_clocks(0, 2_000).await;
}

#[tokio::test]
async fn a_sender_whose_clock_is_behind_neither_doubles_the_rate_nor_is_starved() {
    with_clocks(2_000, 0).await;
    with_clocks(0, -2_000).await;
}

/// Sends mails that become due together, five a second, and returns the most calls in a second.
async fn most_of_twenty(world: &World) -> usize {
    become_due_together(world, 20).await;
    while sent(world).len() < 20 {
        world.advance(Duration::from_secs(1)).await;
    }
    most_in_a_second(&sent(world))
}

#[tokio::test]
async fn a_stall_of_the_table_before_the_slots_is_followed_by_no_burst() {
    play_with(rate(5, 20), async |world| {
        // The grants are made, and their replies come when the slots are over.
        for nth in 1..=20 {
            delay(world, "UpdateItem", nth, 2_000).await;
        }
        let most = most_of_twenty(world).await;
        assert!(most <= allowed(5), "{most} calls in a second");
    })
    .await;
}

#[tokio::test]
async fn a_stall_of_the_table_after_the_slots_is_followed_by_no_burst() {
    play_with(rate(5, 20), async |world| {
        // The slots are 200 ms apart, and the claims of the first ones are answered together.
        for nth in 1..=8 {
            delay(world, "TransactWriteItems", nth, 2_200 - 200 * nth).await;
        }
        let most = most_of_twenty(world).await;
        assert!(most <= allowed(5), "{most} calls in a second");
    })
    .await;
}

/// Returns a number of the bucket of a chat, or of the bot.
async fn number(world: &World, chat: Option<&str>, name: &str) -> Option<i64> {
    let key = match chat {
        Some(chat) => keys::rate_of_chat("telegram", "default", chat),
        None => keys::rate_of_sender("telegram", "default"),
    };
    let rows = world.rows("OutboundTable").await;
    let row = rows.into_iter().find(|row| row["pk"] == key.pk.as_str() && row["sk"] == key.sk.as_str());
    row.and_then(|row| row[name].as_i64())
}

fn limited(rates: &str, sent: usize) -> Setup {
    sending(sent).parameter("SendRates", rates)
}

/// Lets the first message leave, also if a slow machine makes it wait for another slot.
async fn until_first(world: &World) {
    world.drain().await;
    while sent(world).is_empty() {
        world.advance(Duration::from_secs(1)).await;
    }
}

const GROUP: &str = "-1001234567890";

#[tokio::test]
async fn a_message_that_its_busy_bot_refuses_takes_no_slot_of_its_group() {
    play_with(limited(r#"{"telegram": {"sender": "1/20s"}}"#, 3), async |world| {
        accept(world, "first", &telegram("Oi")).await;
        until_first(world).await;
        let low = with(telegram("Oi"), json!({"to": GROUP, "priority": "downsell"}));
        accept(world, "low", &low).await;
        world.drain().await;
        assert_eq!(sent(world).len(), 1, "the bot is busy");
        assert_eq!(number(world, Some(GROUP), "free_at_us").await, None, "the group lost a slot");
        let high = with(telegram("Oi"), json!({"to": GROUP, "priority": "start"}));
        accept(world, "high", &high).await;
        while sent(world).len() < 3 {
            world.advance(Duration::from_secs(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_that_its_busy_group_refuses_takes_no_slot_of_its_bot() {
    play_with(limited(r#"{"telegram": {"group": "1/60s"}}"#, 2), async |world| {
        let to_group = with(telegram("Oi"), json!({"to": GROUP}));
        accept(world, "first", &to_group).await;
        until_first(world).await;
        let before = number(world, None, "free_at_us").await;
        accept(world, "second", &to_group).await;
        world.drain().await;
        assert_eq!(sent(world).len(), 1, "the group is busy");
        assert_eq!(number(world, None, "free_at_us").await, before, "the bot lost a slot");
        while sent(world).len() < 2 {
            world.advance(Duration::from_secs(20)).await;
        }
    })
    .await;
}
