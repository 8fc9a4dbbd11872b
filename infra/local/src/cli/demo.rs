//! `cargo run -- demo`: plays `infra/demo.yaml` on a stack of its own, and fails if anything does not add up.
//!
//! The script is data: requests, things that go wrong, and what must come out. This file knows none of its words.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinSet;
use umavez_local::local_parameters::with_local;
use umavez_local::{Options, Stack, binaries, secrets};

use super::start::FIRST_KEY;
use super::{CliError, keys, remote};

/// How often a request is sent whose function dies.
const TRIES: usize = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    say: Option<String>,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    request: Option<Request>,
    /// Send the request this often, all at once; `{n}` in its headers and body is the number of each.
    #[serde(default = "once")]
    times: usize,
    /// Kill this function's processes while the requests are under way, and try again what failed.
    kill_meanwhile: Option<String>,
    advance: Option<String>,
    /// How many of the answers have this value at this JSON pointer.
    #[serde(default)]
    expect: Vec<Expect>,
    /// Keeps the value at a JSON pointer of the last answer under a name, for `{name}` in later steps.
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    at: String,
    /// The value there, or how long the list there is.
    #[serde(default)]
    is: Value,
    length: Option<usize>,
    count: Option<usize>,
    what: String,
}

fn once() -> usize {
    1
}

pub async fn run() -> Result<(), CliError> {
    let root = binaries::workspace_root();
    let script = fs::read_to_string(root.join("infra/demo.yaml"))?;
    let steps: Vec<Step> = serde_yaml_ng::from_str(&script).map_err(|error| CliError::Failed(error.to_string()))?;
    eprintln!("umavez: building the functions (the first time takes a few minutes)");
    binaries::build(false).await?;
    let options = Options {
        parameters: with_local(steps.iter().flat_map(|step| step.parameters.clone()).collect())?,
        secrets: Some(secrets::local_file()),
        ..Options::in_memory(fs::read_to_string(root.join("template.yaml"))?)
    };
    let stack = Stack::start(options).await?;
    keys::ensure(&stack, FIRST_KEY).await?;
    let player =
        Player { stack: stack.clone(), http: reqwest::Client::builder().no_proxy().build().unwrap_or_default() };
    let played = player.play(steps).await;
    stack.stop().await?;
    played
}

struct Player {
    stack: Stack,
    http: reqwest::Client,
}

impl Player {
    async fn play(&self, steps: Vec<Step>) -> Result<(), CliError> {
        let mut kept = BTreeMap::new();
        let mut ledger = Vec::new();
        for step in steps {
            self.step(step, &mut kept, &mut ledger).await?;
        }
        println!("\nthe ledger");
        let mut wrong = 0;
        for (what, wanted, found) in ledger {
            let mark = if wanted == found { "ok" } else { "WRONG" };
            wrong += usize::from(wanted != found);
            println!("  {found:>5} of {wanted:>5}  {mark:<5}  {what}");
        }
        if wrong == 0 {
            println!("everything adds up");
            return Ok(());
        }
        Err(CliError::Failed(format!("{wrong} lines of the ledger do not add up")))
    }

    async fn step(
        &self,
        step: Step,
        kept: &mut BTreeMap<String, String>,
        ledger: &mut Vec<(String, usize, usize)>,
    ) -> Result<(), CliError> {
        if let Some(say) = &step.say {
            println!("{}", filled(say, kept));
        }
        if let Some(duration) = &step.advance {
            let seconds =
                remote::seconds(duration).ok_or_else(|| CliError::Failed(format!("advance: {duration:?}")))?;
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
            let wanted = filled_value(expect.is, kept);
            let fits = |found: &Value| match expect.length {
                Some(length) => found.as_array().is_some_and(|list| list.len() == length),
                None => *found == wanted,
            };
            let found = answers.iter().filter(|answer| answer.pointer(&expect.at).is_some_and(&fits)).count();
            ledger.push((expect.what, expect.count.unwrap_or(answers.len()), found));
        }
        if let Some(answer) = answers.last() {
            for (name, pointer) in step.keep {
                let value = answer.pointer(&pointer).and_then(Value::as_str).unwrap_or_default();
                kept.insert(name, value.to_owned());
            }
        }
        Ok(())
    }

    /// All answers, as `{status, body}`. A request whose function died is sent again, as any client would.
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
            println!("  (killed {killed} processes)");
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
    Ok(serde_json::json!({"status": status, "body": body}))
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
