//! `cargo bench`: the budgets, as a table. Requests and capacity units are counted at the front.
//! Times are ratios to a control in the same run, and no check fails because a machine is slow.

mod before;
mod conversations;
mod costs;
mod downsells;
mod mailings;
mod prices;
mod single_puts;

use std::time::Instant;

use serde_json::{Value, json};
use umavez_domain::ingest::{normalize_email, normalize_telegram};
use umavez_local::calls::Call;
use umavez_local::local_parameters::with_local;
use umavez_local::{Options, Stack, binaries, secrets};
use umavez_tests::processes::nanoseconds;
use umavez_tests::{KEY, World, template};

use crate::before::Took;

const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";
const INVOCATIONS: usize = 300;

fn main() {
    // The control of the import runs as a process of this program.
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_default();
    if first == single_puts::ARGUMENT {
        return single_puts::run(arguments);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // Counts do not depend on optimization: `--profile dev` is enough for them, and builds in a
        // fraction of the time.
        let profile = if cfg!(debug_assertions) { "dev" } else { "bench" };
        eprintln!("building the functions with the {profile} profile");
        binaries::build_profile(false, profile).await.expect("the functions build");
        if first == costs::ARGUMENT {
            return costs::write().await;
        }
        if first == downsells::ARGUMENT {
            return downsells::budgets().await;
        }
        let world = start(1, "IntentTypeOptions", &json!({"discovery_first_touch": {"window": "rolling"}})).await;
        requests(&world).await;
        messages(&world).await;
        entries(&world).await;
        conversations::budgets(&world).await;
        processor_time(&world).await;
        world.stack.stop().await.expect("stops");
        downsells::budgets().await;
        mailings::budgets().await;
        normalization();
        before::compare();
        if first == before::ARGUMENT {
            before::record();
        }
    });
}

async fn start(concurrency: usize, parameter: &str, value: &Value) -> World {
    let parameters = [(parameter.to_owned(), value.to_string())].into();
    let parameters = with_local(parameters).expect("the parameters of this machine");
    let secrets = Some(secrets::local_file());
    let options = Options { parameters, secrets, concurrency, schedules: false, ..Options::in_memory(template()) };
    let world = World::of(Stack::start(options).await.expect("the stack starts"));
    world.create_key(KEY, &["*"]).await;
    world
}

/// Prints the requests and units of single operations, beside the least possible.
async fn requests(world: &World) {
    println!(
        "\n{:<44} {:>8} {:>6} {:>8} {:>6} {:>8}   {}",
        "operation",
        "requests",
        "least",
        "write u.",
        "least",
        "read u.",
        before::TITLE
    );
    let offer = json!({"client_id": CLIENT, "intent_type": "offer_active", "reference_id": CLIENT});
    let touch = json!({"client_id": CLIENT, "intent_type": "discovery_first_touch", "reference_id": CLIENT});
    for (name, body, least) in [
        ("intent check, new", &offer, (1, 1.0)),
        ("intent check, duplicate", &offer, (1, 1.0)),
        ("intent check, rolling window, new", &touch, (1, 4.0)),
        ("intent check, rolling window, duplicate", &touch, (1, 4.0)),
    ] {
        let (_, calls) = world.calls_of("outbound-api", world.post("/intents", body)).await;
        row(name, &calls, least);
    }
    let page = format!("/intents?client_id={CLIENT}");
    let (listed, calls) = world.calls_of("outbound-api", world.get(&page)).await;
    row("intents of a client, one page", &calls, (1, 0.0));
    let (_, calls) = world.calls_of("authorizer", world.get(&page)).await;
    row("authorizer", &calls, (1, 0.0));
    let intents = listed.body["intents"].as_array().expect("a list");
    let intent = intents.iter().find(|intent| intent["intent_type"] == "offer_active").expect("the offer");
    let path = format!("/intents/{}/release", intent["fingerprint"].as_str().expect("a fingerprint"));
    let body = json!({"client_id": CLIENT, "holder": intent["holder"]});
    let (_, calls) = world.calls_of("outbound-api", world.post(&path, &body)).await;
    row("release", &calls, (1, 1.0));
}

/// Prints the requests of one message from its acceptance to its outcome, and the cost of a million
/// messages.
async fn messages(world: &World) {
    let client = |n: u32| format!("91b7584a-d8f1-4cd6-b0e1-{n:012}");
    let body = |n: u32| {
        json!({
            "channel": "telegram", "to": (987_654_000 + n).to_string(), "content": {"text": "Sentimos sua falta"},
            "intent": {"client_id": client(n), "intent_type": "reactivation_nudge"},
        })
    };
    let ask = |key: &'static str, n: u32| {
        let body = body(n);
        async move { world.post_with_key(key, "/outbound/messages", &body).await }
    };
    // A first message, so that reading secrets and creating rate limit buckets is not counted.
    ask_and_drain(world, "warm", &body(1)).await;
    let position = world.stack.calls().position();
    let invoked = world.stack.functions().invocations();
    let (_, calls) = world.calls_of("outbound-api", ask("new", 2)).await;
    row("message with intent, new", &calls, (1, 4.0));
    world.drain().await;
    let invocations = world.stack.functions().invocations() - invoked;
    let whole: Vec<_> = world.stack.calls().since(position);
    let of = |function: &str| -> Vec<Call> { whole.iter().filter(|call| call.caller == function).cloned().collect() };
    row("message, handed over by the relay", &of("outbox-relay"), (1, 0.0));
    let sender = of("outbound-sender");
    let outcome = sender.iter().rev().find(|call| call.operation == "UpdateItem").cloned();
    row("message, read by its sender", &only(&sender, |call| call.operation == "GetItem"), (1, 0.0));
    let grants = only(&sender, |call| ["BatchGetItem", "UpdateItem"].contains(&call.operation.as_str()));
    row("message, slots of its chat and its bot", &grants[..grants.len() - 1], (3, 2.0));
    row("message, claim with its gate", &only(&sender, |call| call.operation == "TransactWriteItems"), (1, 4.0));
    row("message, outcome", &outcome.into_iter().collect::<Vec<_>>(), (1, 1.0));
    let (_, calls) = world.calls_of("outbound-api", ask("new", 2)).await;
    row("message with intent, asked again", &calls, (1, 4.0));
    let (_, calls) = world.calls_of("outbound-api", ask("other", 2)).await;
    row("message with intent, deduped", &calls, (2, 5.0));
    let (_, calls) = world.calls_of("outbound-sweep", world.tick("OutboundSweep")).await;
    row("sweep, nothing due", &calls, (4, 0.0));
    let (_, calls) = world.calls_of("recovery", world.tick("Recovery")).await;
    row("recovery, nothing lost", &calls, (32, 0.0));
    prices::of_messages(&whole, invocations);
}

/// An insert reads the flag and the policies with one query, and then writes the entry.
async fn entries(world: &World) {
    let thought = |n: i64, text: &str| json!({"text": text, "source": {"chat_id": 42, "message_id": n}});
    let issue = |id: &str| {
        json!({"raw_text": "hi", "from": "news@example.com", "subject": "The Digest", "content_type": "newsletter",
            "source": {"message_id": id, "date": "2025-07-01T04:00:00Z"}})
    };
    // A first entry, so that seeding the policies is not counted.
    world.post("/ingest/telegram", &thought(1, "a")).await;
    println!();
    for (name, path, body, least) in [
        ("ingest, one key, new", "/ingest/telegram", thought(2, "a"), (2, 1.0)),
        ("ingest, one key, updated", "/ingest/telegram", thought(2, "b"), (3, 2.0)),
        ("ingest, two keys, new", "/ingest/email", issue("<a@example.com>"), (2, 4.0)),
        ("ingest, two keys, skipped by the first", "/ingest/email", issue("<a@example.com>"), (2, 4.0)),
        ("ingest, two keys, skipped by the second", "/ingest/email", issue("<b@example.com>"), (4, 5.0)),
    ] {
        let (answer, calls) = world.calls_of("ingest", world.post(path, &body)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        row(name, &calls, least);
    }
}

/// Measures normalization alone, with realistic subjects and addresses.
fn normalization() {
    const ROUNDS: usize = 2_000;
    let subjects = [
        "Re: [dev-list] Build is red",
        "FWD: Fw: RES: orçamento aprovado",
        "[JIRA] (OPS-1423) Disk full on db-3",
        "  Your   weekly digest — 12 new stories ",
        "ENC: Nota fiscal nº 4451",
        "re:re:RE: almoço?",
        "[External] [EXT] Invoice #88213 is due",
        "Notificação: sua fatura de março chegou 📄",
    ];
    let links = [
        "https://www.example.com/blog/post?utm_source=newsletter&utm_medium=email&id=42#comments",
        "HTTPS://Example.COM:443/a/../b/?fbclid=IwAR0abc&gclid=xyz&q=caf%C3%A9",
        "https://bücher.example/straße?b=2&a=1&mc_cid=99",
        "https://youtu.be/dQw4w9WgXcQ?si=abcdefgh&t=42",
        "http://user:pass@news.example.org/2025/07/01/story.html?ref_src=twsrc%5Etfw",
    ];
    let emails: Vec<_> = subjects
        .iter()
        .map(|subject| {
            json!({"raw_text": "Olá, segue o resumo da semana.", "from": "Equipe <news@example.com>", "subject": subject,
                "source": {"message_id": "<a@example.com>", "date": "2025-07-01T04:00:00Z"}})
        })
        .collect();
    let telegrams: Vec<_> = links.iter().map(|link| json!({"text": format!("{link} vale a leitura")})).collect();
    println!("\n{:<44} {:>12} {:>14}", "normalization, processor time per item", "µs", "× reading JSON");
    for (name, items, normalize) in [
        ("email", &emails, normalize_email as fn(&serde_json::Map<String, Value>) -> _),
        ("telegram link", &telegrams, normalize_telegram),
    ] {
        let texts: Vec<_> = items.iter().map(ToString::to_string).collect();
        let per_item = |work: &mut dyn FnMut()| {
            let begin = Instant::now();
            (0..ROUNDS).for_each(|_| work());
            begin.elapsed().as_secs_f64() * 1e6 / (ROUNDS * items.len()) as f64
        };
        let reading = per_item(&mut || {
            for text in &texts {
                std::hint::black_box(serde_json::from_str::<Value>(text).expect("JSON"));
            }
        });
        let normalizing = per_item(&mut || {
            for item in items {
                let normalized: Result<_, _> = normalize(item.as_object().expect("an object"));
                std::hint::black_box(normalized.expect("it fits"));
            }
        });
        println!("{name:<44} {normalizing:>12.1} {:>14.1}", normalizing / reading);
    }
}

async fn ask_and_drain(world: &World, key: &str, body: &Value) {
    world.post_with_key(key, "/outbound/messages", body).await;
    world.drain().await;
}

fn only(calls: &[Call], which: impl Fn(&Call) -> bool) -> Vec<Call> {
    calls.iter().filter(|call| which(call)).cloned().collect()
}

fn row(name: &str, calls: &[Call], least: (usize, f64)) {
    let (write, read) = (prices::write_units(calls), prices::read_units(calls));
    let before = before::column(name, Took::of(calls));
    println!("{name:<44} {:>8} {:>6} {write:>8} {:>6} {read:>8}{before}", calls.len(), least.0, least.1);
}

/// Measures the processor time of a warm invocation, relative to a function that does nothing.
async fn processor_time(world: &World) {
    let control = World::of(
        Stack::start(Options { concurrency: 1, ..Options::in_memory(EMPTY) }).await.expect("the control starts"),
    );
    let empty = per_invocation(&control, "probe-empty", |_| json!({})).await;
    control.stack.stop().await.expect("stops");
    println!("\n{:<44} {:>12} {:>10}", "processor time per warm invocation", "µs", "× empty");
    println!("{:<44} {empty:>12.0} {:>10.1}", "empty lambda_runtime", 1.0);
    let event = |number: usize| check_event(number);
    let check = per_invocation(world, "outbound-api", event).await;
    println!("{:<44} {check:>12.0} {:>10.1}", "intent check", check / empty);
}

/// Returns the microseconds of processor time per invocation, as the scheduler counts them.
async fn per_invocation(world: &World, function: &str, event: impl Fn(usize) -> Value) -> f64 {
    for number in 0..20 {
        world.deliver(function, &event(number)).await;
    }
    let name = world.stack.function_name(function).expect("a function").to_owned();
    let pid = world.stack.functions().processes().into_iter().find(|(of, _)| *of == name).expect("a process").1;
    let before = nanoseconds(pid);
    for number in 0..INVOCATIONS {
        world.deliver(function, &event(1_000 + number)).await;
    }
    (nanoseconds(pid) - before) / 1_000.0 / INVOCATIONS as f64
}

fn check_event(number: usize) -> Value {
    let body = json!({
        "client_id": format!("91b7584a-d8f1-4cd6-b0e1-{number:012}"),
        "intent_type": "offer_active", "reference_id": CLIENT,
    });
    json!({
        "version": "2.0", "routeKey": "POST /intents", "rawPath": "/intents", "rawQueryString": "",
        "headers": {"content-type": "application/json"}, "isBase64Encoded": false, "body": body.to_string(),
        "requestContext": {
            "accountId": "0", "apiId": "a", "domainName": "d", "domainPrefix": "d", "requestId": "r",
            "routeKey": "POST /intents", "stage": "$default", "time": "01/Jan/2026:00:00:00 +0000", "timeEpoch": 0,
            "http": {"method": "POST", "path": "/intents", "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1", "userAgent": "bench"},
            "authorizer": {"lambda": {"key_id": "0123456789abcdef", "scopes": "*"}},
        },
    })
}

const EMPTY: &str = r#"
Resources:
  Empty:
    Type: AWS::Serverless::Function
    Metadata: {BuildMethod: rust-cargolambda, BuildProperties: {Binary: probe-empty}}
    Properties: {FunctionName: probe-empty, CodeUri: tests/probe, Runtime: provided.al2023, Handler: bootstrap, Timeout: 10}
"#;
