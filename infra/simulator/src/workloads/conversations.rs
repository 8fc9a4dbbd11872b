//! Conversations: contacts that write in bursts, a responder that answers at once, later, at length
//! or not at all, persons who answer from the phone, and an operator that holds and releases. Now
//! and then a provider delivers minutes late, and not in order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use futures::future::{LocalBoxFuture, join, join_all};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

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
/// How many messages one question to the responder has at most.
const MOST_MESSAGES: u64 = 100;
/// One play of so many has a contact that writes more than this at once, and how it is delivered.
const CROWDS: u32 = 30;
const CROWD: [usize; 3] = [36, 35, 37];
/// How long an operator is absent at most.
const LONGEST_ABSENCE: Duration = Duration::from_secs(150 * 86_400);
/// How long a request whose caller has stopped waiting may still be carried out: the longest freeze
/// and the longest time of a function, with a margin.
const STRAY_MS: u64 = 300_000;

#[derive(Debug, Clone, Copy)]
struct Contact {
    channel: &'static str,
    address: &'static str,
    number: u64,
}

#[derive(Default)]
pub struct Conversations {
    history: Rc<RefCell<History>>,
    /// Whether an operator holds a conversation and comes back after months.
    is_absent: bool,
}

#[derive(Default)]
struct History {
    /// What contacts and persons wrote.
    said: Vec<Said>,
    holds: Vec<Hold>,
    releases: Vec<Release>,
    /// Messages of the bot whose echo was mistaken for a message of a person.
    mistaken: Vec<String>,
    reached: Vec<String>,
}

/// A message that a provider delivers.
#[derive(Debug, Clone)]
struct Said {
    contact: &'static str,
    text: String,
    /// The provider's id of the message.
    number: u64,
    /// Whether a person wrote it from the phone, in the place of the bot.
    by_person: bool,
    /// Seconds, by the provider's clock.
    sent_at: i64,
    /// When the first delivery began. `None` before it.
    asked_ms: Option<u64>,
    /// When a delivery was accepted, if one was.
    accepted_ms: Option<u64>,
}

impl Said {
    fn was_asked_before(&self, at_ms: u64) -> bool {
        self.asked_ms.is_some_and(|asked_ms| asked_ms < at_ms)
    }
}

/// A release that was requested.
#[derive(Debug)]
struct Release {
    contact: &'static str,
    asked_ms: u64,
    /// When it has no effect any more. `None` if that is not known.
    over_ms: Option<u64>,
    /// Whether the bot answers the messages that came meanwhile.
    answers: bool,
}

/// A time in which the bot must be silent.
#[derive(Debug)]
struct Hold {
    contact: &'static str,
    from_ms: u64,
    until_ms: u64,
}

impl Conversations {
    /// Returns a workload with an operator who is absent for months.
    pub fn with_absence() -> Self {
        Self { is_absent: true, ..Self::default() }
    }
}

impl Workload for Conversations {
    fn name(&self) -> &'static str {
        if self.is_absent { "absences" } else { "conversations" }
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

    fn longest_run(&self) -> Duration {
        if self.is_absent { LONGEST_ABSENCE + self.longest_rest() } else { self.longest_rest() }
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
            if self.is_absent {
                return self.absence(setting, CONTACTS[0]).await;
            }
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
        if batches.iter().any(|batch| size_of(batch) == MOST_MESSAGES) {
            reached.push("a batch is full".to_owned());
        }
        reached.extend(self.history.borrow().reached.iter().cloned());
        reached
    }

    fn must_reach(&self) -> &'static [&'static str] {
        if self.is_absent {
            return &["an operator is absent", "a reply is SENT"];
        }
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
            "a person answers late",
            "a message arrives late",
            "a batch is full",
        ]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let (history, heard) = (self.history.borrow(), setting.net.heard());
        let (states, batches, replies) = (states(setting), batches(setting), replies(setting));
        let mut violations: Vec<_> =
            history.mistaken.iter().map(|text| format!("our own {text} was counted as a person's")).collect();
        let (written, messages) = (history.said.iter().filter(|said| !said.by_person), messages(setting));
        for said in written.filter(|said| said.accepted_ms.is_some()) {
            let Said { text: words, contact, .. } = said;
            let Some(state) = states.iter().find(|state| state["contact"] == *contact) else {
                violations.push(format!("{words} of {contact} was accepted, and there is no conversation"));
                continue;
            };
            let rows = Rows { state, messages: &messages, batches: &batches, replies: &replies };
            violations.extend(history.audit_answer(said, &rows, &heard));
        }
        for batch in batches.iter().filter(|batch| size_of(batch) > MOST_MESSAGES) {
            violations.push(format!("the batch {} of {} has {} messages", batch["batch"], batch["pk"], size_of(batch)));
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
        violations.extend(history.audit_persons(setting, &replies, &heard));
        violations
    }
}

/// A conversation at the end of a play, and the rows of all conversations.
struct Rows<'a> {
    state: &'a Value,
    messages: &'a [Value],
    batches: &'a [Value],
    replies: &'a BTreeMap<String, Value>,
}

impl History {
    /// I4 and I5: a message is answered once, or its conversation says why not.
    fn audit_answer(&self, said: &Said, rows: &Rows<'_>, heard: &[Heard]) -> Option<String> {
        let (words, contact, state) = (&said.text, said.contact, rows.state);
        let sent = heard.iter().filter(|heard| heard.to == contact && heard.reaction.is_accepted());
        let times = sent.filter(|heard| heard.text.lines().any(|line| line == words)).count();
        if times > 1 {
            return Some(format!("{words} of {contact} was answered {times} times"));
        }
        let mut of_words = rows.messages.iter().filter(|row| row["pk"] == state["pk"] && row["text"] == *words);
        let Some(number) = of_words.find_map(|row| row["number"].as_u64()) else {
            return Some(format!("{words} of {contact} was accepted and is gone"));
        };
        let covers = |batch: &&Value| {
            batch["pk"] == state["pk"]
                && batch["from"].as_u64().is_some_and(|from| from <= number)
                && batch["batch"].as_u64().is_some_and(|last| number <= last)
        };
        let may_be_unanswered = match rows.batches.iter().find(covers) {
            // A person has answered it, or the conversation waits for a person.
            None => self.may_be_settled(said) || state["phase"] == "stuck",
            Some(batch) if batch["reply"].is_null() => true,
            Some(batch) => {
                let parts = batch["messages"].as_array().into_iter().flatten();
                let states = parts.map(|id| rows.replies.get(&text(id)).map(|row| text(&row["state"])));
                // A hold cancels a part, which goes out later under another id.
                let may_be_sent =
                    |state: Option<String>| state.is_some_and(|state| state == "SENT" || state == "CANCELED");
                let is_operators = batch["reply"].as_str().is_some_and(|reply| reply.starts_with("operator"));
                is_operators || self.may_be_settled(said) || !states.into_iter().all(may_be_sent)
            }
        };
        (times == 0 && !may_be_unanswered).then(|| format!("{words} of {contact} was never answered"))
    }

    /// Returns whether a message of a contact may count as answered without a reply of the bot: a
    /// person wrote later, by the provider's clock, and it was there by then, or an operator
    /// released the conversation without an answer.
    fn may_be_settled(&self, said: &Said) -> bool {
        let mut persons = self.said.iter().filter(|other| other.by_person && other.contact == said.contact);
        let mut releases = self.releases.iter().filter(|release| !release.answers && release.contact == said.contact);
        persons.any(|person| {
            said.sent_at < person.sent_at && person.accepted_ms.is_none_or(|at_ms| said.was_asked_before(at_ms))
        }) || releases.any(|release| release.over_ms.is_none_or(|at_ms| said.was_asked_before(at_ms)))
    }

    /// What a person has seen and answered is not answered by the bot. The provider's clock decides
    /// what the person had seen.
    fn audit_persons(&self, setting: &Setting, replies: &BTreeMap<String, Value>, heard: &[Heard]) -> Vec<String> {
        let mut violations = Vec::new();
        for person in self.said.iter().filter(|said| said.by_person) {
            let (Some(asked_ms), Some(accepted_ms)) = (person.asked_ms, person.accepted_ms) else { continue };
            let written = || self.said.iter().filter(|said| !said.by_person && said.contact == person.contact);
            // If the contact wrote again after the person, everything is answered.
            if written().any(|said| said.sent_at >= person.sent_at && said.was_asked_before(accepted_ms)) {
                continue;
            }
            let seen = written().filter(|said| said.accepted_ms.is_some_and(|at_ms| at_ms < asked_ms));
            let seen: Vec<_> = seen.map(|said| &said.text).collect();
            let rows: Vec<_> = replies.values().filter(|row| row["to"] == person.contact).map(key_of).collect();
            for call in heard.iter().filter(|call| call.to == person.contact) {
                let Some(words) = seen.iter().find(|words| call.text.lines().any(|line| line == words.as_str())) else {
                    continue;
                };
                let begun = audit::begun_ms(&setting.net, &rows, call);
                if let Some(begun_ms) = begun.filter(|begun_ms| *begun_ms > accepted_ms) {
                    let Said { text: person, contact, .. } = person;
                    violations.push(format!(
                        "{person} had answered {words} of {contact} by {accepted_ms}, and the bot did at {begun_ms}"
                    ));
                }
            }
        }
        violations
    }

    /// I9: while a conversation is held, no attempt of a reply begins.
    fn audit_holds(&self, setting: &Setting, replies: &BTreeMap<String, Value>, heard: &[Heard]) -> Vec<String> {
        let mut violations = Vec::new();
        for hold in &self.holds {
            let Hold { contact, from_ms, until_ms } = hold;
            let rows: Vec<_> = replies.values().filter(|row| row["to"] == *contact).map(key_of).collect();
            let releases = self.releases.iter().filter(|release| release.contact == *contact);
            let in_force = releases.filter(|release| release.over_ms.is_none_or(|over_ms| over_ms >= *from_ms));
            let until_ms = in_force.map(|release| release.asked_ms).chain([*until_ms]).min().unwrap_or(*until_ms);
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
        let is_crowd = contact.channel == "whatsapp" && setting.net.dice().of("a crowd").u32(0..CROWDS) == 0;
        let mut number = contact.number * 1_000;
        for burst in 0..BURSTS {
            let mut draw = setting.net.dice().of(&format!("burst {}.{burst}", contact.number));
            sleep(pause(&mut draw, 30_000)).await;
            // The provider may not reach us for some minutes.
            let outage = (draw.u32(0..5) == 0).then(|| setting.net.elapsed_ms() + draw.u64(20_000..240_000));
            let mut late = Late::default();
            for _ in 0..draw.u32(1..4) {
                number += 1;
                let said = contact.says(&setting, number, false);
                match outage {
                    Some(end_ms) => late.put(said, end_ms, &mut draw),
                    None => {
                        let repeat = if draw.u32(0..5) == 0 { Repeat::draw(&mut draw) } else { Repeat::Never };
                        self.deliver(&setting, &provider, contact, said, repeat).await;
                    }
                }
                sleep(Duration::from_millis(draw.u64(1..4_000))).await;
            }
            let (action, is_crowd) = (draw.u32(0..8), is_crowd && burst > 0);
            if !is_crowd && contact.channel == "whatsapp" && matches!(action, 2..=5) {
                number += 2;
                self.person(&setting, &provider, contact, (number, outage), late, &mut draw).await;
                continue;
            }
            self.deliver_late(&setting, &provider, contact, late).await;
            match action {
                _ if is_crowd => self.hold(&setting, &operator, contact, Some(number + 1), &mut draw).await,
                0 | 1 => self.hold(&setting, &operator, contact, None, &mut draw).await,
                _ => self.help(&setting, &operator, contact, &mut draw).await,
            }
        }
    }

    /// An operator holds a conversation and comes back when its messages would have expired.
    async fn absence(&self, setting: Rc<Setting>, contact: Contact) {
        let (provider, operator) = (setting.client(contact.channel), setting.client("operator"));
        let mut draw = setting.net.dice().of("the absence");
        let mut number = contact.number * 1_000;
        let mut say = async || {
            number += 1;
            let said = contact.says(&setting, number, false);
            self.deliver(&setting, &provider, contact, said, Repeat::Never).await;
        };
        say().await;
        let Some(id) = id_of(&setting, contact) else { return };
        let answer = operator.request("POST", &format!("/conversations/{id}/hold"), None, Some(&json!({}))).await;
        if answer.is_none_or(|answer| answer.body["held"] != true) {
            return;
        }
        {
            // What came before the hold is answered and expires.
            let mut history = self.history.borrow_mut();
            history.said.iter_mut().for_each(|said| said.accepted_ms = None);
            history.reached.push("an operator is absent".to_owned());
        }
        for _ in 0..draw.u32(1..4) {
            sleep(Duration::from_millis(draw.u64(1..30_000))).await;
            say().await;
        }
        sleep(LONGEST_ABSENCE.mul_f64(draw.f64() / 3.0 + 0.6)).await;
        // What waits is not left to a gateway that stops waiting.
        for _ in 0..3 {
            self.release(&setting, &operator, contact, &mut draw).await;
        }
    }

    /// Delivers a message. A provider repeats a message now and then, afterwards or meanwhile.
    async fn deliver(&self, setting: &Setting, provider: &Client, contact: Contact, said: Said, repeat: Repeat) {
        let asked_ms = setting.net.elapsed_ms();
        let at = {
            let mut history = self.history.borrow_mut();
            history.said.push(Said { asked_ms: Some(asked_ms), ..said.clone() });
            history.said.len() - 1
        };
        let body = &contact.message(&said);
        let meanwhile = async {
            let Repeat::After(after) = repeat else { return None };
            sleep(after).await;
            contact.deliver(provider, body).await
        };
        let answers = join(contact.deliver(provider, body), meanwhile).await;
        // The answer to a delivery may have been lost, and then the next one is a duplicate.
        let is_stored = |answer: &Answer| {
            answer.status == 200 && ["stored", "person", "duplicate"].iter().any(|outcome| answer.body[outcome] == 1)
        };
        let stored = <[_; 2]>::from(answers).into_iter().flatten().filter(is_stored);
        if let Some(accepted_ms) = stored.map(|answer| answer.at_ms).min() {
            let mut history = self.history.borrow_mut();
            history.said[at].accepted_ms = Some(accepted_ms);
            if said.by_person {
                let until_ms = (asked_ms + PERSON_HOLD_SECONDS * 1_000).saturating_sub(MARGIN_MS);
                history.holds.push(Hold { contact: contact.address, from_ms: accepted_ms, until_ms });
                history.reached.push("a person answers".to_owned());
            }
        }
        if matches!(repeat, Repeat::InTheEnd) {
            contact.deliver(provider, body).await;
        }
    }

    async fn deliver_late(&self, setting: &Setting, provider: &Client, contact: Contact, late: Late) {
        let deliveries = late.0.into_iter().map(|(at_ms, said)| async move {
            sleep(Duration::from_millis(at_ms.saturating_sub(setting.net.elapsed_ms()))).await;
            self.deliver(setting, provider, contact, said, Repeat::Never).await;
            self.history.borrow_mut().reached.push("a message arrives late".to_owned());
        });
        join_all(deliveries).await;
    }

    /// An operator holds a conversation, and releases it. Meanwhile the contact may write more than
    /// one question has.
    async fn hold(&self, setting: &Setting, operator: &Client, contact: Contact, crowd: Option<u64>, draw: &mut Rng) {
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
        if let Some(number) = crowd {
            self.crowd(setting, contact, number).await;
        }
        sleep(Duration::from_millis(draw.u64(1..20_000))).await;
        self.release(setting, operator, contact, draw).await;
    }

    /// A contact writes more messages at once than one question has. The first has this number.
    async fn crowd(&self, setting: &Setting, contact: Contact, number: u64) {
        let provider = &setting.client(contact.channel);
        let mut numbers = number..;
        let bodies = CROWD.map(|size| {
            let said = numbers.by_ref().take(size).map(|number| contact.says(setting, number, false));
            said.collect::<Vec<_>>()
        });
        let deliveries = bodies.into_iter().map(|said| async move {
            let entries: Value = said.iter().map(|said| contact.message(said)["data"].take()).collect();
            let body = json!({"event": "messages.upsert", "instance": "default", "data": entries});
            let asked_ms = Some(setting.net.elapsed_ms());
            let range = {
                let history = &mut self.history.borrow_mut().said;
                let first = history.len();
                history.extend(said.into_iter().map(|said| Said { asked_ms, ..said }));
                first..history.len()
            };
            let answer = contact.deliver(provider, &body).await.filter(|answer| answer.status == 200);
            for said in &mut self.history.borrow_mut().said[range] {
                said.accepted_ms = answer.as_ref().map(|answer| answer.at_ms);
            }
        });
        join_all(deliveries).await;
    }

    async fn release(&self, setting: &Setting, operator: &Client, contact: Contact, draw: &mut Rng) {
        let Some(id) = id_of(setting, contact) else { return };
        let (answers, asked_ms) = (draw.u32(0..4) > 0, setting.net.elapsed_ms());
        let at = {
            let releases = &mut self.history.borrow_mut().releases;
            releases.push(Release { contact: contact.address, asked_ms, over_ms: None, answers });
            releases.len() - 1
        };
        let body = json!({"answer_pending": answers});
        let answer = operator.request("POST", &format!("/conversations/{id}/release"), None, Some(&body)).await;
        // An earlier try of the request may still be on its way.
        let over_ms = answer.map(|answer| answer.at_ms + STRAY_MS);
        self.history.borrow_mut().releases[at].over_ms = over_ms;
    }

    /// A person answers from the phone, often when the bot is about to. The message may arrive
    /// late, together with others or alone, and the contact may write again before it arrives.
    async fn person(
        &self,
        setting: &Setting,
        provider: &Client,
        contact: Contact,
        (number, outage): (u64, Option<u64>),
        late: Late,
        draw: &mut Rng,
    ) {
        let mut late = late;
        match draw.u32(0..4) {
            0 => sleep(Duration::from_millis(draw.u64(1..8_000))).await,
            _ => until_sending(setting, contact).await,
        }
        let person = contact.says(setting, number, true);
        let repeat = Repeat::draw(draw);
        let own_outage = || (draw.u32(0..6) == 0).then(|| setting.net.elapsed_ms() + draw.u64(1_000..180_000));
        let Some(end_ms) = outage.or_else(own_outage) else {
            return self.deliver(setting, provider, contact, person, repeat).await;
        };
        self.history.borrow_mut().reached.push("a person answers late".to_owned());
        late.put(person, end_ms, draw);
        if draw.u32(0..3) == 0 {
            sleep(Duration::from_millis(draw.u64(1..4_000))).await;
            let again = contact.says(setting, number - 1, false);
            late.put(again, outage.unwrap_or(0), draw);
        }
        self.deliver_late(setting, provider, contact, late).await;
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

/// Messages that arrive late, and when.
#[derive(Debug, Default)]
struct Late(Vec<(u64, Said)>);

impl Late {
    /// Puts a message at the end: it arrives then or shortly after, and mostly after those before
    /// it.
    fn put(&mut self, said: Said, end_ms: u64, draw: &mut Rng) {
        let place = 400 * u64::try_from(self.0.len()).unwrap_or(0);
        self.0.push((end_ms + place + draw.u64(0..600), said));
    }
}

/// How a provider repeats a message that it has delivered.
#[derive(Debug, Clone, Copy)]
enum Repeat {
    Never,
    /// So long after the first delivery began, which may still be under way.
    After(Duration),
    /// After the first delivery was accepted.
    InTheEnd,
}

impl Repeat {
    fn draw(draw: &mut Rng) -> Self {
        match draw.u32(0..6) {
            0 => Self::Never,
            1 => Self::InTheEnd,
            _ => Self::After(Duration::from_millis(draw.u64(0..30))),
        }
    }
}

/// Waits until a reply is being sent, but not for long.
async fn until_sending(setting: &Setting, contact: Contact) {
    let is_sending = |state: &Value| state["contact"] == contact.address && state["phase"] == "sending";
    let sending = async {
        while !states(setting).iter().any(is_sending) {
            setting.net.moved().await;
        }
    };
    // It may be sent already.
    let _ = timeout(Duration::from_secs(12), sending).await;
}

impl Contact {
    /// Returns a message that is written now.
    fn says(self, setting: &Setting, number: u64, by_person: bool) -> Said {
        let text = if by_person { format!("person {number}") } else { format!("t{number}") };
        let sent_at = setting.net.now_ms() / 1_000;
        Said { contact: self.address, text, number, by_person, sent_at, asked_ms: None, accepted_ms: None }
    }

    /// Returns the webhook of a message.
    fn message(self, said: &Said) -> Value {
        let Said { text, number, by_person, sent_at, .. } = said;
        match self.channel {
            "telegram" => update(i64::try_from(self.number).unwrap_or(0), *number, text, *sent_at),
            _ => upsert(&format!("A{number}"), self.address, text, *by_person, *sent_at),
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

/// Returns how many messages a batch has.
fn size_of(batch: &Value) -> u64 {
    let (from, last) = (batch["from"].as_u64(), batch["batch"].as_u64());
    from.zip(last).map_or(0, |(from, last)| (last + 1).saturating_sub(from))
}

/// Returns the messages that carry replies, by id.
fn replies(setting: &Setting) -> BTreeMap<String, Value> {
    let rows = setting.net.tables().rows(setting.table("Outbound"));
    let of_contacts = |row: &Value| CONTACTS.iter().any(|contact| row["to"] == contact.address);
    let replies = rows.into_iter().filter(|row| row["sk"] == "MESSAGE" && of_contacts(row));
    replies.map(|row| (text(&row["id"]), row)).collect()
}
