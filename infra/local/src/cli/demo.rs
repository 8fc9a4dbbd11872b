//! `cargo run -- demo`: plays `infra/demo.yaml` on its own stack, and fails if a number of the
//! ledger is not the expected one.
//!
//! The script is data: requests, faults, and the expected results. This file contains no step of
//! the script. Each line of the ledger is a count, and a text that says what was counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use umavez_local::local_parameters::with_local;
use umavez_local::{Options, Stack, StackError, binaries, secrets};

use super::start::FIRST_KEY;
use super::{CliError, clock, keys, read_file};

/// How often a request is sent whose function dies.
const TRIES: usize = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    say: Option<String>,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    request: Option<Request>,
    /// Send the request this often, all at once; `{n}` in its headers and body is the number of
    /// each.
    #[serde(default = "once")]
    times: usize,
    /// Kill this function's processes while the requests are under way, and try again what failed.
    kill_meanwhile: Option<String>,
    advance: Option<String>,
    #[serde(default)]
    expect: Vec<Expect>,
    /// Keeps the value at a JSON pointer of the last answer under a name, for `{name}` in later
    /// steps.
    #[serde(default)]
    keep: BTreeMap<String, String>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct Request {
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Value>,
    /// A body that is not JSON; its type is in the headers.
    text: Option<String>,
}

/// A line of the ledger: a number, how it is found in the answers, and what it counts.
#[derive(Deserialize)]
struct Expect {
    /// A JSON pointer into each answer, which is `{status, body}`.
    at: String,
    #[serde(flatten)]
    count: Count,
    what: String,
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Count {
    /// The answers that have this value there.
    Answers { is: Value, answers: u64 },
    /// The items of the list there, in all answers.
    Items { items: u64 },
    /// The different values at a pointer into those items.
    Different { of: String, different: u64 },
    /// The number there, in all answers.
    Number { number: u64 },
}

impl Count {
    fn wanted(&self) -> u64 {
        match self {
            Self::Answers { answers: wanted, .. }
            | Self::Items { items: wanted }
            | Self::Different { different: wanted, .. }
            | Self::Number { number: wanted } => *wanted,
        }
    }

    /// `there`: what each answer has at the pointer; none where it has nothing there.
    fn found(&self, there: &[Option<&Value>]) -> Option<u64> {
        let items = || there.iter().map(|found| found.and_then(Value::as_array)).collect::<Option<Vec<_>>>();
        let length = |count: usize| u64::try_from(count).ok();
        match self {
            Self::Answers { is, .. } => length(there.iter().filter(|found| **found == Some(is)).count()),
            Self::Items { .. } => length(items()?.into_iter().map(Vec::len).sum()),
            Self::Different { of, .. } => {
                let values = items()?.into_iter().flatten().map(|item| item.pointer(of).map(Value::to_string));
                length(values.collect::<BTreeSet<_>>().len())
            }
            Self::Number { .. } => there.iter().map(|found| found.and_then(Value::as_u64)).sum(),
        }
    }
}

struct Line {
    what: String,
    wanted: u64,
    /// None: the answer has nothing that could be counted.
    found: Option<u64>,
}

impl Line {
    fn adds_up(&self) -> bool {
        self.found == Some(self.wanted)
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = self.found.map_or("?".to_owned(), |found| found.to_string());
        if self.adds_up() {
            write!(f, "  ok    {found:>5}  {}", self.what)
        } else {
            write!(f, "  WRONG {found:>5}  {} (expected {})", self.what, self.wanted)
        }
    }
}

fn once() -> usize {
    1
}

pub async fn run(json: bool) -> Result<(), CliError> {
    let root = binaries::workspace_root();
    let file = root.join("infra/demo.yaml");
    let steps: Vec<Step> =
        serde_yaml_ng::from_str(&read_file(&file)?).map_err(|error| StackError::unreadable(&file, error))?;
    binaries::build(false).await?;
    let options = Options {
        parameters: with_local(steps.iter().flat_map(|step| step.parameters.clone()).collect())?,
        secrets: Some(secrets::local_file()),
        ..Options::in_memory(read_file(&root.join("template.yaml"))?)
    };
    let stack = Stack::start(options).await?;
    keys::ensure(&stack, FIRST_KEY).await?;
    let player = Player { stack: stack.clone(), http: super::remote::client(), json };
    let played = player.play(steps).await;
    stack.stop().await?;
    played
}

struct Player {
    stack: Stack,
    http: reqwest::Client,
    json: bool,
}

impl Player {
    async fn play(&self, steps: Vec<Step>) -> Result<(), CliError> {
        let mut kept = BTreeMap::new();
        let mut ledger = Vec::new();
        for step in steps {
            self.step(step, &mut kept, &mut ledger).await?;
        }
        let wrong = ledger.iter().filter(|line| !line.adds_up()).count();
        if self.json {
            let lines: Vec<_> = ledger
                .iter()
                .map(|line| json!({"what": line.what, "expected": line.wanted, "found": line.found}))
                .collect();
            println!("{}", json!({"ledger": lines, "wrong": wrong}));
        } else {
            println!("\nthe ledger");
            ledger.iter().for_each(|line| println!("{line}"));
        }
        if wrong == 0 {
            self.say("everything adds up");
            return Ok(());
        }
        Err(CliError::Failed(format!("{wrong} lines of the ledger do not add up")))
    }

    fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    async fn step(
        &self,
        step: Step,
        kept: &mut BTreeMap<String, String>,
        ledger: &mut Vec<Line>,
    ) -> Result<(), CliError> {
        if let Some(say) = &step.say {
            self.say(&filled(say, kept));
        }
        if let Some(duration) = &step.advance {
            let seconds = clock::seconds(duration).ok_or_else(|| CliError::Failed(format!("advance: {duration:?}")))?;
            self.stack.advance(Duration::from_secs(seconds), true).await?;
        }
        let Some(request) = step.request else { return Ok(()) };
        let request = Arc::new(Request {
            path: filled(&request.path, kept),
            body: request.body.map(|body| filled_value(body, kept)),
            headers: request.headers.into_iter().map(|(name, value)| (name, filled(&value, kept))).collect(),
            ..request
        });
        let answers = self.send(&request, step.times, step.kill_meanwhile.as_deref()).await?;
        for expect in step.expect {
            let there: Vec<_> = answers.iter().map(|answer| answer.pointer(&expect.at)).collect();
            let found = expect.count.found(&there);
            ledger.push(Line { what: expect.what, wanted: expect.count.wanted(), found });
        }
        if let Some(answer) = answers.last() {
            for (name, pointer) in step.keep {
                let value = answer.pointer(&pointer).and_then(Value::as_str).unwrap_or_default();
                kept.insert(name, value.to_owned());
            }
        }
        Ok(())
    }

    /// All answers, as `{status, body}`. A request whose function died is sent again, as any client
    /// would.
    async fn send(&self, request: &Arc<Request>, times: usize, kill: Option<&str>) -> Result<Vec<Value>, CliError> {
        let mut sending = JoinSet::new();
        for number in 0..times {
            let (http, url) = (self.http.clone(), self.stack.url().to_owned());
            let number = BTreeMap::from([("n".to_owned(), number.to_string())]);
            let headers = request.headers.iter().map(|(name, value)| (name.clone(), filled(value, &number))).collect();
            let body = request.body.clone().map(|body| filled_value(body, &number));
            let request = Request { headers, body, ..(**request).clone() };
            sending.spawn(async move {
                let mut answer = Value::Null;
                for _ in 0..TRIES {
                    answer = ask(&http, &url, &request).await?;
                    if answer["status"] != 502 {
                        break;
                    }
                }
                Ok::<_, CliError>(answer)
            });
        }
        if let Some(name) = kill.and_then(|binary| self.stack.function_name(binary)) {
            let killed = self.stack.functions().kill(name).await.unwrap_or(0);
            let processes = if killed == 1 { "process" } else { "processes" };
            self.say(&format!("  (killed {killed} {processes})"));
        }
        let mut answers = Vec::new();
        while let Some(answer) = sending.join_next().await {
            answers.push(answer.map_err(|error| CliError::Failed(error.to_string()))??);
        }
        Ok(answers)
    }
}

async fn ask(http: &reqwest::Client, url: &str, request: &Request) -> Result<Value, CliError> {
    let failed = |error: reqwest::Error| CliError::Failed(error.to_string());
    let method = request.method.parse().map_err(|_| CliError::Failed(format!("method {}", request.method)))?;
    let mut call = http.request(method, format!("{url}{}", request.path)).bearer_auth(FIRST_KEY);
    for (name, value) in &request.headers {
        call = call.header(name, value);
    }
    if let Some(body) = &request.body {
        call = call.json(body);
    }
    if let Some(text) = &request.text {
        call = call.body(text.clone());
    }
    let response = call.send().await.map_err(failed)?;
    let status = response.status().as_u16();
    let body: Value = response.json().await.unwrap_or(Value::Null);
    Ok(json!({"status": status, "body": body}))
}

fn filled(text: &str, kept: &BTreeMap<String, String>) -> String {
    kept.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

fn filled_value(value: Value, kept: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => Value::String(filled(&text, kept)),
        Value::Array(items) => items.into_iter().map(|item| filled_value(item, kept)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, filled_value(value, kept))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(expect: Value, answers: &[Value]) -> String {
        let expect: Expect = serde_json::from_value(expect).expect("an expectation");
        let there: Vec<_> = answers.iter().map(|answer| answer.pointer(&expect.at)).collect();
        Line { found: expect.count.found(&there), wanted: expect.count.wanted(), what: expect.what }.to_string()
    }

    #[test]
    fn a_line_of_the_ledger_is_a_number_of_things() {
        let answers = [json!({"status": 200}), json!({"status": 200}), json!({"status": 409})];
        let of_answers = json!({"at": "/status", "is": 200, "answers": 2, "what": "workers"});
        assert_eq!(line(of_answers, &answers), "  ok        2  workers");
        let sent = [json!({"sent": [{"to": "a"}, {"to": "b"}, {"to": "a"}], "count": 3})];
        assert_eq!(line(json!({"at": "/sent", "items": 3, "what": "mails"}), &sent), "  ok        3  mails");
        let different = json!({"at": "/sent", "of": "/to", "different": 3, "what": "people"});
        assert_eq!(line(different, &sent), "  WRONG     2  people (expected 3)");
        assert_eq!(line(json!({"at": "/count", "number": 3, "what": "mails"}), &sent), "  ok        3  mails");
    }

    #[test]
    fn nothing_is_zero_only_where_it_could_be_counted() {
        let none = [json!({"sent": []})];
        assert_eq!(line(json!({"at": "/sent", "items": 0, "what": "offers"}), &none), "  ok        0  offers");
        let elsewhere = json!({"at": "/messages", "items": 0, "what": "offers"});
        assert_eq!(line(elsewhere, &none), "  WRONG     ?  offers (expected 0)");
    }
}
