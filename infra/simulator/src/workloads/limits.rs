//! Rate limits: more messages at once than a slow bot may send, through instances whose clocks
//! differ, to a provider that parks the bot now and then.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};

use super::outbound::{ENDED, MESSAGES, messages, name_of};
use super::{Workload, pause, text};
use crate::play::Setting;
use crate::providers::Heard;

const CLIENTS: usize = 3;
const MESSAGES_EACH: usize = 4;
const PER_SECOND: usize = 2;
/// A chat gets one message a second.
const SHARED_CHAT: &str = "7000";
/// How many calls may begin within a second: those with the slots of one and a quarter seconds, and
/// that of an instance that was frozen between its slot and its call. When an instance joins whose
/// clock is ahead of all others, one more call may begin beside its own.
const AT_MOST: usize = 2 * PER_SECOND;
/// How far ahead of the others a clock is that counts as ahead.
const AHEAD_MS: i64 = 50;
const AT_MOST_OF_CHAT: usize = 3;
/// How long calls that have a slot may still begin after the bot is parked.
const AFTER_PARKING_MS: u64 = 4_000;
/// How many calls may begin while the bot is parked: those of instances that were frozen.
const WHILE_PARKED: usize = 2;

#[derive(Default)]
pub struct Limits {
    accepted: RefCell<BTreeMap<String, String>>,
}

impl Workload for Limits {
    fn name(&self) -> &'static str {
        "limits"
    }

    fn functions(&self) -> Vec<&'static str> {
        vec!["admin", "outbound-api", "outbound-sender", "outbound-sweep", "outbox-relay", "recovery"]
    }

    fn longest_retry_after_seconds(&self) -> u64 {
        30
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            let admin = setting.client("admin");
            let bot = json!({"slug": "default", "messages_per_second": PER_SECOND});
            for _ in 0..5 {
                let answer = admin.request("POST", "/api/admin/bots", Some("bot"), Some(&bot)).await;
                if answer.is_some_and(|answer| answer.status < 300 || answer.status == 409) {
                    break;
                }
            }
            // Every instance reads the limit again after a minute.
            tokio::time::sleep(Duration::from_secs(70)).await;
            join_all((0..CLIENTS).map(|client| self.client(setting.clone(), client))).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        messages(setting).values().all(|row| ENDED.contains(&text(&row["state"]).as_str()))
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        let heard = calls(setting);
        let mut reached: Vec<_> =
            messages(setting).values().map(|row| format!("a message is {}", text(&row["state"]))).collect();
        reached.extend(heard.iter().filter(|call| call.parks_s.is_some()).map(|_| "a bot is parked".to_owned()));
        reached.push(format!("{} calls begin within a second", most_within_a_second(&heard)));
        reached
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &["a message is SENT", "a bot is parked", "3 calls begin within a second"]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let heard = calls(setting);
        let mut violations = Vec::new();
        let rows = messages(setting);
        for (name, id) in self.accepted.borrow().iter() {
            match rows.get(id) {
                None => violations.push(format!("{name} was accepted and is gone")),
                Some(row) if !ENDED.contains(&text(&row["state"]).as_str()) => {
                    violations.push(format!("{} is {} at the end", name_of(row), text(&row["state"])));
                }
                Some(_) => {}
            }
        }
        let joins = joins(setting);
        for (first, call) in heard.iter().enumerate() {
            let most = most_from(&heard, first);
            let near = call.begun_ms.saturating_sub(1_000)..call.begun_ms + 1_000;
            let joined = joins.iter().filter(|at_ms| near.contains(at_ms)).count();
            if most > AT_MOST + joined {
                violations.push(format!("{most} calls begin within a second; the limit is {PER_SECOND}"));
            }
        }
        let of_chat: Vec<_> = heard.iter().filter(|call| call.to == SHARED_CHAT).cloned().collect();
        let most = most_within_a_second(&of_chat);
        if most > AT_MOST_OF_CHAT {
            violations.push(format!("{most} calls to one chat begin within a second; the limit is 1"));
        }
        let written = parkings(setting);
        for parking in &heard {
            let Some(seconds) = parking.parks_s else { continue };
            // Other senders know nothing of a pause that its own sender did not write, because it
            // was killed or frozen.
            let known = parking.at_ms..parking.at_ms + AFTER_PARKING_MS;
            let Some(known_ms) = written.iter().find(|at_ms| known.contains(at_ms)) else { continue };
            let parked = known_ms + AFTER_PARKING_MS..(parking.at_ms + seconds * 1_000).saturating_sub(1_000);
            let calls = heard.iter().filter(|call| parked.contains(&call.begun_ms)).count();
            if calls > WHILE_PARKED {
                violations.push(format!("{calls} calls begin while the bot is parked from {} on", parking.at_ms));
            }
        }
        violations
    }
}

impl Limits {
    async fn client(&self, setting: Rc<Setting>, number: usize) {
        let client = setting.client(&format!("client-{number}"));
        for step in 0..MESSAGES_EACH {
            let name = format!("l{number}.{step}");
            let mut draw = setting.net.dice().of(&format!("request {name}"));
            tokio::time::sleep(pause(&mut draw, 200)).await;
            // Half of them go to one chat.
            let to = if step % 2 == 0 { SHARED_CHAT.to_owned() } else { format!("{}", 7_001 + number * 10 + step) };
            let body: Value = json!({"channel": "telegram", "to": to, "content": {"text": name}});
            let answer = client.request("POST", MESSAGES, Some(&name), Some(&body)).await;
            if let Some(answer) = answer.filter(|answer| answer.status < 300) {
                self.accepted.borrow_mut().insert(name, text(&answer.body["message_id"]));
            }
        }
    }
}

/// Returns the changes of the bot's bucket, and when each was made, in milliseconds of the play.
fn of_bucket(setting: &Setting) -> Vec<(u64, Value)> {
    let changes = setting.net.tables().changes(setting.table("Outbound"), 0, usize::MAX);
    let of_bot = changes.into_iter().filter(|change| change["dynamodb"]["Keys"]["sk"]["S"] == "SENDER");
    let placed = of_bot.map(|change| {
        let at = change["dynamodb"]["ApproximateCreationDateTime"].as_f64().unwrap_or(0.0) * 1_000.0;
        (u64::try_from(at.round() as i64 - setting.net.epoch().1).unwrap_or(0), change)
    });
    placed.collect()
}

/// Returns when senders wrote that the bot is parked.
fn parkings(setting: &Setting) -> Vec<u64> {
    let parked_until = |change: &Value, image: &str| change["dynamodb"][image]["parked_until"].clone();
    let is_parking = |change: &Value| parked_until(change, "NewImage") != parked_until(change, "OldImage");
    of_bucket(setting).into_iter().filter(|(_, change)| is_parking(change)).map(|(at_ms, _)| at_ms).collect()
}

/// Returns when a sender made a grant whose clock is ahead of all that had made one.
fn joins(setting: &Setting) -> Vec<u64> {
    let (mut joins, mut furthest) = (Vec::new(), None);
    for (at_ms, change) in of_bucket(setting) {
        let seen = change["dynamodb"]["NewImage"]["seen_us"]["N"].as_str().and_then(|us| us.parse::<i64>().ok());
        let Some(ahead) = seen.map(|us| us / 1_000 - setting.net.epoch().1 - i64::try_from(at_ms).unwrap_or(0)) else {
            continue;
        };
        if furthest.is_some_and(|furthest| ahead > furthest + AHEAD_MS) {
            joins.push(at_ms);
        }
        furthest = furthest.max(Some(ahead));
    }
    joins
}

/// Returns the calls to the bot, in the order in which they began.
fn calls(setting: &Setting) -> Vec<Heard> {
    let mut heard = setting.net.heard();
    heard.retain(|call| call.provider == "telegram" && call.text.starts_with('l'));
    heard.sort_by_key(|call| call.begun_ms);
    heard
}

/// Returns how many calls begin within a second at most.
fn most_within_a_second(heard: &[Heard]) -> usize {
    (0..heard.len()).map(|first| most_from(heard, first)).max().unwrap_or(0)
}

/// Returns how many calls begin within a second of this one.
fn most_from(heard: &[Heard], first: usize) -> usize {
    let begun = heard[first].begun_ms;
    heard[first..].iter().take_while(|call| call.begun_ms < begun + 1_000).count()
}
