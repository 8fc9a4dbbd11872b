//! Downsells: contacts that start a bot, and gateways that report charges, payments and expiries,
//! each more than once and in any order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};
use tokio::time::sleep;
use umavez_domain::time::Timestamp;
use umavez_domain::webhooks::standard::{key_bytes, sign};

use super::{TELEGRAM_SECRET, Workload, key_of, pause, text};
use crate::audit;
use crate::clients::{Answer, Client};
use crate::play::Setting;

const CONTACTS: i64 = 2;
const STEPS: usize = 4;
const SECRET: &str = "whsec_bG9jYWwtcGF5bWVudC1zZWNyZXQtMDAwMQ==";
/// How long an offer waits after its charge.
const DELAY_MS: u64 = 60_000;
/// How long a call may already be on its way to Telegram when a payment is answered.
const ON_ITS_WAY_MS: u64 = 500;

#[derive(Default)]
pub struct Downsells {
    history: RefCell<History>,
}

#[derive(Default)]
struct History {
    charges: BTreeMap<String, Charge>,
}

/// What a gateway reported about one charge.
#[derive(Debug)]
struct Charge {
    contact: i64,
    /// When the gateway first reported it.
    created_ms: u64,
    /// When its payment or its expiry was answered, and how many offers were then in flight.
    closed: Option<(u64, u64)>,
}

impl Workload for Downsells {
    fn name(&self) -> &'static str {
        "downsells"
    }

    fn functions(&self) -> Vec<&'static str> {
        vec!["admin", "webhook-intake", "outbound-sender", "downsell-sweep", "outbox-relay", "recovery"]
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            set_up(&setting.client("admin")).await;
            join_all((0..CONTACTS).map(|contact| self.contact(setting.clone(), 1_000 + contact))).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        let is_open = |offer: &Value| offer["status"] == "pending" && offer["state"] != "UNKNOWN";
        !offers(setting).iter().any(is_open)
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        let shown = |offer: &Value| match text(&offer["status"]).as_str() {
            "pending" => format!("an offer is {}", text(&offer["state"])),
            status => format!("an offer is {status}"),
        };
        let closed = self.history.borrow().charges.values().filter_map(|charge| charge.closed).collect::<Vec<_>>();
        let mut reached: Vec<_> = offers(setting).iter().map(shown).collect();
        reached.extend(closed.iter().map(|_| "a charge is closed".to_owned()));
        reached.extend(closed.iter().filter(|(_, n)| *n > 0).map(|_| "an offer is in flight".to_owned()));
        reached
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &[
            "an offer is sent",
            "an offer is UNKNOWN",
            "an offer is canceled",
            "an offer is skipped",
            "an offer is in flight",
            "a charge is closed",
        ]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let (history, offers, heard) = (self.history.borrow(), offers(setting), setting.net.heard());
        let mut violations = Vec::new();
        // Calls and offers of one downsell and one contact.
        let mut pairs: BTreeMap<(String, String), Vec<&Value>> = BTreeMap::new();
        for offer in &offers {
            let pair = (format!("offer {}", offer["downsell_id"]), contact_of(offer));
            pairs.entry(pair).or_default().push(offer);
        }
        for ((name, contact), offers) in &pairs {
            let calls: Vec<_> = heard.iter().filter(|heard| heard.text == *name && heard.to == *contact).collect();
            let of_calls: Vec<_> = offers.iter().map(|offer| key_of(offer)).collect();
            violations.extend(audit::calls_are_attempts(&setting.net, name, &of_calls, &calls));
            let accepted = calls.iter().filter(|heard| heard.reaction.is_accepted()).count();
            let begun = offers.iter().filter(|offer| offer["attempt"].as_u64().unwrap_or(0) > 0).count();
            if accepted > begun {
                violations.push(format!("{name} went out to {contact} {accepted} times for {begun} offers"));
            }
            let sent = offers.iter().filter(|offer| offer["status"] == "sent").count();
            if sent > accepted {
                violations.push(format!("{sent} offers {name} to {contact} are sent, {accepted} went out"));
            }
            let may_be_sent = |offer: &&&Value| offer["status"] == "sent" || offer["state"] == "UNKNOWN";
            let explained = offers.iter().filter(may_be_sent).count();
            if accepted > explained {
                violations.push(format!("{name} went out to {contact} {accepted} times, {explained} are on record"));
            }
        }
        violations.extend(history.audit_gate(&heard));
        violations
    }
}

impl Downsells {
    async fn contact(&self, setting: Rc<Setting>, contact: i64) {
        let telegram = setting.client("telegram");
        let gateway = setting.client("gateway");
        let dice = setting.net.dice();
        // The charges that are not closed, and when the gateway reported them.
        let mut open: Vec<(String, u64)> = Vec::new();
        for step in 0..STEPS {
            let name = format!("tx-{contact}-{step}");
            let mut draw = dice.of(&format!("contact {name}"));
            sleep(pause(&mut draw, 60_000)).await;
            match draw.u32(0..6) {
                0 => {
                    let number = contact as u64 * 100 + step as u64;
                    let body = update(contact, number, "/start promo", setting.net.now_ms() / 1_000);
                    let header = ("x-telegram-bot-api-secret-token", TELEGRAM_SECRET.to_owned());
                    telegram.webhook("/webhooks/telegram/default", &[header], &body).await;
                }
                1..4 => {
                    let created_ms = setting.net.elapsed_ms();
                    let charge = Charge { contact, created_ms, closed: None };
                    self.history.borrow_mut().charges.insert(name.clone(), charge);
                    report(&gateway, "pix-created", contact, &name).await;
                    // Now and then the gateway reports it again.
                    if draw.u32(0..4) == 0 {
                        report(&gateway, "pix-created", contact, &name).await;
                    }
                    open.push((name, created_ms));
                }
                _ if open.is_empty() => {}
                kind => {
                    let (charge, created_ms) = open.remove(draw.usize(0..open.len()));
                    // Most are closed when their offer is due.
                    let due_ms = created_ms + DELAY_MS + draw.u64(0..1_200);
                    if draw.u32(0..4) > 0 {
                        sleep(Duration::from_millis(due_ms.saturating_sub(setting.net.elapsed_ms()))).await;
                    }
                    let what = if kind == 4 { "payment-approved" } else { "pix-expired" };
                    if let Some(answer) = report(&gateway, what, contact, &charge).await.filter(|a| a.status == 200) {
                        let in_flight = answer.body["in_flight"].as_u64().unwrap_or(0);
                        let mut history = self.history.borrow_mut();
                        let charge = history.charges.get_mut(&charge).expect("a charge");
                        charge.closed = Some((answer.at_ms, in_flight));
                    }
                }
            }
        }
    }
}

impl History {
    /// I9: an offer is sent only while a charge of its contact may be unpaid, or if a payment or an
    /// expiry reported it as in flight.
    fn audit_gate(&self, heard: &[crate::providers::Heard]) -> Vec<String> {
        let mut violations = Vec::new();
        for contact in 1_000..1_000 + CONTACTS {
            let charges: Vec<_> = self.charges.values().filter(|charge| charge.contact == contact).collect();
            let in_flight: u64 = charges.iter().filter_map(|charge| charge.closed).map(|(_, number)| number).sum();
            let is_closed = |at_ms: u64| {
                let is_open = |charge: &&&Charge| {
                    charge.created_ms <= at_ms
                        && charge.closed.is_none_or(|(closed, _)| at_ms <= closed + ON_ITS_WAY_MS)
                };
                !charges.iter().any(|charge| is_open(&charge))
            };
            let offers =
                heard.iter().filter(|heard| heard.to == contact.to_string() && heard.text.starts_with("offer "));
            let late: Vec<_> = offers.filter(|heard| is_closed(heard.at_ms)).collect();
            if late.len() as u64 > in_flight {
                let at = late.iter().map(|heard| heard.at_ms).collect::<Vec<_>>();
                violations.push(format!(
                    "{contact} was sent offers at {at:?} without an unpaid charge; {in_flight} were in flight"
                ));
            }
        }
        violations
    }
}

/// Creates the bot and its downsells. Repeats requests that got no answer.
async fn set_up(admin: &Client) {
    let ensure = async |path: &str, key: &str, body: &Value| {
        for _ in 0..5 {
            match admin.request("POST", path, Some(key), Some(body)).await {
                Some(answer) if answer.status < 300 => return,
                // A repeated request that had no answer: it is there.
                Some(answer) if answer.status == 409 => return,
                Some(answer) => panic!("the set-up is refused: {} {}", answer.status, answer.body),
                None => {}
            }
        }
    };
    ensure("/api/admin/bots", "bot", &json!({"slug": "default"})).await;
    for (number, on_start) in [(1, true), (2, false)] {
        let body = json!({
            "name": format!("Offer {number}"), "content": {"text": format!("offer {number}")}, "delay_minutes": 1,
            "after_start": on_start, "after_pix": true,
        });
        ensure("/api/admin/bots/default/downsells", &format!("downsell-{number}"), &body).await;
    }
}

/// Reports something about a charge, as a gateway does.
async fn report(gateway: &Client, what: &str, contact: i64, transaction: &str) -> Option<Answer> {
    let body = json!({"bot_slug": "default", "telegram_id": contact, "transaction_id": transaction});
    let now = Timestamp::from_millis(gateway.net.now_ms());
    let signed = sign(&[&key_bytes(SECRET)], "evt_1", now, body.to_string().as_bytes());
    let headers = [
        ("webhook-id", signed.id),
        ("webhook-timestamp", signed.timestamp.to_string()),
        ("webhook-signature", signed.signature),
    ];
    gateway.webhook(&format!("/api/payment/webhook/{what}"), &headers, &body).await
}

pub(super) fn update(chat: i64, message_id: u64, text: &str, at: i64) -> Value {
    json!({"update_id": message_id, "message": {
        "message_id": message_id,
        "from": {"id": chat, "is_bot": false, "first_name": "Ana"},
        "chat": {"id": chat, "type": "private", "first_name": "Ana"},
        "date": at,
        "text": text,
    }})
}

fn contact_of(offer: &Value) -> String {
    let contact = &offer["telegram_id"];
    contact.as_str().map_or_else(|| contact.to_string(), str::to_owned)
}

fn offers(setting: &Setting) -> Vec<Value> {
    let rows = setting.net.tables().rows(setting.table("Downsells"));
    rows.into_iter().filter(|row| !text(&row["scheduled_at"]).is_empty()).collect()
}
