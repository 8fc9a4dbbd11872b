//! Mailings: callers that upload the same file more than once, and operators that pause, resume,
//! cancel and retry.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Workload, key_of, pause, text};
use crate::audit;
use crate::clients::{Answer, Client};
use crate::play::Setting;

const MAILINGS: usize = 2;
const RECIPIENTS: usize = 4;
const BOUNDARY: &str = "a-boundary";
/// The states in which an entry stays unless an operator orders a retry.
const ENDED: &[&str] = &["SENT", "FAILED", "INVALID", "UNKNOWN", "SUPPRESSED", "CANCELED"];

#[derive(Default)]
pub struct Mailings {
    history: RefCell<History>,
}

#[derive(Default)]
struct History {
    /// The mailings that were accepted, by the subject of their mail.
    accepted: BTreeMap<String, String>,
    /// Mailings whose failed entries an operator ordered to retry, or perhaps ordered.
    retried: Vec<String>,
    canceled: Vec<String>,
    /// How many files were uploaded by a form.
    uploaded: usize,
}

impl Workload for Mailings {
    fn name(&self) -> &'static str {
        "mailings"
    }

    fn functions(&self) -> Vec<&'static str> {
        vec!["mailings-api", "mailing-importer", "mailing-sender", "outbox-relay", "recovery", "delivery-events"]
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            join_all((0..MAILINGS).map(|number| self.mailing(setting.clone(), number))).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        let mailings = rows(setting, "MAILING");
        // A mailing that paused by itself waits for an operator, and so do its entries.
        let is_paused = mailings.iter().any(|row| row["state"] == "PAUSED");
        let is_over =
            |row: &Value| ["COMPLETED", "CANCELED", "FAILED", "PAUSED"].contains(&text(&row["state"]).as_str());
        let has_ended = |row: &Value| ENDED.contains(&text(&row["state"]).as_str());
        mailings.iter().all(is_over) && (is_paused || rows(setting, "ENTRY#").iter().all(has_ended))
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        let mailings = rows(setting, "MAILING").into_iter().map(|row| format!("a mailing is {}", text(&row["state"])));
        let entries = rows(setting, "ENTRY#").into_iter().map(|row| format!("an entry is {}", text(&row["state"])));
        let retried = self.history.borrow().retried.iter().map(|_| "a retry is ordered".to_owned()).collect::<Vec<_>>();
        let uploaded = (0..self.history.borrow().uploaded).map(|_| "a file is uploaded by a form".to_owned());
        mailings.chain(entries).chain(retried).chain(uploaded).collect()
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &[
            "a mailing is COMPLETED",
            "a mailing is CANCELED",
            "an entry is SENT",
            "an entry is UNKNOWN",
            "an entry is FAILED",
            "a retry is ordered",
            "a file is uploaded by a form",
        ]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let (history, heard) = (self.history.borrow(), setting.net.heard());
        let mut violations = Vec::new();
        let mailings: BTreeMap<_, _> =
            rows(setting, "MAILING").into_iter().map(|row| (text(&row["pk"]), row)).collect();
        for (subject, id) in &history.accepted {
            let partition = format!("MAILING#{id}");
            let Some(mailing) = mailings.get(&partition) else {
                violations.push(format!("{subject} was accepted as {id} and is gone"));
                continue;
            };
            let state = text(&mailing["state"]);
            // A file of which S3 says nothing is given up after hours.
            let is_unknown = mailing["problem"]["object"] == "input_missing" && setting.net.has_lost(id);
            if state == "FAILED" && !is_unknown {
                violations.push(format!("{subject} was accepted, and FAILED: {}", mailing["problem"]));
            }
            let mut entries = rows(setting, "ENTRY#");
            entries.retain(|row| text(&row["pk"]).starts_with(&partition));
            if state == "COMPLETED" && entries.len() != RECIPIENTS {
                violations.push(format!("{subject} is COMPLETED with {} recipients", entries.len()));
            }
            for entry in &entries {
                let (email, entry_state) = (text(&entry["email"]), text(&entry["state"]));
                let calls: Vec<_> = heard.iter().filter(|heard| heard.text == *subject && heard.to == email).collect();
                let name = format!("{subject} to {email}");
                violations.extend(audit::calls_are_attempts(&setting.net, &name, &[key_of(entry)], &calls));
                let accepted = calls.iter().filter(|call| call.reaction.is_accepted()).count();
                if accepted > 1 {
                    violations.push(format!("{subject} went out to {email} {accepted} times"));
                }
                if entry_state == "SENT" && accepted == 0 {
                    violations.push(format!("{subject} to {email} is SENT, but was not accepted"));
                }
                if ["FAILED", "SUPPRESSED", "CANCELED", "INVALID"].contains(&entry_state.as_str()) && accepted > 0 {
                    violations.push(format!("{subject} to {email} is {entry_state}, but went out"));
                }
                let is_over = ["COMPLETED", "CANCELED"].contains(&state.as_str());
                if is_over && !ENDED.contains(&entry_state.as_str()) {
                    violations.push(format!("{subject} is {state}, but its mail to {email} is {entry_state}"));
                }
            }
        }
        violations
    }
}

impl Mailings {
    async fn mailing(&self, setting: Rc<Setting>, number: usize) {
        let client = setting.client(&format!("sender-{number}"));
        let subject = format!("mailing-{number}");
        let mut draw = setting.net.dice().of(&subject);
        sleep(pause(&mut draw, 5_000)).await;
        let form = form(&subject);
        let header = [("content-type", format!("multipart/form-data; boundary={BOUNDARY}"))];
        let by_form = draw.u32(0..3) == 0;
        for _ in 0..draw.u32(1..3) {
            let answer = match by_form {
                true => self.upload(&client, &subject).await,
                false => client.send("POST", "/mailings", &header, Some(form.clone()), 6).await,
            };
            if let Some(id) = answer.filter(|answer| answer.status < 300).map(|answer| text(&answer.body["mailingId"]))
            {
                self.history.borrow_mut().accepted.insert(subject.clone(), id);
            }
        }
        let Some(id) = self.history.borrow().accepted.get(&subject).cloned() else { return };
        for step in 0..draw.u32(0..3) {
            sleep(Duration::from_millis(draw.u64(1..30_000))).await;
            let order = match draw.u32(0..8) {
                0..4 => "pause",
                4 => "cancel",
                _ => "retry-failed",
            };
            match order {
                "cancel" => self.history.borrow_mut().canceled.push(id.clone()),
                "retry-failed" => self.history.borrow_mut().retried.push(id.clone()),
                _ => {}
            }
            let (path, key) = (format!("/mailings/{id}/{order}"), format!("{order}-{subject}-{step}"));
            client.request("POST", &path, Some(&key), Some(&json!({}))).await;
            if order == "pause" {
                sleep(Duration::from_millis(draw.u64(1..20_000))).await;
                let (path, key) = (format!("/mailings/{id}/resume"), format!("resume-{subject}-{step}"));
                // An operator does not leave it paused.
                for _ in 0..5 {
                    let answer = client.request("POST", &path, Some(&key), Some(&json!({}))).await;
                    if answer.is_some() {
                        break;
                    }
                }
            }
        }
    }
}

impl Mailings {
    /// Asks for a form, and uploads the file with it.
    async fn upload(&self, client: &Client, subject: &str) -> Option<Answer> {
        let file_name = format!("{subject}.csv");
        let body = json!({"filename": file_name, "subject": subject, "text": "Oi", "from": "shop@example.com"});
        let answer = client.request("POST", "/mailings/uploads", None, Some(&body)).await?;
        let key = answer.body["upload"]["fields"]["key"].as_str().unwrap_or_default();
        // A repeated request for a mailing that has its file gets no form.
        if !key.is_empty() {
            sleep(Duration::from_secs(2)).await;
            client.net.upload(key, &csv());
            self.history.borrow_mut().uploaded += 1;
        }
        Some(answer)
    }
}

/// Returns the file of a mailing.
fn csv() -> String {
    (0..RECIPIENTS).fold("email\n".to_owned(), |file, number| file + &format!("ana{number}@example.com\n"))
}

/// Returns the form of an upload: the file and its content.
fn form(subject: &str) -> String {
    let mut body = String::new();
    for (name, value) in [("subject", subject), ("text", "Oi"), ("from", "shop@example.com")] {
        body += &format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    let head = format!("Content-Disposition: form-data; name=\"file\"; filename=\"{subject}.csv\"");
    body += &format!("--{BOUNDARY}\r\n{head}\r\nContent-Type: text/csv\r\n\r\n{}", csv());
    body + &format!("\r\n--{BOUNDARY}--\r\n")
}

/// Returns the rows of the table whose sort key begins so.
fn rows(setting: &Setting, prefix: &str) -> Vec<Value> {
    let rows = setting.net.tables().rows(setting.table("Mailings")).into_iter();
    rows.filter(|row| text(&row["pk"]).starts_with("MAILING#") && text(&row["sk"]).starts_with(prefix)).collect()
}
