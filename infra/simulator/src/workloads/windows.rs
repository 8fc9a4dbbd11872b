//! Windows of intents over weeks: messages for now and for later, checks, cancels, failures and
//! long waits for a provider, in any order. Each intent has a rolling window.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};
use tokio::time::sleep;
use umavez_domain::time::Timestamp;

use super::outbound::{ENDED, MESSAGES, UNSENT, messages, name_of};
use super::{Workload, text};
use crate::clients::Client;
use crate::play::Setting;

/// A type without a reference, and one whose window counts for the contact, whatever the campaign.
pub const ROLLING: &[(&str, &str)] = &[("reactivation_nudge", "reference"), ("discovery_first_touch", "contact")];
const CALLERS: usize = 2;
const STEPS: usize = 5;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const WINDOW_MS: u64 = 7 * DAY_MS;
/// The time between an attempt and its call, if the instance is frozen, and the clocks' difference.
const MARGIN_MS: u64 = 10 * 60_000;

#[derive(Default)]
pub struct Windows {
    history: RefCell<History>,
}

#[derive(Default)]
struct History {
    messages: BTreeMap<String, Request>,
    checks: Vec<Request>,
    /// Requests with the key and the body of one before that were answered otherwise.
    refused: Vec<String>,
    canceled: usize,
}

/// A request for a message or a check.
#[derive(Debug, Clone)]
struct Request {
    guard: &'static str,
    asked_ms: u64,
    /// When the message is to be sent.
    at_ms: u64,
    /// Whether it may be sent. `None` if there is no answer.
    is_allowed: Option<bool>,
}

/// What may block a request: from when to when it may be sent, and when it ended unsent.
#[derive(Debug)]
struct Blocker {
    name: String,
    guard: &'static str,
    from_ms: u64,
    to_ms: u64,
    over_ms: Option<u64>,
}

impl Workload for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn functions(&self) -> Vec<&'static str> {
        vec!["outbound-api", "outbound-sender", "outbound-sweep", "outbox-relay", "recovery", "intent-expiry"]
    }

    fn longest_rest(&self) -> Duration {
        Duration::from_millis(90 * DAY_MS)
    }

    fn longest_retry_after_seconds(&self) -> u64 {
        2 * DAY_MS / 1_000
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            join_all((0..CALLERS).map(|caller| self.caller(setting.clone(), caller))).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        messages(setting).values().all(|row| ENDED.contains(&text(&row["state"]).as_str()))
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        let history = self.history.borrow();
        let rows = messages(setting);
        let mut reached: Vec<_> = rows.values().map(|row| format!("a message is {}", text(&row["state"]))).collect();
        let allowed = |request: &&Request| request.is_allowed == Some(true);
        reached.extend(history.checks.iter().filter(allowed).map(|_| "a check may send".to_owned()));
        reached.extend((0..history.canceled).map(|_| "a cancel is answered".to_owned()));
        let late = |row: &&Value| {
            let name = name_of(row);
            let request = history.messages.get(&name);
            let heard = setting.net.heard().into_iter().filter(|heard| heard.text == name);
            let sent = heard.filter(|heard| heard.reaction.is_accepted()).map(|heard| heard.at_ms).min();
            request.zip(sent).is_some_and(|(request, sent)| sent > request.at_ms + DAY_MS / 2)
        };
        reached.extend(rows.values().filter(late).map(|_| "a message is sent late".to_owned()));
        reached
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &[
            "a message is SENT",
            "a message is DEDUPED",
            "a message is CANCELED",
            "a message is UNKNOWN",
            "a message is sent late",
            "a check may send",
            "a cancel is answered",
        ]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let history = self.history.borrow();
        let rows = messages(setting);
        let mut violations = Vec::new();
        for row in rows.values().filter(|row| !ENDED.contains(&text(&row["state"]).as_str())) {
            violations.push(format!("{} is {} at the end", name_of(row), text(&row["state"])));
        }
        violations.extend(history.refused.iter().cloned());
        violations.extend(history.audit_sends(setting));
        violations.extend(history.audit_refusals(setting, &rows));
        violations
    }
}

impl Windows {
    async fn caller(&self, setting: Rc<Setting>, caller: usize) {
        let client = setting.client(&format!("caller-{caller}"));
        for step in 0..STEPS {
            let name = format!("w{caller}.{step}");
            let mut draw = setting.net.dice().of(&format!("caller {name}"));
            let longest = [60_000, HOUR_MS, DAY_MS, 4 * DAY_MS][draw.usize(0..4)];
            sleep(Duration::from_millis(draw.u64(1..longest))).await;
            match draw.u32(0..6) {
                0 => self.check(&client, &name, &mut draw).await,
                _ => self.message(&client, &name, &mut draw).await,
            }
        }
    }

    async fn check(&self, client: &Client, name: &str, draw: &mut Rng) {
        let (guard, body) = intent(draw);
        let asked_ms = client.net.elapsed_ms();
        let answer = client.request("POST", "/intents", Some(name), Some(&body)).await;
        let is_allowed = answer.and_then(|answer| answer.body["can_send"].as_bool());
        // I9: a request that is repeated is answered as before.
        if is_allowed == Some(true) && draw.bool() {
            sleep(Duration::from_millis(draw.u64(1..2 * DAY_MS))).await;
            let again = client.request("POST", "/intents", Some(name), Some(&body)).await;
            if let Some(again) = again.filter(|again| again.body["can_send"] != true) {
                let refused = format!("the check {name} may send, and then: {} {}", again.status, again.body);
                self.history.borrow_mut().refused.push(refused);
            }
        }
        self.history.borrow_mut().checks.push(Request { guard, asked_ms, at_ms: asked_ms, is_allowed });
    }

    /// Sends a message, now or within weeks, and now and then cancels it.
    async fn message(&self, client: &Client, name: &str, draw: &mut Rng) {
        let (guard, intent) = intent(draw);
        let mut body = json!({"channel": "telegram", "to": "1000", "content": {"text": name}, "intent": intent});
        let asked_ms = client.net.elapsed_ms();
        let later = |ms: u64| json!(Timestamp::from_millis(client.net.now_ms() + i64::try_from(ms).unwrap_or(0)));
        let mut at_ms = asked_ms;
        if draw.bool() {
            let ahead = draw.u64(HOUR_MS..18 * DAY_MS);
            body["send_at"] = later(ahead);
            at_ms += ahead;
        }
        if draw.u32(0..4) == 0 {
            body["not_after"] = later(at_ms - asked_ms + draw.u64(30_000..DAY_MS));
        }
        let answer = client.request("POST", MESSAGES, Some(name), Some(&body)).await;
        let accepted = answer.filter(|answer| answer.status < 300);
        let is_allowed = accepted.as_ref().map(|answer| answer.body["status"] != "DEDUPED");
        self.history.borrow_mut().messages.insert(name.to_owned(), Request { guard, asked_ms, at_ms, is_allowed });
        let Some(id) = accepted.map(|answer| text(&answer.body["message_id"])) else { return };
        if draw.u32(0..5) == 0 {
            sleep(Duration::from_millis(draw.u64(1..2 * DAY_MS))).await;
            let again = client.request("POST", MESSAGES, Some(name), Some(&body)).await;
            if let Some(again) = again.filter(|again| again.status >= 300 || text(&again.body["message_id"]) != id) {
                let refused = format!("{name} was accepted as {id}, and then: {} {}", again.status, again.body);
                self.history.borrow_mut().refused.push(refused);
            }
        }
        if draw.u32(0..5) < 2 {
            sleep(Duration::from_millis(draw.u64(1..3 * DAY_MS))).await;
            let answer = client.request("POST", &format!("{MESSAGES}/{id}/cancel"), None, None).await;
            if answer.is_some_and(|answer| answer.body["canceled"] == true) {
                self.history.borrow_mut().canceled += 1;
            }
        }
    }
}

impl History {
    /// No two sends of one guard lie within its window. A check that may send counts as a send.
    fn audit_sends(&self, setting: &Setting) -> Vec<String> {
        let mut sends: Vec<(&str, u64, String)> = Vec::new();
        for heard in setting.net.heard().iter().filter(|heard| heard.reaction.is_accepted()) {
            if let Some(request) = self.messages.get(&heard.text) {
                sends.push((request.guard, heard.at_ms, heard.text.clone()));
            }
        }
        let allowed = self.checks.iter().filter(|check| check.is_allowed == Some(true));
        sends.extend(allowed.map(|check| (check.guard, check.asked_ms, "a check".to_owned())));
        sends.sort_by_key(|(guard, at_ms, _)| (*guard, *at_ms));
        let pairs = sends.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        let near = pairs.filter(|pair| pair[1].1 - pair[0].1 + MARGIN_MS < WINDOW_MS);
        near.map(|pair| {
            let hours = (pair[1].1 - pair[0].1) / HOUR_MS;
            format!("{} and {} of {} went out {hours} hours apart", pair[0].2, pair[1].2, pair[0].0)
        })
        .collect()
    }

    /// Nothing is refused because of what was never sent.
    fn audit_refusals(&self, setting: &Setting, rows: &BTreeMap<String, Value>) -> Vec<String> {
        let by_name: BTreeMap<_, _> = rows.values().map(|row| (name_of(row), row)).collect();
        let blockers = self.blockers(setting, &by_name);
        let mut refused: Vec<(String, &'static str, u64, u64)> = Vec::new();
        for (number, check) in self.checks.iter().enumerate().filter(|(_, check)| check.is_allowed == Some(false)) {
            refused.push((format!("check {number}"), check.guard, check.asked_ms, check.at_ms));
        }
        for (name, request) in &self.messages {
            let is_deduped = by_name.get(name).is_some_and(|row| row["state"] == "DEDUPED");
            match request.is_allowed {
                Some(false) => refused.push((name.clone(), request.guard, request.asked_ms, request.at_ms)),
                _ if is_deduped => {
                    let at_ms = ended_ms(setting, by_name[name]);
                    refused.push((name.clone(), request.guard, at_ms, at_ms));
                }
                _ => {}
            }
        }
        let blocks = |blocker: &&Blocker, (name, guard, asked_ms, at_ms): &(String, &'static str, u64, u64)| {
            blocker.name != *name
                && blocker.guard == *guard
                && blocker.over_ms.is_none_or(|over| over + MARGIN_MS > *asked_ms)
                && *at_ms < blocker.to_ms + WINDOW_MS + MARGIN_MS
                && blocker.from_ms < *at_ms + WINDOW_MS + MARGIN_MS
        };
        let free = refused.iter().filter(|refused| !blockers.iter().any(|blocker| blocks(&blocker, refused)));
        free.map(|(name, guard, asked_ms, _)| format!("{name} of {guard} was refused at {asked_ms} for no reason"))
            .collect()
    }

    fn blockers(&self, setting: &Setting, rows: &BTreeMap<String, &Value>) -> Vec<Blocker> {
        let mut blockers = Vec::new();
        for (number, check) in self.checks.iter().enumerate().filter(|(_, check)| check.is_allowed != Some(false)) {
            // A check without an answer may have been carried out at any of its tries.
            let (name, to_ms) = (format!("check {number}"), check.at_ms + MARGIN_MS);
            blockers.push(Blocker { name, guard: check.guard, from_ms: check.at_ms, to_ms, over_ms: None });
        }
        for (name, request) in self.messages.iter().filter(|(_, request)| request.is_allowed != Some(false)) {
            let Some(row) = rows.get(name) else { continue };
            let ended_ms = ended_ms(setting, row);
            let is_unsent = UNSENT.contains(&text(&row["state"]).as_str());
            let (name, to_ms) = (name.clone(), ended_ms.max(request.at_ms));
            let over_ms = is_unsent.then_some(ended_ms);
            blockers.push(Blocker { name, guard: request.guard, from_ms: request.at_ms, to_ms, over_ms });
        }
        blockers
    }
}

/// Returns when a message was last changed, in milliseconds of the play.
fn ended_ms(setting: &Setting, row: &Value) -> u64 {
    let at = row["updated_at"].as_str().and_then(Timestamp::parse);
    at.map_or(0, |at| u64::try_from(at.millis() - setting.net.epoch().1).unwrap_or(0))
}

/// Returns one of few intents, so that requests conflict, and the name of its guard.
fn intent(draw: &mut Rng) -> (&'static str, Value) {
    let client_id = "0c6f8f2e-3b0d-4a55-9a53-0d8f3f4a7e10";
    let (guard, _) = ROLLING[draw.usize(0..ROLLING.len())];
    let mut intent = json!({"client_id": client_id, "intent_type": guard});
    if guard == ROLLING[1].0 {
        intent["reference_id"] = json!(format!("1e2feb89-7ed4-4c2c-9cc4-a6ce78e5106{}", draw.u32(0..3)));
    }
    (guard, intent)
}
