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
/// that of an instance that was frozen between its slot and its call.
const AT_MOST: usize = 2 * PER_SECOND;
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
        let most = most_within_a_second(&heard);
        if most > AT_MOST {
            violations.push(format!("{most} calls begin within a second; the limit is {PER_SECOND}"));
        }
        let of_chat: Vec<_> = heard.iter().filter(|call| call.to == SHARED_CHAT).cloned().collect();
        let most = most_within_a_second(&of_chat);
        if most > AT_MOST_OF_CHAT {
            violations.push(format!("{most} calls to one chat begin within a second; the limit is 1"));
        }
        for parking in &heard {
            let Some(seconds) = parking.parks_s else { continue };
            let parked = parking.at_ms + AFTER_PARKING_MS..(parking.at_ms + seconds * 1_000).saturating_sub(1_000);
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

/// Returns the calls to the bot, in the order in which they began.
fn calls(setting: &Setting) -> Vec<Heard> {
    let mut heard = setting.net.heard();
    heard.retain(|call| call.provider == "telegram" && call.text.starts_with('l'));
    heard.sort_by_key(|call| call.begun_ms);
    heard
}

/// Returns how many calls begin within a second at most.
fn most_within_a_second(heard: &[Heard]) -> usize {
    let from = |first: usize| {
        let begun = heard[first].begun_ms;
        heard[first..].iter().take_while(|call| call.begun_ms < begun + 1_000).count()
    };
    (0..heard.len()).map(from).max().unwrap_or(0)
}
