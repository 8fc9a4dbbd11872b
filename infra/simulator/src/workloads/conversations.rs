//! Conversations: contacts that write in bursts, a responder that answers at once, later, at length
//! or not at all, persons who answer from the phone, and an operator that holds and releases.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::downsells::update;
use super::{TELEGRAM_SECRET, Workload, key_of, pause, text};
use crate::audit;
use crate::clients::{Answer, Client};
use crate::outside::Outside;
use crate::play::Setting;
use crate::providers::Heard;

const CONTACTS: &[Contact] = &[
    Contact { channel: "telegram", address: "2000", number: 2_000 },
    Contact { channel: "whatsapp", address: "5511912345699", number: 3_000 },
];
const BURSTS: usize = 2;
/// How long the bot is silent after a person has answered.
const PERSON_HOLD_SECONDS: u64 = 60;
/// How far the clocks of two instances differ at most, and the time of a write.
const MARGIN_MS: u64 = 5_000;

#[derive(Debug, Clone, Copy)]
struct Contact {
    channel: &'static str,
    address: &'static str,
    number: u64,
}

#[derive(Default)]
pub struct Conversations {
    history: Rc<RefCell<History>>,
}

#[derive(Default)]
struct History {
    /// The texts that were accepted, and their contact.
    said: BTreeMap<String, &'static str>,
    holds: Vec<Hold>,
    /// When a release was requested, by contact.
    releases: Vec<(&'static str, u64)>,
    /// The contacts whose messages a person may have answered.
    by_person: Vec<&'static str>,
    /// Messages of the bot whose echo was mistaken for a message of a person.
    mistaken: Vec<String>,
    reached: Vec<String>,
}

/// A time in which the bot must be silent.
#[derive(Debug)]
struct Hold {
    contact: &'static str,
    from_ms: u64,
    until_ms: u64,
}

impl Workload for Conversations {
    fn name(&self) -> &'static str {
        "conversations"
    }

    fn functions(&self) -> Vec<&'static str> {
        vec![
            "webhook-intake",
            "conversations-api",
            "conversation-worker",
            "outbound-sender",
            "outbound-sweep",
            "outbox-relay",
            "recovery",
        ]
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            let operator = setting.client("operator");
            for channel in ["telegram", "whatsapp"] {
                let settings = json!({"person_hold_seconds": PERSON_HOLD_SECONDS, "responder_attempts": 3});
                for _ in 0..5 {
                    let path = format!("/instances/{channel}/default");
                    let answer = operator.request("PUT", &path, None, Some(&settings)).await;
                    if answer.is_some_and(|answer| answer.status < 300) {
                        break;
                    }
                }
            }
            tokio::task::spawn_local(outside(setting.clone(), self.history.clone()));
            join_all(CONTACTS.iter().map(|contact| self.contact(setting.clone(), *contact))).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        states(setting).iter().all(|state| {
            let is_answered = state["received"] == state["answered"] && state["phase"] == "idle";
            is_answered || state["phase"] == "stuck"
        })
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        let states = states(setting).into_iter();
        let mut reached: Vec<_> = states.map(|state| format!("a conversation is {}", text(&state["phase"]))).collect();
        reached.extend(replies(setting).values().map(|row| format!("a reply is {}", text(&row["state"]))));
        let batches = batches(setting);
        reached.extend(batches.iter().map(|batch| format!("a batch is answered by {}", text(&batch["answered_by"]))));
        if batches.iter().any(|batch| batch["messages"].as_array().is_some_and(|parts| parts.len() > 1)) {
            reached.push("a reply has parts".to_owned());
        }
        reached.extend(self.history.borrow().reached.iter().cloned());
        reached
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &[
            "a reply is SENT",
            "a reply is UNKNOWN",
            "a reply is CANCELED",
            "a reply has parts",
            "a batch is answered by responder",
            "a batch is answered by callback",
            "a conversation is held",
            "a conversation is idle",
            "a conversation needs a person",
            "a person answers",
        ]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let (history, heard) = (self.history.borrow(), setting.net.heard());
        let (states, batches, replies) = (states(setting), batches(setting), replies(setting));
        let mut violations: Vec<_> =
            history.mistaken.iter().map(|text| format!("our own {text} was taken for a person's")).collect();
        for (said, contact) in &history.said {
            let Some(state) = states.iter().find(|state| state["contact"] == *contact) else {
                violations.push(format!("{said} of {contact} was accepted, and there is no conversation"));
                continue;
            };
            let said = Said { text: said, contact, state };
            violations.extend(history.audit_answer(&said, setting, &batches, &replies, &heard));
        }
        // An answered batch is finished.
        for state in &states {
            let of_state = batches.iter().filter(|batch| batch["pk"] == state["pk"]);
            let answered = of_state.filter(|batch| batch["batch"].as_u64() <= state["answered"].as_u64());
            for batch in answered.filter(|batch| !batch["finished_at"].is_string()) {
                violations.push(format!("the batch {} of {} is never finished", batch["batch"], state["contact"]));
            }
        }
        violations.extend(history.audit_holds(setting, &replies, &heard));
        violations
    }
}

/// A message of a contact, and its conversation.
struct Said<'a> {
    text: &'a str,
    contact: &'a str,
    state: &'a Value,
}

impl History {
    /// I4 and I5: a message is answered once, or its conversation says why not.
    fn audit_answer(
        &self,
        said: &Said<'_>,
        setting: &Setting,
        batches: &[Value],
        replies: &BTreeMap<String, Value>,
        heard: &[Heard],
    ) -> Option<String> {
        let Said { text: words, contact, state } = said;
        let sent = heard.iter().filter(|heard| heard.to == *contact && heard.reaction.is_accepted());
        let times = sent.filter(|heard| heard.text.lines().any(|line| line == *words)).count();
        if times > 1 {
            return Some(format!("{words} of {contact} was answered {times} times"));
        }
        let rows = messages(setting);
        let row = rows.iter().find(|row| row["pk"] == state["pk"] && row["text"] == *words);
        let Some(number) = row.and_then(|row| row["number"].as_u64()) else {
            return Some(format!("{words} of {contact} was accepted and is gone"));
        };
        let covers = |batch: &&Value| {
            batch["pk"] == state["pk"]
                && batch["from"].as_u64().is_some_and(|from| from <= number)
                && batch["batch"].as_u64().is_some_and(|last| number <= last)
        };
        let may_be_unanswered = match batches.iter().find(covers) {
            // A person has answered it, or the conversation waits for a person.
            None => self.by_person.contains(contact) || state["phase"] == "stuck",
            Some(batch) if batch["reply"].is_null() => true,
            Some(batch) => {
                let parts = batch["messages"].as_array().into_iter().flatten();
                let states = parts.map(|id| replies.get(&text(id)).map(|row| text(&row["state"])));
                let is_sent = |state: Option<String>| state.is_some_and(|state| state == "SENT");
                let is_operators = batch["reply"].as_str().is_some_and(|reply| reply.starts_with("operator"));
                let states: Vec<_> = states.collect();
                let all_sent = !states.is_empty() && states.into_iter().all(is_sent);
                is_operators || !all_sent
            }
        };
        (times == 0 && !may_be_unanswered).then(|| format!("{words} of {contact} was never answered"))
    }

    /// I9: while a conversation is held, no attempt of a reply begins.
    fn audit_holds(&self, setting: &Setting, replies: &BTreeMap<String, Value>, heard: &[Heard]) -> Vec<String> {
        let mut violations = Vec::new();
        for hold in &self.holds {
            let Hold { contact, from_ms, until_ms } = hold;
            let rows: Vec<_> = replies.values().filter(|row| row["to"] == *contact).map(key_of).collect();
            let released = self.releases.iter().filter(|(of, at_ms)| of == contact && at_ms >= from_ms);
            let until_ms = released.map(|(_, at_ms)| *at_ms).chain([*until_ms]).min().unwrap_or(*until_ms);
            for call in heard.iter().filter(|heard| heard.to == *contact) {
                let begun = audit::begun_ms(&setting.net, &rows, call);
                if let Some(begun) = begun.filter(|begun| (*from_ms..until_ms).contains(begun)) {
                    violations
                        .push(format!("{contact} is held from {from_ms} to {until_ms}, and got a reply at {begun}"));
                }
            }
        }
        violations
    }
}

impl Conversations {
    async fn contact(&self, setting: Rc<Setting>, contact: Contact) {
        let provider = setting.client(contact.channel);
        let operator = setting.client("operator");
        let mut number = contact.number * 100;
        for burst in 0..BURSTS {
            let mut draw = setting.net.dice().of(&format!("burst {}.{burst}", contact.number));
            sleep(pause(&mut draw, 30_000)).await;
            for _ in 0..draw.u32(1..4) {
                number += 1;
                let said = format!("t{number}");
                let body = contact.message(number, &said, false, setting.net.now_ms() / 1_000);
                let answer = contact.deliver(&provider, &body).await;
                if answer.is_some_and(|answer| answer.status == 200) {
                    self.history.borrow_mut().said.insert(said, contact.address);
                }
                // A provider repeats a message now and then.
                if draw.u32(0..5) == 0 {
                    contact.deliver(&provider, &body).await;
                }
                sleep(Duration::from_millis(draw.u64(1..4_000))).await;
            }
            match draw.u32(0..8) {
                0 | 1 => self.hold(&setting, &operator, contact, &mut draw).await,
                2 | 3 if contact.channel == "whatsapp" => {
                    self.person(&setting, &provider, contact, number + 50, &mut draw).await;
                }
                _ => self.help(&setting, &operator, contact, &mut draw).await,
            }
        }
    }

    /// An operator holds a conversation, and releases it.
    async fn hold(&self, setting: &Setting, operator: &Client, contact: Contact, draw: &mut Rng) {
        let Some(id) = id_of(setting, contact) else { return };
        let (asked_ms, seconds) = (setting.net.elapsed_ms(), draw.u64(60..300));
        let body = json!({"seconds": seconds});
        let answer = operator.request("POST", &format!("/conversations/{id}/hold"), None, Some(&body)).await;
        if let Some(answer) = answer.filter(|answer| answer.body["held"] == true) {
            let until_ms = (asked_ms + seconds * 1_000).saturating_sub(MARGIN_MS);
            let mut history = self.history.borrow_mut();
            history.holds.push(Hold { contact: contact.address, from_ms: answer.at_ms, until_ms });
            history.reached.push("a conversation is held".to_owned());
        }
        sleep(Duration::from_millis(draw.u64(1..20_000))).await;
        self.release(setting, operator, contact, draw).await;
    }

    async fn release(&self, setting: &Setting, operator: &Client, contact: Contact, draw: &mut Rng) {
        let Some(id) = id_of(setting, contact) else { return };
        let answers = draw.u32(0..4) > 0;
        {
            let mut history = self.history.borrow_mut();
            history.releases.push((contact.address, setting.net.elapsed_ms()));
            if !answers {
                history.by_person.push(contact.address);
            }
        }
        let body = json!({"answer_pending": answers});
        operator.request("POST", &format!("/conversations/{id}/release"), None, Some(&body)).await;
    }

    /// A person answers from the phone.
    async fn person(&self, setting: &Setting, provider: &Client, contact: Contact, number: u64, draw: &mut Rng) {
        sleep(Duration::from_millis(draw.u64(1..8_000))).await;
        let asked_ms = setting.net.elapsed_ms();
        let body = contact.message(number, &format!("person {number}"), true, setting.net.now_ms() / 1_000);
        self.history.borrow_mut().by_person.push(contact.address);
        let answer = contact.deliver(provider, &body).await;
        if let Some(answer) = answer.filter(|answer| answer.body["person"] == 1) {
            let until_ms = (asked_ms + PERSON_HOLD_SECONDS * 1_000).saturating_sub(MARGIN_MS);
            let mut history = self.history.borrow_mut();
            history.holds.push(Hold { contact: contact.address, from_ms: answer.at_ms, until_ms });
            history.reached.push("a person answers".to_owned());
        }
        if draw.bool() {
            contact.deliver(provider, &body).await;
        }
    }

    /// An operator helps a conversation whose responder failed too often.
    async fn help(&self, setting: &Setting, operator: &Client, contact: Contact, draw: &mut Rng) {
        sleep(Duration::from_millis(draw.u64(1..60_000))).await;
        let stuck =
            states(setting).into_iter().find(|state| state["contact"] == contact.address && state["phase"] == "stuck");
        let Some(state) = stuck else { return };
        self.history.borrow_mut().reached.push("a conversation needs a person".to_owned());
        if draw.bool() {
            return self.release(setting, operator, contact, draw).await;
        }
        let id = text(&state["id"]);
        let body = json!({"batch_id": format!("{id}-{}", state["claimed"]), "reply": "operator"});
        operator.request("POST", &format!("/conversations/{id}/replies"), None, Some(&body)).await;
    }
}

/// Delivers what comes from outside after a call, until the play ends: the responder's later
/// replies, and the echo of own messages.
async fn outside(setting: Rc<Setting>, history: Rc<RefCell<History>>) {
    let mut number = 0;
    loop {
        let Some(event) = setting.net.take_outside() else {
            setting.net.moved().await;
            continue;
        };
        number += 1;
        let mut draw = setting.net.dice().of(&format!("event {number} from outside"));
        let (setting, history) = (setting.clone(), history.clone());
        tokio::task::spawn_local(async move {
            sleep(pause(&mut draw, 90_000)).await;
            match event {
                Outside::Reply { conversation, body } => {
                    let responder = setting.client("responder");
                    let path = format!("/conversations/{conversation}/replies");
                    for _ in 0..draw.u32(1..3) {
                        responder.request("POST", &path, None, Some(&body)).await;
                    }
                }
                Outside::Echo { key, to, text } => {
                    let evolution = setting.client("whatsapp");
                    let at = setting.net.now_ms() / 1_000;
                    let answer = deliver_whatsapp(&evolution, &upsert(&key, &to, &text, true, at)).await;
                    // A message that is no reply is found by an index, which may lag.
                    let is_reply = text.starts_with('t');
                    if is_reply && answer.is_some_and(|answer| answer.body["person"] == 1) {
                        history.borrow_mut().mistaken.push(text);
                    }
                }
            }
        });
    }
}

impl Contact {
    /// Returns the webhook of a message.
    fn message(self, number: u64, said: &str, from_me: bool, at: i64) -> Value {
        match self.channel {
            "telegram" => update(i64::try_from(self.number).unwrap_or(0), number, said, at),
            _ => upsert(&format!("A{number}"), self.address, said, from_me, at),
        }
    }

    async fn deliver(self, provider: &Client, body: &Value) -> Option<Answer> {
        match self.channel {
            "telegram" => {
                let header = [("x-telegram-bot-api-secret-token", TELEGRAM_SECRET.to_owned())];
                provider.webhook("/webhooks/telegram/default", &header, body).await
            }
            _ => deliver_whatsapp(provider, body).await,
        }
    }
}

async fn deliver_whatsapp(provider: &Client, body: &Value) -> Option<Answer> {
    let header = [("x-webhook-token", "local-evolution-token".to_owned())];
    provider.webhook("/webhooks/evolution/default", &header, body).await
}

/// Returns a message as Evolution reports it.
fn upsert(id: &str, contact: &str, said: &str, from_me: bool, at: i64) -> Value {
    json!({"event": "messages.upsert", "instance": "default", "data": {
        "key": {"remoteJid": format!("{contact}@s.whatsapp.net"), "fromMe": from_me, "id": id},
        "message": {"conversation": said}, "messageTimestamp": at,
    }})
}

fn id_of(setting: &Setting, contact: Contact) -> Option<String> {
    let state = states(setting).into_iter().find(|state| state["contact"] == contact.address)?;
    Some(text(&state["id"]))
}

fn rows(setting: &Setting, prefix: &str) -> Vec<Value> {
    let rows = setting.net.tables().rows(setting.table("Conversations"));
    rows.into_iter().filter(|row| text(&row["sk"]).starts_with(prefix)).collect()
}

fn states(setting: &Setting) -> Vec<Value> {
    rows(setting, "STATE")
}

fn batches(setting: &Setting) -> Vec<Value> {
    rows(setting, "BATCH#")
}

fn messages(setting: &Setting) -> Vec<Value> {
    rows(setting, "MESSAGE#")
}

/// Returns the messages that carry replies, by id.
fn replies(setting: &Setting) -> BTreeMap<String, Value> {
    let rows = setting.net.tables().rows(setting.table("Outbound"));
    let of_contacts = |row: &Value| CONTACTS.iter().any(|contact| row["to"] == contact.address);
    let replies = rows.into_iter().filter(|row| row["sk"] == "MESSAGE" && of_contacts(row));
    replies.map(|row| (text(&row["id"]), row)).collect()
}
