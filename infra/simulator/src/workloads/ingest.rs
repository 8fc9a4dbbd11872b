//! Ingest: callers insert and edit items, import the same items as backfills, and an operator
//! switches the test mode and a policy, each more than once and in any order. Some notes come from
//! a source whose clock is ahead.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use futures::future::{LocalBoxFuture, join, join_all};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Workload, pause, text};
use crate::clients::Client;
use crate::play::{EPOCH_MS, Setting};

const CALLERS: usize = 3;
const STEPS: usize = 4;
const SWITCHES: usize = 2;
/// The chat whose items are only counted, by dry runs.
const DRY_CHAT: i64 = 9;
const CHAT: i64 = 7;
/// The edit times of notes count from so many seconds before the play.
const VERSIONS_FROM: u64 = 1_000;
/// The least and the most that the clock of a source is ahead, in seconds.
const AHEAD: std::ops::Range<u64> = 60..3_600;
/// How long a request may be carried out after its caller has stopped waiting, also if the instance
/// is frozen for a while.
const LONGEST_TRY_MS: u64 = 300_000;
/// How far the clock of an instance may be ahead or behind.
const SKEW_MS: u64 = 2_000;

#[derive(Default)]
pub struct Ingest {
    history: RefCell<History>,
}

/// An order to switch something: when it was sent and answered, and whether it is on from then.
type Switch = (u64, Option<u64>, bool);

#[derive(Default)]
struct History {
    /// The answers to inserts, by idempotency key.
    inserts: BTreeMap<String, Vec<Insert>>,
    /// How many inserts have no answer: they may have been carried out.
    unanswered: usize,
    /// When each item was first sent.
    first_asked_ms: BTreeMap<Item, u64>,
    /// The notes that were sent, in this order.
    notes: Vec<Item>,
    /// The items of accepted backfills, by job.
    jobs: BTreeMap<String, Vec<Item>>,
    /// Orders of the test mode: when each was sent and answered, and the mode.
    switches: Vec<Switch>,
    /// Orders to enable or disable the policy of links, by schema.
    policies: BTreeMap<&'static str, Vec<Switch>>,
    /// Links that were refused: when each was sent and answered.
    refused: Vec<(u64, u64)>,
    violations: Vec<String>,
}

#[derive(Debug, Clone)]
struct Insert {
    item: Item,
    action: String,
    entry_id: String,
    schema: String,
    asked_ms: u64,
    answered_ms: u64,
}

/// What a caller inserts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    /// A message that is edited: a later version replaces an earlier one. The version is the time
    /// of the edit, as the source says it.
    Note { message: u32, version: u64 },
    /// A page: with or without tracking parameters it is the same.
    Link { page: u32, tracking: u32 },
}

impl Item {
    /// Draws one of few items, so that requests conflict. A version is old, of now, or ahead of our
    /// clock.
    fn draw(draw: &mut Rng, now_ms: u64) -> Self {
        if draw.bool() {
            return Self::Link { page: draw.u32(0..3), tracking: draw.u32(0..3) };
        }
        let now = VERSIONS_FROM + now_ms / 1_000;
        let version = match draw.u32(0..4) {
            0 => now,
            1 => now + draw.u64(AHEAD),
            _ => draw.u64(0..20),
        };
        Self::Note { message: draw.u32(1..4), version }
    }

    fn body(&self, chat: i64) -> Value {
        match self {
            Self::Note { message, version } => {
                let edited = EPOCH_MS / 1_000 - VERSIONS_FROM as i64 + *version as i64;
                let source = json!({"chat_id": chat, "message_id": message, "edit_date": edited});
                json!({"text": format!("note {message} version {version}"), "source": source})
            }
            Self::Link { page, tracking } => {
                let url = match tracking {
                    0 => format!("https://example.com/{page}"),
                    _ => format!("https://example.com/{page}?utm_source={tracking}"),
                };
                json!({"text": url, "source": {"chat_id": chat, "message_id": 1_000 + page * 10 + tracking}})
            }
        }
    }

    /// Returns the time of the play at which the source says that the item was edited.
    fn said_ms(&self) -> i64 {
        match self {
            Self::Note { version, .. } => (*version as i64 - VERSIONS_FROM as i64) * 1_000,
            Self::Link { .. } => 0,
        }
    }

    /// Returns the identity of the item. A schema may have only one entry with it.
    fn identity(&self) -> String {
        match self {
            Self::Note { message, .. } => format!("note {message}"),
            Self::Link { page, .. } => format!("link {page}"),
        }
    }
}

impl Workload for Ingest {
    fn name(&self) -> &'static str {
        "ingest"
    }

    fn functions(&self) -> Vec<&'static str> {
        vec!["ingest", "backfill-worker", "outbox-relay", "recovery"]
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            let callers = (0..CALLERS).map(|caller| self.caller(setting.clone(), caller));
            join(join_all(callers), self.operator(setting.clone())).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        jobs(setting).iter().all(|job| ["COMPLETED", "FAILED"].contains(&text(&job["state"]).as_str()))
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        let history = self.history.borrow();
        let answers = history.inserts.values().flatten().map(|insert| format!("an item is {}", insert.action));
        let jobs = jobs(setting).into_iter().map(|job| format!("a backfill is {}", text(&job["state"])));
        let switched = history.switches.iter().filter(|switch| switch.1.is_some());
        let switched = switched.map(|_| "the mode is switched".to_owned());
        let refused = history.refused.iter().map(|_| "a link is refused".to_owned());
        let replaced = history.inserts.values().filter_map(|answers| answers.first());
        let replaced = replaced.filter(|insert| insert.item.said_ms() > insert.asked_ms as i64);
        let replaced =
            replaced.filter(|insert| history.is_replaced(insert)).map(|_| "a note ahead is stale".to_owned());
        answers.chain(jobs).chain(switched).chain(refused).chain(replaced).collect()
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &[
            "an item is inserted",
            "an item is updated",
            "an item is skipped",
            "a backfill is COMPLETED",
            "the mode is switched",
            "a note ahead is stale",
            "a link is refused",
        ]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let history = self.history.borrow();
        let mut violations = history.audit_answers();
        violations.extend(history.violations.iter().cloned());
        let jobs = jobs(setting);
        for (id, items) in &history.jobs {
            violations.extend(audit_job(id, items, jobs.iter().find(|job| job["backfill_id"] == json!(id))));
        }
        for schema in ["pkm", "pkm_test"] {
            violations.extend(history.audit_schema(schema, &entries(setting, schema), &jobs));
        }
        violations
    }
}

impl Ingest {
    async fn caller(&self, setting: Rc<Setting>, caller: usize) {
        let client = setting.client(&format!("caller-{caller}"));
        for step in 0..STEPS {
            let name = format!("i{caller}.{step}");
            let mut draw = setting.net.dice().of(&format!("caller {name}"));
            sleep(pause(&mut draw, 20_000)).await;
            match draw.u32(0..5) {
                0 => self.backfill(&client, &name, &mut draw).await,
                _ => self.insert(&client, &name, &mut draw).await,
            }
        }
    }

    /// Returns an item to send: a new one, or now and then a note that was sent before.
    fn item(&self, client: &Client, draw: &mut Rng) -> Item {
        let now_ms = client.net.elapsed_ms();
        let mut history = self.history.borrow_mut();
        let item = match draw.u32(0..4) {
            0 if !history.notes.is_empty() => history.notes[draw.usize(0..history.notes.len())].clone(),
            _ => Item::draw(draw, now_ms),
        };
        if matches!(item, Item::Note { .. }) {
            history.notes.push(item.clone());
        }
        history.first_asked_ms.entry(item.clone()).or_insert(now_ms);
        item
    }

    /// Inserts an item, and now and then repeats the request much later.
    async fn insert(&self, client: &Client, name: &str, draw: &mut Rng) {
        let item = self.item(client, draw);
        let body = item.body(CHAT);
        let times = 1 + usize::from(draw.u32(0..3) == 0);
        for time in 0..times {
            if time > 0 {
                sleep(Duration::from_millis(draw.u64(1..60_000))).await;
            }
            let asked_ms = client.net.elapsed_ms();
            let answer = client.request("POST", "/ingest/telegram", Some(name), Some(&body)).await;
            let mut history = self.history.borrow_mut();
            if let Some(answer) = answer.as_ref().filter(|answer| answer.status == 422) {
                history.refused.push((asked_ms, answer.at_ms));
            }
            let Some(answer) = answer.filter(|answer| answer.status == 200) else {
                history.unanswered += 1;
                continue;
            };
            let (action, entry_id) = (text(&answer.body["action"]), text(&answer.body["entry_id"]));
            let (schema, answered_ms) = (text(&answer.body["schema"]), answer.at_ms);
            let insert = Insert { item: item.clone(), action, entry_id, schema, asked_ms, answered_ms };
            history.inserts.entry(name.to_owned()).or_default().push(insert);
        }
    }

    async fn backfill(&self, client: &Client, name: &str, draw: &mut Rng) {
        let is_dry = draw.u32(0..4) == 0;
        let chat = if is_dry { DRY_CHAT } else { CHAT };
        let items: Vec<_> = (0..draw.usize(1..8)).map(|_| self.item(client, draw)).collect();
        let lines: Vec<_> = items.iter().map(|item| item.body(chat).to_string()).collect();
        let body = json!({"source": "telegram", "dry_run": is_dry, "lines": lines.join("\n")});
        for _ in 0..draw.u32(1..3) {
            let answer = client.request("POST", "/backfills", Some(name), Some(&body)).await;
            let mut history = self.history.borrow_mut();
            match answer.filter(|answer| answer.status == 202) {
                Some(answer) => drop(history.jobs.insert(text(&answer.body["backfill_id"]), items.clone())),
                // All of its lines may be imported.
                None => history.unanswered += items.len(),
            }
        }
    }

    async fn operator(&self, setting: Rc<Setting>) {
        let client = setting.client("operator");
        for step in 0..SWITCHES {
            let name = format!("switch-{step}");
            let mut draw = setting.net.dice().of(&name);
            sleep(Duration::from_millis(draw.u64(1..60_000))).await;
            let (mode, asked_ms) = (draw.bool(), setting.net.elapsed_ms());
            match draw.u32(0..4) {
                0 => self.toggle(&client, &name, asked_ms).await,
                1 => self.switch_policy(&client, if mode { "pkm_test" } else { "pkm" }, &mut draw).await,
                _ => {
                    let body = json!({"is_test_mode": mode});
                    let answer = client.request("PUT", "/test-mode", Some(&name), Some(&body)).await;
                    let answered_ms = answer.filter(|answer| answer.status == 200).map(|answer| answer.at_ms);
                    self.history.borrow_mut().switches.push((asked_ms, answered_ms, mode));
                }
            }
        }
    }

    /// Switches to the other mode. A repeated request does not switch back.
    async fn toggle(&self, client: &Client, name: &str, asked_ms: u64) {
        let answer = client.request("POST", "/test-mode/toggle", Some(name), None).await;
        let mut history = self.history.borrow_mut();
        let Some(answer) = answer.filter(|answer| answer.status == 200) else {
            history.switches.extend([(asked_ms, None, true), (asked_ms, None, false)]);
            return;
        };
        let mode = answer.body["is_test_mode"] == true;
        let is_known = history.switches.iter().all(|(_, answered_ms, _)| answered_ms.is_some());
        let before = history.switches.last().is_some_and(|(_, _, mode)| *mode);
        if is_known && before == mode {
            history.violations.push(format!("{name} toggles from {before} to {mode}"));
        }
        history.switches.push((asked_ms, Some(answer.at_ms), mode));
    }

    /// Disables the policy of links in a schema for a while. Each order is sent once, so that no
    /// earlier try of it is carried out later.
    async fn switch_policy(&self, client: &Client, schema: &'static str, draw: &mut Rng) {
        for enabled in [false, true] {
            let asked_ms = client.net.elapsed_ms();
            let order = (asked_ms, None, enabled);
            self.history.borrow_mut().policies.entry(schema).or_default().push(order);
            let path = format!("/policies/telegram_link_v1?schema={schema}");
            let body = json!({"enabled": enabled}).to_string();
            let answer = client.send("PATCH", &path, &[], Some(body), 1).await.filter(|answer| answer.status == 200);
            let Some(answer) = answer else { return };
            if let Some(order) = self.history.borrow_mut().policies.entry(schema).or_default().last_mut() {
                order.1 = Some(answer.at_ms);
            }
            sleep(Duration::from_millis(draw.u64(1_000..60_000))).await;
        }
    }
}

impl History {
    /// Audits the answers to callers: a repeated request gets the same entry, and an insert uses
    /// the mode of its time.
    fn audit_answers(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for (key, answers) in &self.inserts {
            let first = &answers[0];
            for again in &answers[1..] {
                let is_same_schema = again.schema == first.schema;
                if is_same_schema && again.entry_id != first.entry_id {
                    violations.push(format!("{key} has the entries {} and {}", first.entry_id, again.entry_id));
                }
                if is_same_schema && (first.action == "inserted") != (again.action == "inserted") {
                    violations.push(format!("{key} was {}, then {}", first.action, again.action));
                }
            }
            for answer in answers.iter().filter(|answer| !self.may_use(answer, &answer.schema)) {
                violations.push(format!("{key} used {} at {}", answer.schema, answer.asked_ms));
            }
            if self.is_replaced(first) && first.action != "skipped" {
                violations.push(format!("{key} was {} at {}: {:?}", first.action, first.asked_ms, first.item));
            }
            for answer in answers.iter().filter(|answer| matches!(answer.item, Item::Link { .. })) {
                if !self.may_be_enabled(&answer.schema, true, answer.asked_ms, answer.answered_ms) {
                    violations.push(format!("{key} passed a policy that was disabled at {}", answer.asked_ms));
                }
            }
        }
        for (asked_ms, answered_ms) in &self.refused {
            if !["pkm", "pkm_test"].iter().any(|schema| self.may_be_enabled(schema, false, *asked_ms, *answered_ms)) {
                violations.push(format!("an item at {asked_ms} was refused and no policy was disabled"));
            }
        }
        violations
    }

    /// Returns whether the policy of links may have been enabled, or disabled, between these times.
    fn may_be_enabled(&self, schema: &str, is_enabled: bool, from_ms: u64, to_ms: u64) -> bool {
        let mut states = BTreeSet::from([true]);
        for (asked_ms, answered_ms, state) in self.policies.get(schema).into_iter().flatten() {
            if answered_ms.is_some_and(|answered| answered < from_ms) {
                states.clear();
            }
            if *asked_ms <= to_ms {
                states.insert(*state);
            }
        }
        states.contains(&is_enabled)
    }

    /// Returns whether the item of this insert was for certain replaced by a later one before.
    fn is_replaced(&self, insert: &Insert) -> bool {
        let of_schema = self.inserts.values().flatten().filter(|other| other.schema == insert.schema);
        let mut before = of_schema.filter(|other| other.answered_ms < insert.asked_ms);
        before.any(|other| self.is_later(&insert.schema, &other.item, &insert.item))
    }

    /// Returns whether a note is for certain later than another one. A time ahead of our clock
    /// counts as the time at which the note came first.
    fn is_later(&self, schema: &str, one: &Item, other: &Item) -> bool {
        let (Item::Note { .. }, Item::Note { .. }, true) = (one, other, one.identity() == other.identity()) else {
            return false;
        };
        let of_schema = self.inserts.values().flatten().filter(|insert| insert.schema == schema);
        let came = of_schema.filter(|insert| insert.item == *other).map(|insert| insert.answered_ms).min();
        let latest = came.map_or(i64::MAX, |at| (at + SKEW_MS) as i64).min(other.said_ms());
        let asked = self.first_asked_ms.get(one).copied().unwrap_or(0) as i64;
        one.said_ms().min(asked - SKEW_MS as i64) > latest
    }

    /// I9: a request that begins after a switch was answered uses its schema.
    fn may_use(&self, insert: &Insert, schema: &str) -> bool {
        let name = |mode: bool| if mode { "pkm_test" } else { "pkm" };
        let mut allowed = BTreeSet::from(["pkm"]);
        for (asked_ms, answered_ms, mode) in &self.switches {
            if answered_ms.is_some_and(|answered| answered <= insert.asked_ms) {
                allowed.clear();
            }
            if *asked_ms <= insert.answered_ms {
                allowed.insert(name(*mode));
            }
        }
        allowed.contains(schema)
    }

    /// Audits the entries of a schema.
    fn audit_schema(&self, schema: &str, entries: &[Value], jobs: &[Value]) -> Vec<String> {
        let mut violations = Vec::new();
        // I1: an identity has one entry.
        let mut found: BTreeMap<String, &Value> = BTreeMap::new();
        for entry in entries {
            let identity = identity_of(entry);
            if found.insert(identity.clone(), entry).is_some() {
                violations.push(format!("{schema} has two entries for {identity}"));
            }
        }
        if entries.iter().any(|entry| text(&entry["idempotency_key_primary"]).starts_with(&format!("tg:{DRY_CHAT}:"))) {
            violations.push(format!("a dry run wrote to {schema}"));
        }
        // I4: what was accepted is there, in its newest version.
        let of_jobs = jobs.iter().filter(|job| job["schema"] == schema && job["dry_run"] == false);
        let items = |job: &Value| {
            let items = self.jobs.get(&text(&job["backfill_id"])).cloned().unwrap_or_default();
            // Links fail while their policy is disabled.
            let is_complete = job["counts"]["failed"].as_u64().unwrap_or(0) == 0;
            items.into_iter().filter(move |item| is_complete || matches!(item, Item::Note { .. }))
        };
        let of_jobs: Vec<_> = of_jobs.flat_map(items).collect();
        let answered: Vec<_> = self.inserts.values().flatten().filter(|insert| insert.schema == schema).collect();
        for item in answered.iter().map(|insert| &insert.item).chain(&of_jobs) {
            let Some(entry) = found.get(&item.identity()) else {
                violations.push(format!("{} was accepted in {schema} and is gone", item.identity()));
                continue;
            };
            if let Item::Note { message, version } = item {
                let kept = version_of(entry).map(|version| Item::Note { message: *message, version });
                if kept.is_none_or(|kept| self.is_later(schema, item, &kept)) {
                    violations.push(format!("{schema} has {}, not version {version}", entry["clean_text"]));
                }
            }
        }
        // An entry is reported as inserted once.
        let mut inserted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (key, answers) in &self.inserts {
            for answer in answers.iter().filter(|answer| answer.schema == schema && answer.action == "inserted") {
                inserted.entry(&answer.entry_id).or_default().insert(key);
            }
        }
        for (entry, keys) in inserted.iter().filter(|(_, keys)| keys.len() > 1) {
            violations.push(format!("{entry} was inserted by {keys:?}"));
        }
        let of_jobs = jobs.iter().filter(|job| job["schema"] == schema && job["dry_run"] == false);
        let of_jobs: u64 = of_jobs.filter_map(|job| job["counts"]["inserted"].as_u64()).sum();
        let reported = inserted.len() as u64 + of_jobs;
        // A client that tried again during a switch knows only the answer in the other schema.
        let others = self.inserts.values().flatten().filter(|insert| insert.schema != schema);
        // An earlier try may go on long after a later one was answered.
        let longer = |insert: &Insert| Insert { answered_ms: insert.answered_ms + LONGEST_TRY_MS, ..insert.clone() };
        let others = others.filter(|insert| self.may_use(&longer(insert), schema)).count();
        let most = reported + (self.unanswered + others) as u64;
        if !(reported..=most).contains(&(entries.len() as u64)) {
            violations.push(format!("{schema} has {} entries, {reported} to {most} were reported", entries.len()));
        }
        violations
    }
}

/// Audits one backfill: it completes, and counts every line once.
fn audit_job(id: &str, items: &[Item], job: Option<&Value>) -> Vec<String> {
    let Some(job) = job else { return vec![format!("the backfill {id} was accepted and is gone")] };
    let counted: u64 = job["counts"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
    if job["state"] != "COMPLETED" || counted != items.len() as u64 {
        let (state, lines) = (text(&job["state"]), items.len());
        return vec![format!("the backfill {id} is {state} with {counted} of {lines} lines: {}", job["counts"])];
    }
    Vec::new()
}

/// Returns the identity of the item that an entry stores.
fn identity_of(entry: &Value) -> String {
    let words = text(&entry["clean_text"]);
    match words.strip_prefix("https://example.com/") {
        Some(page) => format!("link {}", page.split('?').next().unwrap_or_default()),
        None => words.split(" version").next().unwrap_or_default().to_owned(),
    }
}

fn version_of(entry: &Value) -> Option<u64> {
    text(&entry["clean_text"]).rsplit(' ').next()?.parse().ok()
}

fn entries(setting: &Setting, schema: &str) -> Vec<Value> {
    let table = if schema == "pkm" { "Entries" } else { "EntriesTest" };
    let rows = setting.net.tables().rows(setting.table(table));
    rows.into_iter().filter(|row| row["kind"] == "entry").collect()
}

fn jobs(setting: &Setting) -> Vec<Value> {
    let rows = setting.net.tables().rows(setting.table("Entries"));
    rows.into_iter().filter(|row| row["sk"] == "JOB").collect()
}
