//! The cost of a trigger, a sweep and a claim of offers, whatever the number of stored offers.

use std::time::Duration;

use serde_json::json;
use umavez_domain::downsells::{Contact, ContactId, DownsellRow, PlanStep, Trigger, TriggerEvent, plan};
use umavez_domain::keys;
use umavez_local::calls::Call;
use umavez_platform::store::{Item, row_of};
use umavez_tests::World;

use crate::before::{self, Took};
use crate::prices;

/// The argument that runs only this part.
pub const ARGUMENT: &str = "downsells";
/// Offers that are pending and not due.
const STORED: u32 = 200_000;
/// Offers that are due at once.
const DUE: u32 = 10_000;
/// Rows of one insert.
const AT_ONCE: u32 = 2_500;
/// The write units of a claim with its gate, which is one transaction.
const CLAIM_UNITS: f64 = 6.0;
const CHAT: i64 = 987_654_321;

pub async fn budgets() {
    let world = crate::start(4, "SendRates", &json!({"telegram": {"sender": "1000/1s"}})).await;
    println!(
        "\n{:<44} {:>8} {:>6} {:>8} {:>6} {:>8}   {}",
        "downsells",
        "requests",
        "most",
        "write u.",
        "most",
        "read u.",
        before::TITLE
    );
    assert_eq!(world.post("/api/admin/bots", &json!({"slug": "default"})).await.status, 201);
    let body = json!({"name": "Oferta", "content": {"text": "Oi"}, "delay_minutes": 1, "after_pix": true});
    assert_eq!(world.post("/api/admin/bots/default/downsells", &body).await.status, 201);
    one_offer(&world).await;
    sweeps(&world).await;
    world.stack.stop().await.expect("stops");
}

/// Measures one offer from its charge to its end.
async fn one_offer(world: &World) {
    for (n, counted) in [(0, false), (1, true)] {
        let charge = json!({"bot_slug": "default", "telegram_id": CHAT + n, "transaction_id": format!("tx-{n}")});
        let path = "/api/payment/webhook/pix-created";
        let (answer, calls) = world.calls_of("webhook-intake", world.post(path, &charge)).await;
        assert_eq!(answer.body["scheduled"], 1, "{}", answer.body);
        let (_, sent) = world.calls_of("outbound-sender", world.advance(Duration::from_secs(65))).await;
        // The first offer reads secrets and creates rate limit buckets.
        if !counted {
            continue;
        }
        check_budget("charge made, one offer scheduled", &calls, None);
        let claims: Vec<_> = sent.iter().filter(|call| call.operation == "TransactWriteItems").cloned().collect();
        check_budget("offer, claim with its gate", &claims[..1], Some((1, CLAIM_UNITS)));
        // Two rows and both indexes: the offer leaves the index by time, and is listed under its
        // final status.
        check_budget("offer, outcome with its slot", &claims[1..], Some((1, 6.0)));
        let (answer, calls) =
            world.calls_of("webhook-intake", world.post("/api/payment/webhook/payment-approved", &charge)).await;
        assert_eq!(answer.body["already_sent"], 1, "{}", answer.body);
        check_budget("payment, nothing pending", &calls, None);
    }
}

async fn sweeps(world: &World) {
    let tick = || world.calls_of("downsell-sweep", world.tick("DownsellSweep"));
    let (_, none) = tick().await;
    check_budget("sweep, none pending", &none, Some((4, 0.0)));
    let far = world.now().plus_days(1);
    fill(world, 0, STORED, far).await;
    let (_, many) = tick().await;
    check_budget(&format!("sweep, {STORED} pending and none due"), &many, Some((none.len(), 0.0)));
    fill(world, STORED, DUE, world.now().plus_ms(1_800_000)).await;
    world.advance(Duration::from_secs(1_200)).await;
    let (mut calls, mut claims) = (Vec::new(), 0);
    // A sweep is bounded by its time and continues at the next tick.
    while claims < DUE as usize {
        calls.extend(tick().await.1);
        let done = calls.iter().filter(|call| call.operation == "UpdateItem").count();
        assert!(done > claims, "a tick enqueued no offer");
        claims = done;
    }
    let most = DUE as usize + DUE as usize / 20;
    check_budget(&format!("sweep, {DUE} due"), &calls, Some((most, f64::MAX)));
}

/// Inserts offers that are due at `due_at`, each for another contact.
async fn fill(world: &World, from: u32, count: u32, due_at: umavez_domain::time::Timestamp) {
    let table = world.stack.output("DownsellsTable").expect("a table").to_owned();
    let downsell = downsell(world);
    let at = due_at.plus_ms(-60_000);
    for first in (from..from + count).step_by(AT_ONCE as usize) {
        let rows: Vec<Item> =
            (first..(first + AT_ONCE).min(from + count)).map(|n| offer(world, &downsell, n, at)).collect();
        world.store.insert_many(&world.invocation(), &table, rows).await.expect("inserted");
    }
}

fn downsell(world: &World) -> DownsellRow {
    let body = json!({"name": "Oferta", "content": {"text": "Oi"}, "delay_minutes": 1});
    let new = DownsellRow::read("default", body.as_object().expect("an object"), world.now()).expect("fits");
    DownsellRow { id: 1, ..new }
}

fn offer(world: &World, downsell: &DownsellRow, n: u32, at: umavez_domain::time::Timestamp) -> Item {
    let telegram_id = i64::from(n) + 1;
    let asked = TriggerEvent {
        bot: "default",
        telegram_id,
        trigger: Trigger::Start,
        source: "1",
        at,
        correlation_id: "bench",
        meta: None,
        keep_days: 90,
    };
    let plan = plan(&asked, std::slice::from_ref(downsell), &Contact::default(), world.now());
    let Some(PlanStep::Schedule { offer, .. }) = plan.steps.into_iter().next() else { panic!("an offer") };
    let key = keys::offer(&ContactId::of("default", telegram_id), &offer.id);
    let mut row = row_of(&offer).expect("a row");
    for (name, value) in [("pk", key.pk), ("sk", key.sk)] {
        row.insert(name.to_owned(), aws_sdk_dynamodb::types::AttributeValue::S(value));
    }
    row
}

/// Prints requests and write units, and checks them against the limits.
fn check_budget(name: &str, calls: &[Call], most: Option<(usize, f64)>) {
    let calls: Vec<_> = calls.iter().filter(|call| call.service == "dynamodb").cloned().collect();
    let (requests, write) = (calls.len(), prices::write_units(&calls));
    let read: f64 = calls.iter().map(|call| call.read_units).sum();
    let (most_requests, most_units) = most.unwrap_or((usize::MAX, f64::MAX));
    let shown = |most: bool, text: String| if most { text } else { String::new() };
    let requests_shown = shown(most_requests < usize::MAX, most_requests.to_string());
    let units_shown = shown(most_units < f64::MAX, most_units.to_string());
    let before = before::column(name, Took::of(&calls));
    println!("{name:<44} {requests:>8} {requests_shown:>6} {write:>8} {units_shown:>6} {read:>8}{before}");
    assert!(requests <= most_requests && write <= most_units, "{name}: {requests} requests, {write} write units");
}
