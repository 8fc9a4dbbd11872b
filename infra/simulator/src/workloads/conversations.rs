//! Conversations: contacts that write in bursts, a responder that answers, fails or stalls, and an
//! operator that holds and releases.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::downsells::update;
use super::{TELEGRAM_SECRET, Workload, pause, text};
use crate::play::Setting;

const CONTACTS: i64 = 2;
const BURSTS: usize = 3;

#[derive(Default)]
pub struct Conversations {
    history: RefCell<History>,
}

#[derive(Default)]
struct History {
    /// The texts that were accepted, and their contact.
    said: BTreeMap<String, i64>,
}

impl Workload for Conversations {
    fn name(&self) -> &'static str {
        "conversations"
    }

    fn functions(&self) -> &'static [&'static str] {
        &["webhook-intake", "conversations-api", "conversation-worker", "outbound-sender", "outbox-relay", "recovery"]
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            let operator = setting.client("operator");
            for _ in 0..5 {
                let answer = operator.request("PUT", "/instances/telegram/default", None, Some(&json!({}))).await;
                if answer.is_some_and(|answer| answer.status < 300) {
                    break;
                }
            }
            let contacts = (0..CONTACTS).map(|contact| self.contact(setting.clone(), 2_000 + contact));
            join_all(contacts).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        states(setting).iter().all(|state| {
            let is_answered = state["received"] == state["answered"] && state["phase"] == "idle";
            is_answered || state["phase"] == "stuck"
        })
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        let mut reached: Vec<_> =
            states(setting).iter().map(|state| format!("a conversation is {}", text(&state["phase"]))).collect();
        reached.extend(replies(setting).iter().map(|state| format!("a reply is {state}")));
        reached
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let (history, heard) = (self.history.borrow(), setting.net.heard());
        let mut violations = Vec::new();
        let states: BTreeMap<_, _> = states(setting).into_iter().map(|state| (text(&state["id"]), state)).collect();
        let is_stuck = states.values().any(|state| state["phase"] == "stuck");
        let unknown = replies(setting).iter().any(|state| state == "UNKNOWN" || state == "FAILED");
        for (said, contact) in &history.said {
            let replies = heard.iter().filter(|heard| heard.provider == "telegram" && heard.to == contact.to_string());
            let lines = replies.filter(|heard| heard.reaction.is_accepted() && heard.text.lines().any(|l| l == said));
            match lines.count() {
                1 => {}
                0 if is_stuck || unknown => {}
                0 => violations.push(format!("{said} of {contact} was never answered")),
                number => violations.push(format!("{said} of {contact} was answered {number} times")),
            }
        }
        violations
    }
}

impl Conversations {
    async fn contact(&self, setting: Rc<Setting>, contact: i64) {
        let telegram = setting.client("telegram");
        let operator = setting.client("operator");
        let mut number = contact as u64 * 100;
        for burst in 0..BURSTS {
            let mut draw = setting.net.dice().of(&format!("burst {contact}.{burst}"));
            sleep(pause(&mut draw, 30_000)).await;
            for _ in 0..draw.u32(1..4) {
                number += 1;
                let said = format!("t{number}");
                let body = update(contact, number, &said, setting.net.now_ms() / 1_000);
                let header = [("x-telegram-bot-api-secret-token", TELEGRAM_SECRET.to_owned())];
                let answer = telegram.webhook("/webhooks/telegram/default", &header, &body).await;
                if answer.is_some_and(|answer| answer.status == 200) {
                    self.history.borrow_mut().said.insert(said, contact);
                }
                // Telegram repeats an update now and then.
                if draw.u32(0..5) == 0 {
                    telegram.webhook("/webhooks/telegram/default", &header, &body).await;
                }
                sleep(Duration::from_millis(draw.u64(1..4_000))).await;
            }
            if draw.u32(0..4) == 0 {
                let Some(state) =
                    states(&setting).into_iter().find(|state| state["contact"] == json!(contact.to_string()))
                else {
                    continue;
                };
                let id = text(&state["id"]);
                let hold = json!({"seconds": draw.u32(60..300)});
                operator.request("POST", &format!("/conversations/{id}/hold"), None, Some(&hold)).await;
                sleep(Duration::from_millis(draw.u64(1..20_000))).await;
                operator.request("POST", &format!("/conversations/{id}/release"), None, Some(&json!({}))).await;
            }
        }
    }
}

fn states(setting: &Setting) -> Vec<Value> {
    let rows = setting.net.tables().rows(setting.table("Conversations"));
    rows.into_iter().filter(|row| row["sk"] == "STATE").collect()
}

/// Returns the states of the messages that carry replies.
fn replies(setting: &Setting) -> Vec<String> {
    let rows = setting.net.tables().rows(setting.table("Outbound"));
    rows.iter().filter(|row| row["sk"] == "MESSAGE").map(|row| text(&row["state"])).collect()
}
