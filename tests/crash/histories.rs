//! Random histories: clients check, repeat, release and read concurrently, functions are killed,
//! and windows pass. The model must explain every answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_tests::{Answer, Expected, KEY, Setup, World};

use crate::model::{Event, Operation, Seen, State, check_itself, explain};
use crate::suite::AT_ONCE;

const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";
const REFERENCES: [&str; 2] = ["1e2feb89-7ed4-4c2c-9cc4-a6ce78e51061", "d5f4b3b2-63ca-46ec-a6e0-c464c324c985"];
const KEYS: [&str; 4] = ["k1", "k2", "k3", "k4"];
const ROUNDS: usize = 10;
const LARGEST_ROUND: usize = 5;

pub async fn check(seeds: Range<u64>) -> usize {
    if let Err(what) = check_itself() {
        println!("VIOLATION: {what}");
        return 1;
    }
    World::build().await;
    let (mut operations, mut violations) = (0, 0);
    let mut histories = futures::stream::iter(seeds.clone())
        .map(|seed| async move {
            let (done, violation) = history(seed).await;
            (seed, done, violation)
        })
        .buffer_unordered(AT_ONCE);
    while let Some((seed, done, violation)) = histories.next().await {
        operations += done;
        if let Some(violation) = violation {
            violations += 1;
            println!("VIOLATION in history {seed} (--history {seed}): {violation}");
        }
    }
    println!(
        "histories: seeds {} to {}, {operations} operations, {violations} violations",
        seeds.start,
        seeds.end.saturating_sub(1)
    );
    violations
}

pub async fn replay(seed: u64) -> usize {
    World::build().await;
    let (operations, violation) = history(seed).await;
    println!("history {seed}: {operations} operations, {}", violation.as_deref().unwrap_or("no violation"));
    usize::from(violation.is_some())
}

/// Runs one history. A broken invariant at its end is a violation too.
async fn history(seed: u64) -> (usize, Option<String>) {
    let whole = AssertUnwindSafe(play(seed)).catch_unwind().await;
    whole.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        (0, Some(text.unwrap_or_else(|| "an invariant is broken".to_owned())))
    })
}

/// Runs rounds of concurrent operations. The same seed gives the same operations.
async fn play(seed: u64) -> (usize, Option<String>) {
    let world = World::start(Setup::default()).await;
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut operations = 0;
    let mut violation = None;
    // The possible states of today's intent of each reference.
    let fresh = || REFERENCES.map(|reference| (reference, BTreeSet::from([State::Never])));
    let mut possible = BTreeMap::from(fresh());
    let mut fingerprints: BTreeMap<&str, String> = BTreeMap::new();
    for round in 0..ROUNDS {
        if round > 0 && dice.u8(..6) == 0 {
            world.advance(Duration::from_secs(86_400)).await;
            possible = BTreeMap::from(fresh());
            fingerprints.clear();
        }
        let planned: Vec<_> = (0..dice.usize(1..=LARGEST_ROUND)).map(|_| plan(&mut dice, round)).collect();
        if dice.u8(..3) == 0 {
            world.stack.add_fault(trouble(&mut dice)).await.expect("armed");
        }
        // A release needs the fingerprint, which a read of today's intent returns. It is unknown
        // before the first check.
        let events = join_all(planned.iter().map(|(reference, operation, key)| {
            perform(&world, reference, fingerprints.get(reference).cloned(), operation, key)
        }))
        .await;
        world.stack.clear_faults();
        operations += events.len();
        for (reference, states) in &mut possible {
            let mut of_reference: Vec<Event> = Vec::new();
            for ((of, ..), (event, fingerprint)) in planned.iter().zip(&events) {
                if of == reference {
                    of_reference.extend(event.clone());
                    if let Some(fingerprint) = fingerprint {
                        fingerprints.insert(*reference, fingerprint.clone());
                    }
                }
            }
            let ends = explain(states, &of_reference);
            if ends.is_empty() {
                let unexplained =
                    format!("round {round}, {reference}: from {states:?} nothing explains {of_reference:?}");
                violation.get_or_insert(unexplained);
                break;
            }
            *states = ends;
        }
        if violation.is_some() {
            break;
        }
    }
    let lines = world.events("REQUEST_ANSWERED");
    let failed: Vec<_> =
        lines.iter().filter_map(|line| line["status"].as_u64()).filter(|status| *status >= 500).collect();
    assert!(failed.iter().all(|status| *status == 503), "a fault caused the answers {failed:?}");
    let server_errors = failed.len();
    world.drain().await;
    world.audit(Expected { server_errors, ..Expected::default() }).await;
    world.stack.stop().await.expect("the stack stops");
    (operations, violation)
}

fn plan(dice: &mut fastrand::Rng, round: usize) -> (&'static str, Operation, String) {
    let reference = REFERENCES[dice.usize(..REFERENCES.len())];
    let key = KEYS[dice.usize(..KEYS.len())].to_owned();
    // Every release is a separate request; some have no key.
    let own_key = if dice.bool() { format!("release-{round}-{}", dice.u32(..)) } else { String::new() };
    match dice.u8(..10) {
        0..=5 => (reference, Operation::Check { key: key.clone() }, key),
        6 => (reference, Operation::Release { holder: None }, own_key),
        7 | 8 => (reference, Operation::Release { holder: Some(key) }, own_key),
        _ => (reference, Operation::Read, own_key),
    }
}

/// Returns a crash or a lost reply at one of the next writes.
fn trouble(dice: &mut fastrand::Rng) -> Fault {
    let actions = [Action::KillBefore, Action::KillAfter, Action::DropReply, Action::ErrorAfter, Action::Throttle];
    Fault::Call(CallFault {
        function: Some("outbound-api".to_owned()),
        service: None,
        operation: None,
        target: None,
        nth: dice.u64(1..=3),
        times: dice.u64(1..=4),
        action: actions[dice.usize(..actions.len())],
        delay_ms: 0,
        answer: None,
    })
}

/// Performs an operation. Returns what the client saw, and the fingerprint if the answer contains
/// it. Skips a release if the fingerprint is not yet known.
async fn perform(
    world: &World,
    reference: &str,
    fingerprint: Option<String>,
    operation: &Operation,
    key: &str,
) -> (Option<Event>, Option<String>) {
    let answer = match operation {
        Operation::Check { .. } => {
            let body = json!({"client_id": CLIENT, "intent_type": "offer_active", "reference_id": reference});
            post(world, "/intents", key, &body).await
        }
        Operation::Release { holder } => {
            let Some(fingerprint) = &fingerprint else { return (None, None) };
            let mut body = json!({"client_id": CLIENT});
            if let Some(holder) = holder {
                body["holder"] = json!(full_name(holder));
            }
            post(world, &format!("/intents/{fingerprint}/release"), key, &body).await
        }
        Operation::Read => {
            let Some(fingerprint) = &fingerprint else { return (None, None) };
            world.get(&format!("/intents/{fingerprint}?client_id={CLIENT}")).await
        }
    };
    let seen = seen(operation, &answer);
    let known = answer.body["fingerprint"].as_str().map(str::to_owned).or(fingerprint);
    (Some(Event { operation: operation.clone(), seen }), known)
}

async fn post(world: &World, path: &str, key: &str, body: &Value) -> Answer {
    let request = world.request(Method::POST, path).bearer_auth(KEY).json(body);
    let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
    world.send(request).await
}

fn seen(operation: &Operation, answer: &Answer) -> Seen {
    match (operation, answer.status) {
        (_, 500..) => Seen::Nothing,
        (_, 404) => Seen::NotFound,
        (_, 409) => Seen::HeldByAnother,
        (Operation::Check { .. }, _) if answer.body["can_send"] == true => Seen::Allowed,
        (Operation::Check { .. }, _) => Seen::Blocked { by: short_name(&answer.body["blocked_by"]["holder"]) },
        (Operation::Release { .. }, _) if answer.body["already"] == true => Seen::AlreadyReleased,
        (Operation::Release { .. }, _) => Seen::Released,
        (Operation::Read, _) if answer.body["status"] == "RELEASED" => Seen::Is(State::Released),
        (Operation::Read, _) => Seen::Is(State::Held(short_name(&answer.body["holder"]))),
    }
}

/// Returns the holder of a key: the key together with the id of the API key.
fn full_name(key: &str) -> String {
    format!("key:{}:{key}", umavez_domain::access::PresentedKey::of(KEY).id)
}

fn short_name(holder: &Value) -> String {
    holder.as_str().and_then(|holder| holder.rsplit(':').next()).unwrap_or_default().to_owned()
}
