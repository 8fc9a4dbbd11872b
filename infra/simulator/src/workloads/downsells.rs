//! Downsells: contacts that start a bot, gateways that report charges, payments and expiries, each
//! more than once and in any order, and an operator that changes the bot while offers are due.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all, join3};
use serde_json::{Value, json};
use tokio::time::sleep;
use umavez_domain::access::PresentedKey;
use umavez_domain::downsells::charges::{DEFAULT_GATEWAY, MOST_OPEN, OPEN_DAYS, transaction_name};
use umavez_domain::keys;
use umavez_domain::time::Timestamp;
use umavez_domain::webhooks::standard::{key_bytes, sign};

use super::{TELEGRAM_SECRET, Workload, key_of, pause, text};
use crate::audit;
use crate::clients::{Answer, Client};
use crate::play::{EPOCH_MS, Setting};
use crate::providers::Heard;

const CONTACTS: i64 = 2;
const FIRST_CONTACT: i64 = 1_000;
/// The contact that has too many open charges in some plays.
const CROWDED: i64 = FIRST_CONTACT + CONTACTS;
const STEPS: usize = 4;
const SECRET: &str = "whsec_bG9jYWwtcGF5bWVudC1zZWNyZXQtMDAwMQ==";
/// A gateway that numbers its transactions as the default one does. It has a key instead of a
/// secret.
const OTHER_GATEWAY: &str = "other";
const KEY: &str = "uv_of-the-other-gateway";
/// How long an offer waits after its charge.
const DELAY_MS: u64 = 60_000;
/// How long a call may already be on its way to Telegram when a payment is answered.
const ON_ITS_WAY_MS: u64 = 500;
/// How long after a decision its call may be heard.
const ATTEMPT_MS: u64 = 20_000;
/// How far the clock of an instance may be ahead or behind.
const SKEW_MS: u64 = 2_000;
const DAY_MS: u64 = 24 * 3_600_000;

#[derive(Default)]
pub struct Downsells {
    history: RefCell<History>,
}

#[derive(Default)]
struct History {
    charges: BTreeMap<Transaction, Charge>,
    /// The answers to the updates with a /start, and when each was sent.
    starts: Vec<(u64, Option<Answer>)>,
    /// Whether the bot and its downsells are active, by name.
    switches: BTreeMap<&'static str, Switches>,
    /// When an operator first ordered what is a reason not to send an offer.
    orders: BTreeMap<&'static str, u64>,
    /// Offers that an operator settled, or perhaps settled, and as what.
    settled: BTreeMap<String, bool>,
    violations: Vec<String>,
}

/// A gateway, and the id of a transaction there.
type Transaction = (&'static str, String);

/// What a gateway reported about one charge.
#[derive(Debug)]
struct Charge {
    contact: i64,
    /// Until when it can be paid.
    until_ms: u64,
    reports: Vec<Report>,
}

#[derive(Debug)]
struct Report {
    what: &'static str,
    asked_ms: u64,
    answer: Option<Answer>,
}

const CREATED: &str = "pix-created";
const PAID: &str = "payment-approved";
const EXPIRED: &str = "pix-expired";

/// Orders that switch something on or off: when each was sent and answered, and the new state.
#[derive(Debug, Default)]
struct Switches(Vec<(u64, Option<u64>, bool)>);

impl Workload for Downsells {
    fn name(&self) -> &'static str {
        "downsells"
    }

    fn functions(&self) -> Vec<&'static str> {
        vec!["admin", "webhook-intake", "outbound-sender", "downsell-sweep", "outbox-relay", "recovery"]
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            set_up(&setting).await;
            let contacts = (0..CONTACTS).map(|number| self.contact(setting.clone(), FIRST_CONTACT + number));
            join3(join_all(contacts), self.crowd(&setting), self.operator(&setting)).await;
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
        let (history, offers) = (self.history.borrow(), offers(setting));
        let mut reached: Vec<_> = offers.iter().map(shown).collect();
        reached.extend(offers.iter().map(|offer| format!("the reason is {}", text(&offer["cancel_reason"]))));
        let is_passed_on = |offer: &&Value| offer["passed_from"].as_array().is_some_and(|from| !from.is_empty());
        reached.extend(offers.iter().filter(is_passed_on).map(|_| "an offer is passed on".to_owned()));
        reached.extend(history.settled.iter().map(|_| "an offer is settled".to_owned()));
        reached.extend(history.switches.keys().map(|name| format!("{name} is switched")));
        for ((gateway, _), charge) in &history.charges {
            let closed = charge.closings().map(|_| format!("a charge of the {gateway} gateway is closed"));
            reached.extend(closed.chain(charge.closings().map(|_| "a charge is closed".to_owned())));
            let in_flight = charge.closings().filter(|(_, in_flight)| in_flight.is_some_and(|number| number > 0));
            reached.extend(in_flight.map(|_| "an offer is in flight".to_owned()));
            let answers = charge.reports.iter().filter_map(|report| report.answer.as_ref());
            for answer in answers {
                reached.extend(answer.body["code"].as_str().map(|code| format!("a charge is refused: {code}")));
                let is_unplaced = answer.body["owner_known"] == false;
                reached.extend(is_unplaced.then(|| "a payment comes first".to_owned()));
            }
        }
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
            "a charge of the other gateway is closed",
            "a charge is refused: too_many_charges",
            "a payment comes first",
            "an offer is passed on",
            "an offer is settled",
            "the reason is expired",
            "the reason is blocked",
            "the reason is inactive",
            "the reason is bot_inactive",
            "the reason is deleted",
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
            let declared = |sent: bool| {
                offers.iter().filter(|offer| history.settled.get(&text(&offer["id"])) == Some(&sent)).count()
            };
            let sent = offers.iter().filter(|offer| offer["status"] == "sent").count();
            if sent > accepted + declared(true) {
                violations.push(format!("{sent} offers {name} to {contact} are sent, {accepted} went out"));
            }
            let may_be_sent = |offer: &&&Value| offer["status"] == "sent" || offer["state"] == "UNKNOWN";
            let explained = offers.iter().filter(may_be_sent).count();
            if accepted > explained + declared(false) {
                violations.push(format!("{name} went out to {contact} {accepted} times, {explained} are on record"));
            }
            // The other downsell may be sent again and again.
            if name == ONCE && is_once(setting) && accepted > 1 + declared(false) {
                violations.push(format!("{name} went out to {contact} {accepted} times, once ever is allowed"));
            }
        }
        violations.extend(history.violations.iter().cloned());
        violations.extend(history.audit_gate(&heard));
        violations.extend(history.audit_answers());
        let epochs = epochs(setting);
        let suppressed = suppressed(setting);
        for offer in &offers {
            violations.extend(history.audit_attempts(setting, offer, &epochs));
            violations.extend(history.audit_reason(offer, &suppressed));
        }
        violations
    }
}

impl Downsells {
    async fn contact(&self, setting: Rc<Setting>, contact: i64) {
        let telegram = setting.client("telegram");
        let gateway = setting.client("gateway");
        let dice = setting.net.dice();
        // The charges that are not closed, and when the gateway reported them.
        let mut open: Vec<(Transaction, u64)> = Vec::new();
        for step in 0..STEPS {
            let mut draw = dice.of(&format!("contact tx-{contact}-{step}"));
            sleep(pause(&mut draw, 60_000)).await;
            match draw.u32(0..6) {
                0 => self.start(&telegram, contact, contact as u64 * 100 + step as u64).await,
                1..4 => {
                    let created_ms = setting.net.elapsed_ms();
                    // Both gateways number their transactions alike.
                    let other_contact = 2 * FIRST_CONTACT + 1 - contact;
                    let transaction = match draw.u32(0..3) {
                        0 => (OTHER_GATEWAY, format!("tx-{other_contact}-{step}")),
                        _ => (DEFAULT_GATEWAY, format!("tx-{contact}-{step}")),
                    };
                    let short = (draw.u32(0..6) == 0).then(|| created_ms + draw.u64(20_000..150_000));
                    self.charge(transaction.clone(), contact, short);
                    // Now and then the payment comes first, and does not say whose it is.
                    if draw.u32(0..10) == 0 {
                        self.report(&gateway, PAID, &transaction, false).await;
                    }
                    self.report(&gateway, CREATED, &transaction, true).await;
                    // Now and then the gateway reports it again.
                    if draw.u32(0..4) == 0 {
                        self.report(&gateway, CREATED, &transaction, true).await;
                    }
                    open.push((transaction, created_ms));
                }
                _ if open.is_empty() => {}
                kind => {
                    let (transaction, created_ms) = open.remove(draw.usize(0..open.len()));
                    // Most are closed when their offer is due.
                    let due_ms = created_ms + DELAY_MS + draw.u64(0..1_200);
                    if draw.u32(0..4) > 0 {
                        sleep(Duration::from_millis(due_ms.saturating_sub(setting.net.elapsed_ms()))).await;
                    }
                    let what = if kind == 4 { PAID } else { EXPIRED };
                    self.report(&gateway, what, &transaction, draw.bool()).await;
                    if draw.u32(0..4) == 0 {
                        self.report(&gateway, CREATED, &transaction, true).await;
                    }
                }
            }
        }
    }

    async fn start(&self, telegram: &Client, contact: i64, number: u64) {
        let asked_ms = telegram.net.elapsed_ms();
        let body = update(contact, number, "/start promo", telegram.net.now_ms() / 1_000);
        let header = ("x-telegram-bot-api-secret-token", TELEGRAM_SECRET.to_owned());
        let answer = telegram.webhook("/webhooks/telegram/default", &[header], &body).await;
        self.history.borrow_mut().starts.push((asked_ms, answer));
    }

    /// Reports more charges of one contact than may be open at once, in a few of the plays.
    async fn crowd(&self, setting: &Setting) {
        let mut draw = setting.net.dice().of("crowd");
        if draw.u32(0..30) > 0 {
            return;
        }
        let gateway = setting.client("gateway");
        let charge = |number: usize| (DEFAULT_GATEWAY, format!("tx-{CROWDED}-{number}"));
        let create = async |number: usize| {
            self.charge(charge(number), CROWDED, None);
            self.report(&gateway, CREATED, &charge(number), true).await;
        };
        // Few at once: all of them change one row.
        for first in (0..MOST_OPEN + 1).step_by(3) {
            join_all((first..(first + 3).min(MOST_OPEN + 1)).map(&create)).await;
        }
        // One of them makes room for another one.
        self.report(&gateway, EXPIRED, &charge(draw.usize(0..MOST_OPEN)), true).await;
        create(MOST_OPEN + 1).await;
        create(MOST_OPEN + 2).await;
    }

    /// Changes the bot while offers are due, reads the queue, and settles what is unknown.
    async fn operator(&self, setting: &Setting) {
        let mut draw = setting.net.dice().of("operator of offers");
        let client = setting.client("operator of offers");
        match draw.u32(0..10) {
            0 => {
                sleep(Duration::from_millis(draw.u64(1..120_000))).await;
                self.switch(&client, "bot", "bot_inactive", "PUT /api/admin/bots/default", &mut draw).await;
            }
            1 => {
                sleep(Duration::from_millis(draw.u64(1..120_000))).await;
                let order = "PUT /api/admin/bots/default/downsells/1";
                self.switch(&client, "downsell 1", "inactive", order, &mut draw).await;
            }
            2 => {
                sleep(Duration::from_millis(draw.u64(1..120_000))).await;
                let order = "DELETE /api/admin/bots/default/downsells/2";
                self.switch(&client, "downsell 2", "deleted", order, &mut draw).await;
            }
            3..6 => {
                sleep(Duration::from_millis(draw.u64(90_000..240_000))).await;
                self.read_queue(setting, &client, FIRST_CONTACT + draw.i64(0..CONTACTS)).await;
                self.settle(&client, &mut draw).await;
            }
            _ => {}
        }
    }

    /// Switches something off, and on again if it can be. Each order is sent once, so that no
    /// earlier try of it is carried out later.
    async fn switch(
        &self,
        client: &Client,
        name: &'static str,
        why: &'static str,
        order: &str,
        draw: &mut fastrand::Rng,
    ) {
        let (method, path) = order.split_once(' ').expect("a method and a path");
        for is_on in [false, true] {
            let asked_ms = client.net.elapsed_ms();
            self.history.borrow_mut().orders.entry(why).or_insert(asked_ms);
            let place = {
                let mut history = self.history.borrow_mut();
                let switches = history.switches.entry(name).or_default();
                switches.0.push((asked_ms, None, is_on));
                switches.0.len() - 1
            };
            let body = (method == "PUT").then(|| json!({"active": is_on}).to_string());
            let answer = client.send(method, path, &[], body, 1).await.filter(|answer| answer.status == 200);
            let answered_ms = answer.map(|answer| answer.at_ms);
            self.history.borrow_mut().switches.entry(name).or_default().0[place].1 = answered_ms;
            if answered_ms.is_none() || method == "DELETE" {
                return;
            }
            sleep(Duration::from_millis(draw.u64(1_000..90_000))).await;
        }
    }

    /// Reads the offers of a contact in small pages: each is on one of them.
    async fn read_queue(&self, setting: &Setting, client: &Client, contact: i64) {
        let of_contact = |offer: &Value| contact_of(offer) == contact.to_string();
        let stored = offers(setting).into_iter().filter(of_contact);
        let stored: BTreeSet<_> = stored.map(|offer| text(&offer["id"])).collect();
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/api/admin/bots/default/queue?telegram_id={contact}&limit=2{cursor}");
            let answer = client.request("GET", &path, None, None).await.filter(|answer| answer.status == 200);
            let Some(answer) = answer else { return };
            found.extend(answer.body["queue"].as_array().into_iter().flatten().map(|offer| text(&offer["id"])));
            match answer.body["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let distinct: BTreeSet<_> = found.iter().cloned().collect();
        if distinct.len() < found.len() || !stored.is_subset(&distinct) {
            let violation = format!("the pages of the queue of {contact} have {found:?}, not {stored:?}");
            self.history.borrow_mut().violations.push(violation);
        }
    }

    async fn settle(&self, client: &Client, draw: &mut fastrand::Rng) {
        let path = "/api/admin/bots/default/queue?delivery=UNKNOWN";
        let Some(answer) = client.request("GET", path, None, None).await else { return };
        for offer in answer.body["queue"].as_array().into_iter().flatten() {
            let (id, sent) = (text(&offer["id"]), draw.bool());
            self.history.borrow_mut().settled.insert(id.clone(), sent);
            let path = format!("/api/admin/bots/default/queue/{id}/settle");
            let body = json!({"telegram_id": offer["telegram_id"], "sent": sent});
            client.request("POST", &path, None, Some(&body)).await;
        }
    }

    /// Notes a charge that a gateway is going to report.
    fn charge(&self, transaction: Transaction, contact: i64, short_until_ms: Option<u64>) {
        let until_ms = short_until_ms.map_or(OPEN_DAYS.unsigned_abs() * DAY_MS, |until| until / 1_000 * 1_000);
        self.history.borrow_mut().charges.insert(transaction, Charge { contact, until_ms, reports: Vec::new() });
    }

    /// Reports something about a charge, as a gateway does.
    async fn report(&self, client: &Client, what: &'static str, of: &Transaction, names_contact: bool) {
        let asked_ms = client.net.elapsed_ms();
        let (gateway, id) = of;
        let mut body = json!({"transaction_id": id});
        let place = {
            let mut history = self.history.borrow_mut();
            let charge = history.charges.get_mut(of).expect("a charge");
            if names_contact {
                body["bot_slug"] = json!("default");
                body["telegram_id"] = json!(charge.contact);
            }
            if what == CREATED && charge.until_ms < OPEN_DAYS.unsigned_abs() * DAY_MS {
                let until = Timestamp::from_millis(EPOCH_MS + charge.until_ms as i64);
                body["expires_at"] = json!(until.to_string());
            }
            charge.reports.push(Report { what, asked_ms, answer: None });
            charge.reports.len() - 1
        };
        let (path, headers) = match *gateway {
            DEFAULT_GATEWAY => (format!("/api/payment/webhook/{what}"), signature(client, &body)),
            gateway => {
                let key = vec![("authorization", format!("Bearer {KEY}"))];
                (format!("/api/payment/webhook/{what}?gateway={gateway}"), key)
            }
        };
        let answer = client.webhook(&path, &headers, &body).await;
        let mut history = self.history.borrow_mut();
        history.charges.get_mut(of).expect("a charge").reports[place].answer = answer;
    }
}

impl Switches {
    /// Returns whether the state may have been this one at some time between these two.
    fn may_be(&self, is_on: bool, from_ms: u64, to_ms: u64) -> bool {
        let mut states = BTreeSet::from([true]);
        for (asked_ms, answered_ms, state) in &self.0 {
            if answered_ms.is_some_and(|answered| answered < from_ms) {
                states.clear();
            }
            if *asked_ms <= to_ms {
                states.insert(*state);
            }
        }
        states.contains(&is_on)
    }
}

impl Charge {
    fn reports_of(&self, what: &'static str) -> impl Iterator<Item = &Report> {
        self.reports.iter().filter(move |report| report.what == what)
    }

    /// Returns when payments and expiries were answered, and how many offers were then in flight.
    /// The number is not known if the contact was not.
    fn closings(&self) -> impl Iterator<Item = (u64, Option<u64>)> {
        let closings = self.reports.iter().filter(|report| report.what != CREATED);
        let answers = closings.filter_map(|report| report.answer.as_ref()).filter(|answer| answer.status == 200);
        answers.map(|answer| {
            let in_flight = answer.body["in_flight"].as_u64().filter(|_| answer.body["owner_known"] == true);
            (answer.at_ms, in_flight)
        })
    }

    /// Returns whether this was answered before.
    fn is_reported(&self, what: &'static str, before_ms: u64) -> bool {
        let is_before = |answer: &Answer| answer.status == 200 && answer.at_ms < before_ms;
        self.reports_of(what).any(|report| report.answer.as_ref().is_some_and(is_before))
    }

    fn may_be_reported(&self, what: &'static str, until_ms: u64) -> bool {
        self.reports_of(what).any(|report| report.asked_ms <= until_ms)
    }

    /// Returns whether it was reported for certain before this time that the charge is over.
    fn is_closed(&self, at_ms: u64) -> bool {
        self.is_reported(PAID, at_ms) || self.is_reported(EXPIRED, at_ms)
    }

    /// Returns whether the time of the charge was over for certain.
    fn is_late(&self, at_ms: u64) -> bool {
        self.until_ms + SKEW_MS < at_ms
    }

    fn may_be_open(&self, from_ms: u64, to_ms: u64) -> bool {
        self.may_be_reported(CREATED, to_ms) && !self.is_closed(from_ms) && !self.is_late(from_ms)
    }

    /// Returns whether the charge was open for certain all the time between these two.
    fn is_open(&self, from_ms: u64, to_ms: u64) -> bool {
        let is_made = |answer: &Answer| answer.at_ms < from_ms && answer.body["charge"] == "unpaid";
        self.reports_of(CREATED).any(|report| report.answer.as_ref().is_some_and(is_made))
            && !self.may_be_reported(PAID, to_ms)
            && !self.may_expire(to_ms)
    }

    fn may_expire(&self, until_ms: u64) -> bool {
        self.may_be_reported(EXPIRED, until_ms) || self.until_ms <= until_ms + SKEW_MS
    }

    /// Returns what does not hold of an answer about this charge, as far as it alone is concerned.
    fn audit_answer(&self, report: &Report, answer: &Answer) -> Option<String> {
        let (asked_ms, status) = (report.asked_ms, text(&answer.body["charge"]));
        let is_possible = match status.as_str() {
            "paid" => self.may_be_reported(PAID, answer.at_ms),
            "expired" => self.may_expire(answer.at_ms) && !self.is_reported(PAID, asked_ms) && report.what != PAID,
            "unpaid" => report.what == CREATED && !self.is_closed(asked_ms) && !self.is_late(asked_ms),
            _ => false,
        };
        let differs = answer.body["differs"].as_array().is_some_and(|fields| !fields.is_empty());
        let is_unplaced = answer.body["owner_known"] == false && self.is_reported(CREATED, asked_ms);
        (!is_possible || differs || is_unplaced)
            .then(|| format!("{} at {asked_ms} of {} is answered with {}", report.what, self.contact, answer.body))
    }
}

impl History {
    fn of_contact(&self, contact: i64) -> impl Iterator<Item = &Charge> {
        self.charges.values().filter(move |charge| charge.contact == contact)
    }

    /// I9: an offer is sent only while a charge of its contact may be unpaid, or if a payment or an
    /// expiry reported it as in flight.
    fn audit_gate(&self, heard: &[Heard]) -> Vec<String> {
        let mut violations = Vec::new();
        for contact in FIRST_CONTACT..FIRST_CONTACT + CONTACTS {
            let charges: Vec<_> = self.of_contact(contact).collect();
            let closings = charges.iter().flat_map(|charge| charge.closings());
            // Unknown if the contact of a payment was named after it.
            let Some(in_flight) = closings.map(|(_, in_flight)| in_flight).sum::<Option<u64>>() else { continue };
            let is_closed = |at_ms: u64| {
                let is_open = |charge: &&Charge| {
                    charge.may_be_reported(CREATED, at_ms)
                        && charge.closings().next().is_none_or(|(closed, _)| at_ms <= closed + ON_ITS_WAY_MS)
                        && at_ms <= charge.until_ms + ATTEMPT_MS
                };
                !charges.iter().any(is_open)
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

    /// Audits the answers to gateways and to /start.
    fn audit_answers(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for ((gateway, id), charge) in &self.charges {
            let answered = charge.reports.iter().filter_map(|report| Some((report, report.answer.as_ref()?)));
            for (number, (report, answer)) in answered.enumerate() {
                let (asked_ms, at_ms) = (report.asked_ms, answer.at_ms);
                let others = || self.of_contact(charge.contact).filter(|other| !std::ptr::eq(*other, charge));
                let refusal = match answer.status {
                    200 => charge.audit_answer(report, answer),
                    409 if answer.body["code"] == "too_many_charges" => {
                        let open = others().filter(|other| other.may_be_open(asked_ms, at_ms)).count();
                        (open < MOST_OPEN).then(|| format!("a charge at {asked_ms} is refused: {open} are open"))
                    }
                    status => Some(format!("{} at {asked_ms} is refused: {status} {}", report.what, answer.body)),
                };
                violations.extend(refusal.map(|refusal| format!("{gateway} {id}: {refusal}")));
                if report.what != CREATED || answer.body["charge"] != "unpaid" {
                    continue;
                }
                let open = others().filter(|other| other.is_open(asked_ms, at_ms)).count();
                if number == 0 && open >= MOST_OPEN {
                    violations.push(format!("{gateway} {id}: a charge at {asked_ms} is accepted: {open} are open"));
                }
                violations.extend(self.audit_counts(&["downsell 1", "downsell 2"], asked_ms, answer));
            }
        }
        for (asked_ms, answer) in &self.starts {
            let answer = answer.as_ref().filter(|answer| answer.status == 200);
            violations.extend(answer.and_then(|answer| self.audit_counts(&["downsell 1"], *asked_ms, answer)));
        }
        violations
    }

    /// A trigger decides on each active downsell, and on no other.
    fn audit_counts(&self, downsells: &[&str], asked_ms: u64, answer: &Answer) -> Option<String> {
        let may_be = |name: &str, is_on: bool| match self.switches.get(name) {
            Some(switches) => switches.may_be(is_on, asked_ms, answer.at_ms),
            None => is_on,
        };
        let words = ["scheduled", "duplicates", "already_pending", "not_rearmed", "upgraded"];
        let counted: u64 = words.iter().filter_map(|word| answer.body[*word].as_u64()).sum();
        let active = |is_certain: bool| {
            let is_active = |name: &str| if is_certain { !may_be(name, false) } else { may_be(name, true) };
            if is_active("bot") { downsells.iter().filter(|name| is_active(name)).count() as u64 } else { 0 }
        };
        let (least, most) = (active(true), active(false));
        (!(least..=most).contains(&counted))
            .then(|| format!("a trigger at {asked_ms} decides on {counted} downsells, {least} to {most} are active"))
    }

    /// No attempt begins after a payment was answered that came after its offer, nor while no
    /// charge that it needs may be open.
    fn audit_attempts(&self, setting: &Setting, offer: &Value, epochs: &BTreeMap<String, u64>) -> Vec<String> {
        let (key, contact) = (key_of(offer), offer["telegram_id"].as_i64().unwrap_or_default());
        let mut violations = Vec::new();
        for begun_ms in setting.net.claims(std::slice::from_ref(&key)).into_iter().map(|claim| claim.at_ms) {
            // An attempt that was decided in time may begin late, but then it does not call.
            let is_open = |charge: &Charge| charge.may_be_reported(CREATED, begun_ms) && !charge.is_closed(begun_ms);
            if !self.of_contact(contact).any(is_open) {
                violations.push(format!("an attempt of {key} begins at {begun_ms} without an unpaid charge"));
            }
            for ((gateway, id), charge) in &self.charges {
                let name = transaction_name(gateway, id);
                if offer["transaction_id"] == json!(name) && charge.is_closed(begun_ms) {
                    violations.push(format!("an attempt of {key} begins at {begun_ms}, after the end of its charge"));
                }
                let is_later = epochs.get(&name).is_some_and(|epoch| offer["pay_epoch"].as_u64() < Some(*epoch));
                let is_placed = charge.is_reported(PAID, begun_ms) && charge.is_reported(CREATED, begun_ms);
                if charge.contact == contact && is_later && is_placed {
                    violations.push(format!("an attempt of {key} begins at {begun_ms}, after the payment of {name}"));
                }
            }
        }
        violations
    }

    /// Audits why an offer was not sent.
    fn audit_reason(&self, offer: &Value, suppressed: &BTreeSet<String>) -> Option<String> {
        let contact = offer["telegram_id"].as_i64().unwrap_or_default();
        let at_ms = Timestamp::parse(&text(&offer["updated_at"])).map_or(0, Timestamp::millis) - EPOCH_MS;
        let at_ms = u64::try_from(at_ms).unwrap_or(0);
        let (from_ms, to_ms) = (at_ms.saturating_sub(SKEW_MS), at_ms + SKEW_MS);
        let of_charge = |(gateway, id): &Transaction| offer["transaction_id"] == json!(transaction_name(gateway, id));
        let reason = text(&offer["cancel_reason"]);
        let is_possible = match reason.as_str() {
            "" => true,
            "paid" => self.of_contact(contact).any(|charge| charge.may_be_reported(PAID, to_ms)),
            "expired" => self.charges.iter().any(|(name, charge)| of_charge(name) && charge.may_expire(to_ms)),
            "no_unpaid_pix" => !self.of_contact(contact).any(|charge| charge.is_open(from_ms, to_ms)),
            "blocked" => suppressed.contains(&contact.to_string()),
            reason => self.orders.get(reason).is_some_and(|asked_ms| *asked_ms <= to_ms),
        };
        (!is_possible).then(|| format!("{} of {contact} ended at {at_ms} for no reason: {reason}", key_of(offer)))
    }
}

/// The downsell that some plays allow once, and its text.
const ONCE: &str = "offer 2";

fn is_once(setting: &Setting) -> bool {
    setting.net.dice().of("once ever").bool()
}

/// Creates the bot, its downsells, and the key of a gateway. Repeats requests that got no answer.
async fn set_up(setting: &Setting) {
    create_key(setting);
    let admin = setting.client("admin");
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
        let mut body = json!({
            "name": format!("Offer {number}"), "content": {"text": format!("offer {number}")}, "delay_minutes": 1,
            "after_start": on_start, "after_pix": true,
        });
        if body["content"]["text"] == ONCE && is_once(setting) {
            body["rearm"] = json!("once_ever");
        }
        ensure("/api/admin/bots/default/downsells", &format!("downsell-{number}"), &body).await;
    }
}

/// Stores the key of the other gateway, as the command of an operator does.
fn create_key(setting: &Setting) {
    let presented = PresentedKey::of(KEY);
    let key = keys::api_key(&presented.id);
    let word = |text: &str| json!({"S": text});
    let item = json!({
        "pk": word(&key.pk), "sk": word(&key.sk), "key_id": word(presented.id.as_str()), "hash": word(&presented.hash),
        "scopes": {"L": [word("payments")]}, "label": word(OTHER_GATEWAY), "created_at": word("2026-01-01T00:00:00Z"),
    });
    let body = json!({"TableName": setting.table("Config"), "Item": item});
    let (status, _) = setting.net.tables().call("PutItem", &body, setting.net.now_ms());
    assert_eq!(status, 200, "the key is stored");
}

/// Returns the headers with which a gateway proves that it is the one.
fn signature(client: &Client, body: &Value) -> Vec<(&'static str, String)> {
    let now = Timestamp::from_millis(client.net.now_ms());
    let signed = sign(&[&key_bytes(SECRET)], "evt_1", now, body.to_string().as_bytes());
    vec![
        ("webhook-id", signed.id),
        ("webhook-timestamp", signed.timestamp.to_string()),
        ("webhook-signature", signed.signature),
    ]
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

/// Returns the number of each payment among those of its contact, by transaction.
fn epochs(setting: &Setting) -> BTreeMap<String, u64> {
    let rows = setting.net.tables().rows(setting.table("Downsells")).into_iter();
    rows.filter(|row| row["status"] == "paid")
        .filter_map(|row| Some((text(&row["transaction_id"]), row["pay_epoch"].as_u64()?)))
        .collect()
}

/// Returns the addresses that are or were on the suppression list.
fn suppressed(setting: &Setting) -> BTreeSet<String> {
    let rows = setting.net.tables().rows(setting.table("Outbound")).into_iter();
    rows.filter(|row| text(&row["pk"]).starts_with("SUPPRESSION")).map(|row| text(&row["to"])).collect()
}
