//! Ingest: callers insert and edit items, import the same items as backfills, and switch the test
//! mode, each more than once and in any order.

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

#[derive(Default)]
pub struct Ingest {
    history: RefCell<History>,
}

#[derive(Default)]
struct History {
    /// The answers to inserts, by idempotency key.
    inserts: BTreeMap<String, Vec<Insert>>,
    /// How many inserts have no answer: they may have been carried out.
    unanswered: usize,
    /// The items of accepted backfills, by job.
    jobs: BTreeMap<String, Vec<Item>>,
    /// Orders of the test mode: when each was sent and answered, and the mode.
    switches: Vec<(u64, Option<u64>, bool)>,
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
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// A message that is edited: a later version replaces an earlier one.
    Note { message: u32, version: u32 },
    /// A page: with or without tracking parameters it is the same.
    Link { page: u32, tracking: u32 },
}

impl Item {
    /// Draws one of few items, so that requests conflict.
    fn draw(draw: &mut Rng) -> Self {
        match draw.bool() {
            true => Self::Note { message: draw.u32(1..4), version: draw.u32(0..20) },
            false => Self::Link { page: draw.u32(0..3), tracking: draw.u32(0..3) },
        }
    }

    fn body(&self, chat: i64) -> Value {
        match self {
            Self::Note { message, version } => {
                let edited = EPOCH_MS / 1_000 - 1_000 + i64::from(*version);
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
        answers.chain(jobs).chain(switched.map(|_| "the mode is switched".to_owned())).collect()
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &[
            "an item is inserted",
            "an item is updated",
            "an item is skipped",
            "a backfill is COMPLETED",
            "the mode is switched",
        ]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let history = self.history.borrow();
        let mut violations = history.audit_answers();
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

    /// Inserts an item, and now and then repeats the request much later.
    async fn insert(&self, client: &Client, name: &str, draw: &mut Rng) {
        let item = Item::draw(draw);
        let body = item.body(CHAT);
        let times = 1 + usize::from(draw.u32(0..3) == 0);
        for time in 0..times {
            if time > 0 {
                sleep(Duration::from_millis(draw.u64(1..60_000))).await;
            }
            let asked_ms = client.net.elapsed_ms();
            let answer = client.request("POST", "/ingest/telegram", Some(name), Some(&body)).await;
            let mut history = self.history.borrow_mut();
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
        let items: Vec<_> = (0..draw.usize(1..8)).map(|_| Item::draw(draw)).collect();
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
            let body = json!({"is_test_mode": mode});
            let answer = client.request("PUT", "/test-mode", Some(&name), Some(&body)).await;
            let answered_ms = answer.filter(|answer| answer.status == 200).map(|answer| answer.at_ms);
            self.history.borrow_mut().switches.push((asked_ms, answered_ms, mode));
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
        }
        violations
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
        let of_jobs = of_jobs.filter_map(|job| self.jobs.get(&text(&job["backfill_id"]))).flatten();
        let answered: Vec<_> = self.inserts.values().flatten().filter(|insert| insert.schema == schema).collect();
        for item in answered.iter().map(|insert| &insert.item).chain(of_jobs) {
            let Some(entry) = found.get(&item.identity()) else {
                violations.push(format!("{} was accepted in {schema} and is gone", item.identity()));
                continue;
            };
            if let Item::Note { version, .. } = item
                && version_of(entry).is_none_or(|kept| kept < *version)
            {
                violations.push(format!("{schema} has {}, not version {version}", entry["clean_text"]));
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
        let others = others.filter(|insert| self.may_use(insert, schema)).count();
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

fn version_of(entry: &Value) -> Option<u32> {
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
