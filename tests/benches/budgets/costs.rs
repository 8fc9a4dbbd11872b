//! The cost of operations at list prices, from the requests, capacity units, invocations and log
//! lines that were counted. `cargo bench --profile dev --package umavez-tests --bench budgets --
//! costs` writes it to `docs/operate/costs.md`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::time::{Duration, SystemTime};

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::mailings::SHARD_GROUPS;
use umavez_domain::time::Timestamp;
use umavez_local::binaries::workspace_root;
use umavez_local::calls::Call;
use umavez_local::functions::LogLine;
use umavez_local::model::Model;
use umavez_tests::{KEY, World, template};

use crate::mailings::mail;
use crate::prices::{self, BILLED_SECONDS, GIGABYTES};
use crate::start;

/// The argument that runs only this part and writes the document.
pub const ARGUMENT: &str = "costs";
const COMMAND: &str = "cargo bench --profile dev --package umavez-tests --bench budgets -- costs";
const DOCUMENT: &str = "docs/operate/costs.md";
const RECIPIENTS: usize = 1_000;
/// The rate that SES grants a new account. Senders wait for their slots, and the waiting time is
/// billed.
const MAILS_PER_SECOND: f64 = 14.0;
/// The log lines of Lambda itself for each invocation: start and report.
const PLATFORM_LOG_BYTES: f64 = 500.0;
/// The bytes that are billed for each log event in addition to its text.
const LOG_EVENT_BYTES: f64 = 26.0;
const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// A queue's event source mapping keeps this many long polls of 20 seconds open, even if the queue
/// is empty.
const POLLERS: f64 = 5.0;
const POLL: Duration = Duration::from_secs(20);

/// Measures on a separate stack, and writes the document.
pub async fn write() {
    let world = start(1, "SendRates", &json!({"email": {"sender": "2000/1s"}})).await;
    let text = document(&world).await;
    world.stack.stop().await.expect("stops");
    println!("{text}");
    fs::write(workspace_root().join(DOCUMENT), text).expect("the document is written");
}

async fn document(world: &World) -> String {
    // The mailing runs first, while there is no other mail.
    let mailing = mailing(world).await;
    let operations = operations(world).await;
    let single = operations.iter().find(|one| one.name == SINGLE_MAIL).expect("a single mail");
    let mut text = String::new();
    let mut line = |words: &str| writeln!(text, "{words}").expect("text takes lines");
    line("# Costs");
    line("");
    line(&format!("Made by `{COMMAND}` on {}.", today()));
    line("");
    line("The local stack counts requests, capacity units, invocations and log lines of all functions while");
    line("one operation of each kind runs to its end. Prices are the list prices of us-east-1 on arm64, in");
    line("dollars, without the free tier.");
    line("");
    line(&format!("- An invocation is billed for {:.0} ms of {:.0} MB.", BILLED_SECONDS * 1e3, GIGABYTES * 1024.0));
    line("- An invocation handles one message. Under load a batch has up to ten messages and costs less.");
    line("- Not included: storage (0.25 per GB-month, and 0.20 for point-in-time recovery), KMS, and data");
    line("  transfer to the internet.");
    line("");
    line("## A million operations");
    line("");
    line(
        "| operation | DynamoDB | SQS | Lambda | HTTP API | logs | SES | total | write units | read units | invocations |",
    );
    line("|---|---|---|---|---|---|---|---|---|---|---|");
    for one in &operations {
        let Bill { dynamodb, sqs, lambda, api, logs, ses } = &one.bill();
        let (write, read) = (prices::write_units(&one.calls), prices::read_units(&one.calls));
        line(&format!(
            "| {} | {dynamodb:.2} | {sqs:.2} | {lambda:.2} | {api:.2} | {logs:.2} | {ses:.2} | **{:.2}** | {write} | {read} | {} |",
            one.name,
            one.bill().together(),
            one.invocations
        ));
    }
    line("");
    line("## 1,000 emails end to end");
    line("");
    line("From the file or the request to the last SES event (accepted, delivered).");
    line("");
    line("| | DynamoDB | SQS | Lambda | HTTP API | logs | SES | total |");
    line("|---|---|---|---|---|---|---|---|");
    let of_mailing = format!("as a mailing, {SHARD_GROUPS} senders at {MAILS_PER_SECOND} mails per second");
    for (name, bill) in [(of_mailing.as_str(), mailing), ("as single messages", single.bill().times(1e-3))] {
        let Bill { dynamodb, sqs, lambda, api, logs, ses } = &bill;
        let together = bill.together();
        line(&format!(
            "| {name} | {dynamodb:.4} | {sqs:.4} | {lambda:.4} | {api:.4} | {logs:.4} | {ses:.4} | **{together:.4}** |"
        ));
    }
    line("");
    line("## An idle month");
    line("");
    line("| | quantity | dollars |");
    line("|---|---|---|");
    let idle = idle(world).await;
    for (name, how_much, dollars) in &idle {
        line(&format!("| {name} | {how_much} | {dollars:.2} |"));
    }
    line(&format!("| total | | **{:.2}** |", idle.iter().map(|(_, _, dollars)| dollars).sum::<f64>()));
    line("");
    line("Most of this is a fixed cost: the dashboard, alarms, metrics, secrets and idle pollers. A metric is");
    line("billed for the hours in which it gets values. A stage in use has more metrics, some of them per");
    line("intent type, event kind or status class. A process reads each secret once, and again at most every");
    line("five minutes while it runs: 0.05 dollars for 10,000 reads.");
    text
}

/// The counts for one operation.
struct Spent {
    name: &'static str,
    requests: f64,
    invocations: u64,
    /// Deliveries of queues to functions: each is a receive and a delete.
    deliveries: f64,
    /// Events of SES: the event bus sends each of them to its queue, and no function makes that
    /// call.
    ses_events: f64,
    calls: Vec<Call>,
    log_bytes: f64,
    mails: f64,
}

/// Dollars, for a million operations unless stated otherwise.
#[derive(Default)]
struct Bill {
    dynamodb: f64,
    sqs: f64,
    lambda: f64,
    api: f64,
    logs: f64,
    ses: f64,
}

impl Bill {
    fn together(&self) -> f64 {
        let Self { dynamodb, sqs, lambda, api, logs, ses } = self;
        dynamodb + sqs + lambda + api + logs + ses
    }

    fn times(self, by: f64) -> Self {
        let Self { dynamodb, sqs, lambda, api, logs, ses } = self;
        let [dynamodb, sqs, lambda, api, logs, ses] = [dynamodb, sqs, lambda, api, logs, ses].map(|part| part * by);
        Self { dynamodb, sqs, lambda, api, logs, ses }
    }
}

impl Spent {
    fn bill(&self) -> Bill {
        Bill {
            dynamodb: prices::of_units(&self.calls),
            sqs: (prices::queue_requests(&self.calls) + self.ses_events + 2.0 * self.deliveries)
                * prices::QUEUE_REQUEST,
            lambda: self.invocations as f64 * prices::of_invocation(),
            api: self.requests * prices::API_REQUEST,
            logs: self.log_bytes * prices::LOG_MEGABYTE,
            ses: self.mails * prices::MAIL,
        }
    }
}

/// Counts everything until the stack is idle.
async fn spent(world: &World, name: &'static str, requests: usize, work: impl Future<Output = ()>) -> Spent {
    world.drain().await;
    let (calls, logs) = (world.stack.calls().position(), world.stack.logs().position());
    let (invoked, mailed) = (world.stack.functions().invocations(), mails(world));
    work.await;
    world.drain().await;
    let invocations = world.stack.functions().invocations() - invoked;
    let lines = world.stack.logs().since(logs);
    Spent {
        name,
        requests: requests as f64,
        invocations,
        deliveries: deliveries(world.stack.model(), &lines) as f64,
        ses_events: events_of_ses(world, &lines) as f64,
        calls: world.stack.calls().since(calls),
        log_bytes: log_bytes(&lines, invocations),
        mails: (mails(world) - mailed) as f64,
    }
}

fn mails(world: &World) -> usize {
    world.stack.catcher().sent(Some("email"), None).len()
}

/// Returns the number of invocations by queues, identified by the request ids in the logs.
fn deliveries(model: &Model, lines: &[LogLine]) -> usize {
    let of_queues = model.functions.iter().filter(|function| !function.queue_sources.is_empty());
    let names: BTreeSet<_> = of_queues.map(|function| function.name.as_str()).collect();
    let ids = lines.iter().filter(|line| names.contains(line.function.as_str()));
    let id = |line: &LogLine| Some(read(line)["request_id"].as_str()?.to_owned());
    ids.filter_map(id).collect::<BTreeSet<_>>().len()
}

fn events_of_ses(world: &World, lines: &[LogLine]) -> usize {
    let name = world.stack.function_name("delivery-events");
    let of_it = lines.iter().filter(|line| Some(line.function.as_str()) == name);
    of_it.filter(|line| read(line)["event"] == "RECORD_HANDLED").count()
}

fn log_bytes(lines: &[LogLine], invocations: u64) -> f64 {
    let of_functions: f64 = lines.iter().map(|line| line.line.len() as f64 + LOG_EVENT_BYTES).sum();
    of_functions + invocations as f64 * PLATFORM_LOG_BYTES
}

fn read(line: &LogLine) -> Value {
    serde_json::from_str(&line.line).unwrap_or_default()
}

const SINGLE_MAIL: &str = "message by email, accepted to delivered";

/// Runs each operation twice and counts the second time. The first one reads secrets, creates rate
/// limit buckets and seeds policies.
async fn operations(world: &World) -> Vec<Spent> {
    let put = world.request(Method::PUT, "/instances/telegram/default").bearer_auth(KEY).json(&json!({}));
    assert_eq!(world.send(put).await.status, 201);
    assert_eq!(world.post("/api/admin/bots", &json!({"slug": "default"})).await.status, 201);
    let downsell = json!({"name": "Oferta", "content": {"text": "Oi"}, "delay_minutes": 20, "after_start": false, "after_pix": true});
    assert_eq!(world.post("/api/admin/bots/default/downsells", &downsell).await.status, 201);
    let mut all = Vec::new();
    for turn in 0..2_u32 {
        all.clear();
        let client = format!("91b7584a-d8f1-4cd6-b0e1-{turn:012}");
        let offer = json!({"client_id": client, "intent_type": "offer_active", "reference_id": client});
        all.push(posted(world, "intent check, new", "/intents", &offer).await);
        all.push(posted(world, "intent check, duplicate", "/intents", &offer).await);
        let nudge = json!({"channel": "telegram", "to": (987_654_000 + turn).to_string(), "content": {"text": "Sentimos sua falta"},
            "intent": {"client_id": client, "intent_type": "reactivation_nudge"}});
        all.push(
            posted(world, "message by Telegram with intent, accepted to sent", "/outbound/messages", &nudge).await,
        );
        all.push(posted(world, "message with intent, deduped", "/outbound/messages", &nudge).await);
        let letter = json!({"channel": "email", "to": format!("ana{turn}@example.com"),
            "content": {"from": "loja@example.com", "subject": "Oi", "text": "Sentimos sua falta"}});
        all.push(posted(world, SINGLE_MAIL, "/outbound/messages", &letter).await);
        let thought = json!({"text": "Uma ideia", "source": {"chat_id": 42, "message_id": turn + 1}});
        all.push(posted(world, "entry ingested, one key", "/ingest/telegram", &thought).await);
        let issue = json!({"raw_text": "hi", "from": "news@example.com", "subject": format!("Digest {turn}"), "content_type": "newsletter",
            "source": {"message_id": format!("<{turn}@example.com>"), "date": "2025-07-01T04:00:00Z"}});
        all.push(posted(world, "entry ingested, two keys", "/ingest/email", &issue).await);
        all.push(answered(world, turn).await);
        all.extend(offered(world, turn).await);
    }
    all
}

/// Posts with a unique idempotency key.
async fn posted(world: &World, name: &'static str, path: &str, body: &Value) -> Spent {
    let key = format!("key-{}", world.stack.calls().position());
    spent(world, name, 1, async {
        let answer = world.post_with_key(&key, path, body).await;
        assert!(answer.status < 300, "{name}: {}", answer.body);
    })
    .await
}

/// A contact's message by Telegram: the wait for further messages, the responder's reply and its
/// delivery.
async fn answered(world: &World, turn: u32) -> Spent {
    spent(world, "message of a contact, stored and answered, reply sent", 1, async {
        let chat = 5_000 + turn;
        let update = json!({"update_id": turn, "message": {"message_id": turn + 1, "date": world.now().seconds(),
            "chat": {"id": chat, "type": "private"}, "from": {"id": chat, "is_bot": false, "first_name": "Ana"}, "text": "Oi"}});
        let webhook = world.request(Method::POST, "/webhooks/telegram/default").json(&update);
        let webhook = webhook.header("x-telegram-bot-api-secret-token", "local-telegram-secret");
        assert_eq!(world.send(webhook).await.status, 200);
        world.advance(Duration::from_secs(10)).await;
    })
    .await
}

/// A charge whose offer a sweep enqueues and which is sent; a charge that is paid before that; and
/// the payment.
async fn offered(world: &World, turn: u32) -> Vec<Spent> {
    let charge = |what: &str, chat: u32| {
        let transaction = format!("{what}-{turn}");
        json!({"bot_slug": "default", "telegram_id": chat + turn, "transaction_id": transaction})
    };
    let (paid, sent) = (charge("paid", 6_000), charge("sent", 7_000));
    let created = "/api/payment/webhook/pix-created";
    let first = posted(world, "charge reported, one offer scheduled", created, &paid).await;
    let payment =
        posted(world, "payment reported, one offer canceled", "/api/payment/webhook/payment-approved", &paid).await;
    let whole = spent(world, "charge reported, its offer swept and sent", 1, async {
        assert_eq!(world.post(created, &sent).await.body["scheduled"], 1);
        world.advance(Duration::from_secs(600)).await;
        // The sweep of this minute is part of the idle month.
        world.tick("DownsellSweep").await;
        world.advance(Duration::from_secs(610)).await;
    })
    .await;
    vec![first, payment, whole]
}

/// Returns the bill of a mailing to a thousand recipients, in dollars.
async fn mailing(world: &World) -> Bill {
    let spent = spent(world, "mailing", 2, mail(world, RECIPIENTS)).await;
    assert!((spent.mails - RECIPIENTS as f64).abs() < 0.5, "not one mail per recipient");
    let waiting = f64::from(SHARD_GROUPS) * GIGABYTES * RECIPIENTS as f64 / MAILS_PER_SECOND;
    let bill = spent.bill().times(1e-6);
    Bill { lambda: bill.lambda + waiting * prices::GIGABYTE_SECOND * 1e-6, ..bill }
}

/// Returns the fixed costs, from the template, and the costs of the schedules.
async fn idle(world: &World) -> Vec<(String, String, f64)> {
    let model = world.stack.model();
    let mut all = Vec::new();
    let logs = world.stack.logs().position();
    let (mut bill, mut ticks) = (Bill::default(), 0.0);
    for function in model.functions.iter().filter(|function| !function.schedules.is_empty()) {
        let spent = spent(world, "tick", 0, world.tick(&function.logical_id)).await;
        let often: f64 = function.schedules.iter().map(|one| MONTH.as_secs_f64() / one.every.as_secs_f64()).sum();
        let Bill { dynamodb, lambda, logs, .. } = spent.bill().times(often * 1e-6);
        bill =
            Bill { dynamodb: bill.dynamodb + dynamodb, lambda: bill.lambda + lambda, logs: bill.logs + logs, ..bill };
        ticks += often;
    }
    let emitted = metrics(&world.stack.logs().since(logs));
    let ticked = format!("{ticks:.0} invocations");
    all.push(("schedules: Lambda".to_owned(), ticked.clone(), bill.lambda));
    all.push(("schedules: DynamoDB".to_owned(), ticked.clone(), bill.dynamodb));
    all.push(("schedules: logs".to_owned(), ticked, bill.logs));
    let queues: usize = model.functions.iter().map(|function| function.queue_sources.len()).sum();
    let polls = queues as f64 * POLLERS * MONTH.as_secs_f64() / POLL.as_secs_f64();
    let polled = format!("{queues} queues with {POLLERS} long polls of {} s each", POLL.as_secs());
    all.push(("SQS".to_owned(), polled, polls * prices::QUEUE_REQUEST * 1e-6));
    let alarms = template().matches("Type: AWS::CloudWatch::Alarm").count();
    all.push(("CloudWatch alarms".to_owned(), alarms.to_string(), alarms as f64 * prices::ALARM));
    let dashboards = template().matches("Type: AWS::CloudWatch::Dashboard").count();
    all.push(("CloudWatch dashboards".to_owned(), dashboards.to_string(), dashboards as f64 * prices::DASHBOARD));
    all.push((
        "CloudWatch metrics written by schedules".to_owned(),
        emitted.to_string(),
        emitted as f64 * prices::METRIC,
    ));
    let secrets = model.secrets.len();
    all.push(("Secrets Manager".to_owned(), format!("{secrets} secrets"), secrets as f64 * prices::SECRET));
    all
}

/// Returns the number of metrics in the lines: a name with each combination of dimension values is
/// one.
fn metrics(lines: &[LogLine]) -> usize {
    let mut all = BTreeSet::new();
    for event in lines.iter().map(read) {
        for directive in event["_aws"]["CloudWatchMetrics"].as_array().into_iter().flatten() {
            for dimensions in directive["Dimensions"].as_array().into_iter().flatten().filter_map(Value::as_array) {
                let values: Vec<_> =
                    dimensions.iter().filter_map(|name| Some(event[name.as_str()?].to_string())).collect();
                for metric in directive["Metrics"].as_array().into_iter().flatten() {
                    all.insert(format!("{} {values:?}", metric["Name"]));
                }
            }
        }
    }
    all.len()
}

fn today() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_seconds(i64::try_from(since.as_secs()).unwrap_or(0)).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}
