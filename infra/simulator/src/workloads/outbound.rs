//! Messages and intents: clients that send and check, and operators that cancel, resend, settle and
//! release.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};
use tokio::time::sleep;
use umavez_domain::time::Timestamp;

use super::{ROLLING, Workload, key_of, pause, text};
use crate::audit;
use crate::clients::{Answer, Client};
use crate::play::Setting;
use crate::providers::Heard;

const CLIENTS: usize = 3;
const STEPS: usize = 3;
/// The states in which a message stays unless an operator orders a resend or settles it.
pub(super) const ENDED: &[&str] = &["SENT", "FAILED", "EXPIRED", "SUPPRESSED", "CANCELED", "DEDUPED", "UNKNOWN"];
/// The states of a message that did not go out.
pub(super) const UNSENT: &[&str] = &["FAILED", "EXPIRED", "SUPPRESSED", "CANCELED", "DEDUPED"];
/// For so long after a removal was answered, an earlier try of it may remove what is suppressed
/// anew: the product allows for clocks that differ by five seconds, and clocks differ by four.
const REMOVES_FOR_MS: u64 = 10_000;
/// How long a call may already be on its way to a provider when a cancel is answered.
const ON_ITS_WAY_MS: u64 = 500;

#[derive(Default)]
pub struct Outbound {
    history: RefCell<History>,
}

/// What the clients asked and were answered.
#[derive(Default)]
struct History {
    /// The answers to each message, by its text. All are answers to one request.
    messages: BTreeMap<String, Vec<Answer>>,
    /// Messages that were answered as canceled, and when.
    canceled: Vec<(String, u64)>,
    /// Orders to resend that were accepted or have no answer, by message.
    resends: BTreeMap<String, usize>,
    /// Messages that an operator settled, or perhaps settled.
    settled: Vec<String>,
    /// Checks that may send, by fingerprint.
    checks: BTreeMap<String, Vec<String>>,
    /// Requests with the key and the body of one before that were refused.
    refused: Vec<String>,
    /// Orders to suppress an address, or not to, in any order.
    suppressed: Vec<SuppressionOrder>,
    /// Fingerprints that an operator released, or perhaps released.
    released: Vec<String>,
}

/// An order about the suppression of an address.
#[derive(Debug)]
struct SuppressionOrder {
    to: String,
    is_suppressed: bool,
    asked_ms: u64,
    /// `None` if there is no answer: it may be carried out at any time.
    answered_ms: Option<u64>,
}

impl Workload for Outbound {
    fn name(&self) -> &'static str {
        "outbound"
    }

    fn functions(&self) -> Vec<&'static str> {
        vec!["outbound-api", "outbound-sender", "outbound-sweep", "outbox-relay", "recovery", "delivery-events"]
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        let clients = (0..CLIENTS).map(move |number| self.client(setting.clone(), number));
        Box::pin(async move {
            join_all(clients).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        messages(setting).values().all(|row| ENDED.contains(&text(&row["state"]).as_str()))
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        let history = self.history.borrow();
        let mut reached: Vec<_> =
            messages(setting).values().map(|row| format!("a message is {}", text(&row["state"]))).collect();
        reached.extend(history.canceled.iter().map(|_| "a cancel is answered".to_owned()));
        reached.extend(history.resends.values().map(|_| "a resend is accepted".to_owned()));
        reached.extend(history.settled.iter().map(|_| "a message is settled".to_owned()));
        reached.extend(history.checks.values().flatten().map(|_| "a check may send".to_owned()));
        let word =
            |order: &SuppressionOrder| if order.is_suppressed { "suppressed" } else { "not suppressed any more" };
        reached.extend(history.suppressed.iter().map(|order| format!("an address is {}", word(order))));
        reached.extend(history.released.iter().map(|_| "an intent is released".to_owned()));
        reached
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &[
            "a message is SENT",
            "a message is UNKNOWN",
            "a message is CANCELED",
            "a message is DEDUPED",
            "a message is EXPIRED",
            "a message is FAILED",
            "a resend is accepted",
            "a message is settled",
            "an intent is released",
            "an address is suppressed",
            "an address is not suppressed any more",
        ]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let (history, rows, heard) = (self.history.borrow(), messages(setting), setting.net.heard());
        let mut violations = Vec::new();
        for (name, answers) in &history.messages {
            let calls: Vec<_> = heard.iter().filter(|heard| heard.text == *name).collect();
            violations.extend(history.audit_message(name, answers, &rows, &calls));
            let of_calls: Vec<_> = rows.values().filter(|row| name_of(row) == *name).map(key_of).collect();
            violations.extend(audit::calls_are_attempts(&setting.net, name, &of_calls, &calls));
        }
        // Proof counts in every state in which the message may have been sent.
        for (id, row) in rows.iter().filter(|(_, row)| row["state"] == "FAILED" || row["state"] == "UNKNOWN") {
            if audit::is_proven_sent(&setting.net, id) {
                violations.push(format!("{id} is {}, but an event proves that it was sent", text(&row["state"])));
            }
        }
        violations.extend(history.audit_windows(&rows, &heard));
        // I9: no attempt begins after its address was answered as suppressed.
        for (address, from_ms, until_ms) in history.suppressions() {
            // Other workloads may write to the same address.
            let is_ours = |heard: &&Heard| heard.to == address && history.messages.contains_key(&heard.text);
            for late in heard.iter().filter(is_ours).filter(|heard| heard.at_ms > from_ms) {
                let of_call = rows.values().filter(|row| name_of(row) == late.text).map(key_of);
                let begun = audit::begun_ms(&setting.net, &of_call.collect::<Vec<_>>(), late);
                if begun.is_none_or(|begun| (from_ms + 1..until_ms).contains(&begun)) {
                    let (name, heard) = (&late.text, late.at_ms);
                    violations.push(format!("{address} was suppressed at {from_ms}, and got {name} at {heard}"));
                }
            }
        }
        violations.extend(history.refused.iter().cloned());
        violations
    }
}

impl Outbound {
    async fn client(&self, setting: Rc<Setting>, number: usize) {
        let client = setting.client(&format!("client-{number}"));
        for step in 0..STEPS {
            let name = format!("m{number}.{step}");
            let mut draw = setting.net.dice().of(&format!("request {name}"));
            sleep(pause(&mut draw, 20_000)).await;
            match draw.u32(0..12) {
                0 => self.check(&client, &name, &mut draw).await,
                1 => self.suppress(&client, &mut draw).await,
                _ => self.message(&client, &name, &mut draw).await,
            }
        }
    }

    /// Asks whether an intent may be sent, and now and then releases it.
    async fn check(&self, client: &Client, name: &str, draw: &mut Rng) {
        let body = intent(draw);
        let answer = client.request("POST", "/intents", Some(name), Some(&body)).await;
        let Some(answer) = answer.filter(|answer| answer.status < 300) else {
            // It may have been taken, and its caller does not know.
            return;
        };
        let fingerprint = text(&answer.body["fingerprint"]);
        if answer.body["can_send"] == true {
            self.history.borrow_mut().checks.entry(fingerprint.clone()).or_default().push(name.to_owned());
            // I9: a request that is repeated is answered as before.
            if draw.u32(0..3) == 0 {
                let again = client.request("POST", "/intents", Some(name), Some(&body)).await;
                let mut history = self.history.borrow_mut();
                let is_released = history.released.contains(&fingerprint);
                if let Some(again) = again.filter(|again| again.body["can_send"] != true && !is_released) {
                    history.refused.push(format!("the check {name} may send, and then not: {}", again.body));
                }
            }
        }
        if draw.bool() {
            sleep(Duration::from_millis(draw.u64(1..30_000))).await;
            self.history.borrow_mut().released.push(fingerprint.clone());
            let body = json!({"client_id": body["client_id"]});
            let path = format!("/intents/{fingerprint}/release");
            client.request("POST", &path, Some(&format!("release-{name}")), Some(&body)).await;
        }
    }

    /// Puts an address on the suppression list, and now and then removes it and puts it there
    /// again.
    async fn suppress(&self, client: &Client, draw: &mut Rng) {
        let (channel, to) = address(draw);
        let (path, body) = (format!("/suppressions?channel={channel}&to={to}"), json!({"channel": channel, "to": to}));
        let steps: &[bool] = if draw.bool() { &[true] } else { &[true, false, true] };
        for is_suppressed in steps.iter().copied() {
            let asked_ms = client.net.elapsed_ms();
            // The order is on record before it is carried out.
            let order = SuppressionOrder { to: to.clone(), is_suppressed, asked_ms, answered_ms: None };
            let number = self.history.borrow().suppressed.len();
            self.history.borrow_mut().suppressed.push(order);
            let answer = match is_suppressed {
                true => client.request("POST", "/suppressions", None, Some(&body)).await,
                false => client.request("DELETE", &path, None, None).await,
            };
            let answer = answer.filter(|answer| answer.status < 300);
            self.history.borrow_mut().suppressed[number].answered_ms = answer.map(|answer| answer.at_ms);
            sleep(pause_of_operator(draw)).await;
        }
    }

    /// Sends a message, and now and then orders something about it.
    async fn message(&self, client: &Client, name: &str, draw: &mut Rng) {
        let body = message(name, client.net.now_ms(), draw);
        let mut answers: Vec<_> = client.request("POST", MESSAGES, Some(name), Some(&body)).await.into_iter().collect();
        // Now and then the same request comes again, much later.
        if draw.u32(0..4) == 0 {
            sleep(Duration::from_millis(draw.u64(1..60_000))).await;
            answers.extend(client.request("POST", MESSAGES, Some(name), Some(&body)).await);
        }
        // I9: a request that is repeated is answered as before.
        if let [first, again] = &answers[..]
            && (first.status < 300) != (again.status < 300)
        {
            let (first, again) = (first.status, again.status);
            self.history.borrow_mut().refused.push(format!("{name} was answered with {first}, then with {again}"));
        }
        let id = answers.first().map(|answer| text(&answer.body["message_id"]));
        self.history.borrow_mut().messages.insert(name.to_owned(), answers);
        let Some(id) = id.filter(|id| !id.is_empty()) else { return };
        match draw.u32(0..10) {
            0..3 => {
                sleep(Duration::from_millis(draw.u64(1..5_000))).await;
                let answer = client.request("POST", &format!("{MESSAGES}/{id}/cancel"), None, None).await;
                if let Some(answer) = answer.filter(|answer| answer.body["canceled"] == true) {
                    self.history.borrow_mut().canceled.push((id, answer.at_ms));
                }
            }
            3..5 => {
                sleep(Duration::from_millis(draw.u64(1_000..90_000))).await;
                let (path, key) = (format!("{MESSAGES}/{id}/resend"), format!("resend-{name}"));
                let answer = client.request("POST", &path, Some(&key), None).await;
                if answer.is_none_or(|answer| answer.status < 300) {
                    *self.history.borrow_mut().resends.entry(id).or_default() += 1;
                }
            }
            5 => {
                sleep(Duration::from_millis(draw.u64(1_000..90_000))).await;
                let (path, body) = (format!("{MESSAGES}/{id}/settle"), json!({"sent": draw.bool()}));
                let answer = client.request("POST", &path, None, Some(&body)).await;
                if answer.is_none_or(|answer| answer.status < 300) {
                    self.history.borrow_mut().settled.push(id);
                }
            }
            _ => {}
        }
    }
}

impl History {
    /// Returns the addresses that are certainly suppressed, from when until when.
    fn suppressions(&self) -> Vec<(String, u64, u64)> {
        let mut certain = Vec::new();
        for order in self.suppressed.iter().filter(|order| order.is_suppressed) {
            let Some(from_ms) = order.answered_ms else { continue };
            let mut removals = self.suppressed.iter().filter(|other| other.to == order.to && !other.is_suppressed);
            let is_open = |removal: &SuppressionOrder| {
                let until_ms = removal.answered_ms.map(|answered| answered + REMOVES_FOR_MS);
                removal.asked_ms < from_ms && until_ms.is_none_or(|until| until > order.asked_ms)
            };
            if removals.clone().any(is_open) {
                continue;
            }
            let until_ms = removals.find(|removal| removal.asked_ms >= from_ms).map_or(u64::MAX, |next| next.asked_ms);
            certain.push((order.to.clone(), from_ms, until_ms));
        }
        certain
    }

    /// Audits one message: what its client was answered, its row, and the calls to its provider.
    fn audit_message(
        &self,
        name: &str,
        answers: &[Answer],
        rows: &BTreeMap<String, Value>,
        calls: &[&Heard],
    ) -> Vec<String> {
        let mut violations = Vec::new();
        let mut accepted = answers.iter().filter(|answer| answer.status < 300);
        let Some(id) = accepted.next().map(|answer| text(&answer.body["message_id"])) else { return violations };
        if accepted.any(|answer| text(&answer.body["message_id"]) != id) {
            violations.push(format!("{name} has two ids"));
        }
        // I4: what was accepted is there, and has ended.
        let Some(row) = rows.get(&id) else { return vec![format!("{name} was accepted as {id} and is gone")] };
        let state = text(&row["state"]);
        if !ENDED.contains(&state.as_str()) {
            violations.push(format!("{name} ({id}) is {state} at the end"));
        }
        // I5: a message is sent again only if an operator ordered that.
        let sent = calls.iter().filter(|heard| heard.reaction.is_accepted()).count();
        let allowed = 1 + self.resends.get(&id).copied().unwrap_or(0);
        if sent > allowed {
            violations.push(format!("{name} ({id}) went out {sent} times, {allowed} allowed"));
        }
        let is_settled = self.settled.contains(&id);
        if state == "SENT" && sent == 0 && !is_settled {
            violations.push(format!("{name} ({id}) is SENT, but no provider accepted it"));
        }
        if UNSENT.contains(&state.as_str()) && sent > 0 && !is_settled {
            violations.push(format!("{name} ({id}) is {state}, but went out"));
        }
        // I9: nothing begins after a message was answered as canceled, unless it was resent.
        for (_, at_ms) in self.canceled.iter().filter(|(canceled, _)| *canceled == id && allowed == 1) {
            if state != "CANCELED" && !is_settled {
                violations.push(format!("{name} ({id}) was canceled at {at_ms}, and is {state}"));
            }
            if let Some(later) = calls.iter().find(|heard| heard.at_ms > at_ms + ON_ITS_WAY_MS) {
                violations.push(format!("{name} ({id}) was canceled at {at_ms} and heard at {}", later.at_ms));
            }
        }
        violations
    }

    /// Audits the windows: at most one message of a fingerprint, and of a guard, is sent, unless an
    /// operator ordered otherwise. All windows are longer than a play.
    fn audit_windows(&self, rows: &BTreeMap<String, Value>, heard: &[Heard]) -> Vec<String> {
        let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in rows.values() {
            let (intent, name) = (&row["intent"], name_of(row));
            let went_out = heard.iter().any(|heard| heard.text == name && heard.reaction.is_accepted());
            if intent.is_object() && went_out {
                sent.entry(text(&intent["fingerprint"])).or_default().push(name);
            }
        }
        for (fingerprint, checks) in &self.checks {
            sent.entry(fingerprint.clone()).or_default().extend(checks.iter().cloned());
        }
        let is_ordered = |fingerprint: &String| {
            self.released.contains(fingerprint) || !self.settled.is_empty() || !self.resends.is_empty()
        };
        let twice = sent.into_iter().filter(|(fingerprint, names)| names.len() > 1 && !is_ordered(fingerprint));
        twice.map(|(fingerprint, names)| format!("the intent {fingerprint} went out as {names:?}")).collect()
    }
}

pub(super) const MESSAGES: &str = "/outbound/messages";

/// Returns how long an operator waits between two orders: as long as an earlier try of the last
/// order may still have an effect, or longer.
fn pause_of_operator(draw: &mut Rng) -> Duration {
    let longest = [3_000, REMOVES_FOR_MS, 60_000][draw.usize(0..3)];
    Duration::from_millis(draw.u64(1..longest))
}

/// Returns the body of a request for a message.
fn message(name: &str, now_ms: i64, draw: &mut Rng) -> Value {
    let (channel, to) = address(draw);
    let content = match channel {
        "email" => json!({"from": "shop@example.com", "subject": name, "text": name}),
        _ => json!({"text": name}),
    };
    let mut body = json!({"channel": channel, "to": to, "content": content});
    if draw.u32(0..3) > 0 {
        body["intent"] = intent(draw);
    }
    let later = |ms: i64| json!(Timestamp::from_millis(now_ms + ms));
    match draw.u32(0..6) {
        0 => body["send_at"] = later(draw.i64(10_000..600_000)),
        1 => body["not_after"] = later(draw.i64(20_000..120_000)),
        _ => {}
    }
    body
}

/// Returns a channel and one of few addresses, so that requests conflict.
fn address(draw: &mut Rng) -> (&'static str, String) {
    let number = draw.u32(0..3);
    match draw.u32(0..3) {
        0 => ("telegram", format!("{}", 1_000 + number)),
        1 => ("whatsapp", format!("551191234567{number}")),
        _ => ("email", format!("ana{number}@example.com")),
    }
}

/// Returns an intent of one of few clients and types, so that requests conflict. One type has a
/// guard.
fn intent(draw: &mut Rng) -> Value {
    let client_id = format!("91b7584a-d8f1-4cd6-b0e1-414c1027c4d{}", draw.u32(0..2));
    match draw.u32(0..3) {
        0 => json!({"client_id": client_id, "intent_type": ROLLING[0].0}),
        1 => json!({"client_id": client_id, "intent_type": "reactivation_value_prop"}),
        _ => json!({
            "client_id": client_id, "intent_type": "offer_active",
            "reference_id": format!("1e2feb89-7ed4-4c2c-9cc4-a6ce78e5106{}", draw.u32(0..2)),
        }),
    }
}

/// Returns the text of a message, which is its name in a play.
pub(super) fn name_of(row: &Value) -> String {
    let content = &row["content"];
    text(if content["subject"].is_string() { &content["subject"] } else { &content["text"] })
}

/// Returns the rows of messages, by id.
pub(super) fn messages(setting: &Setting) -> BTreeMap<String, Value> {
    let rows = setting.net.tables().rows(setting.table("Outbound")).into_iter();
    let messages = rows.filter(|row| text(&row["pk"]).starts_with("MESSAGE#") && row["sk"] == "MESSAGE");
    messages.map(|row| (text(&row["id"]), row)).collect()
}
