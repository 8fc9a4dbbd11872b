//! Mailings: the cost of a recipient from the file to SENT, the cost of importing a row, and the
//! effect of the number of rows on memory and partitions. The limits apply to counts, and to ratios
//! within this run.

mod imports;
mod sending;

use serde_json::{Value, json};
use umavez_domain::mailings::SHARD_GROUPS;
use umavez_tests::World;

use self::imports::{header, import};
use self::sending::send;
use crate::{prices, single_puts, start};

/// The numbers of recipients of the mailings that are sent, at full speed and at the rate of a new
/// SES account.
const RECIPIENTS: usize = 2_000;
const SLOW_RECIPIENTS: usize = 600;
const MAILS_PER_SECOND: f64 = 14.0;
/// The rows of the imports: few, enough to time, and many, unless the variable sets another number.
const FEW: usize = 10_000;
const TIMED: usize = 50_000;
const MANY: usize = 1_000_000;
const MANY_VARIABLE: &str = "UMAVEZ_BENCH_ROWS";
/// The rows of the control.
const SINGLE_PUTS: usize = 5_000;

/// A measured value, and its limit.
struct Limit(&'static str, f64, f64);

pub async fn budgets() {
    at_the_rate_of_a_new_account().await;
    // One process per function, so that its measurements cover all of the work.
    let world = &start(1, "SendRates", &json!({"email": {"sender": "2000/1s"}})).await;
    let sent = send(world, RECIPIENTS, "").await;
    sent.print("as fast as it goes");
    prices::of_recipients(&sent.calls(), &sent.after, RECIPIENTS, SHARD_GROUPS, MAILS_PER_SECOND);
    header();
    let few = import(world, "few", FEW).await;
    world.drain().await;
    let timed = import(world, "timed", TIMED).await;
    world.drain().await;
    let single = single_puts::measure(world, SINGLE_PUTS).await * 1e6 / SINGLE_PUTS as f64;
    println!("{:<44} {:>12} {single:>9.1}", "the control: single puts", SINGLE_PUTS);
    world.drain().await;
    let many = import(world, "many", many()).await;
    world.stack.stop().await.expect("stops");
    println!("\n{:<44} {:>12} {:>9}", "limits of mailings", "measured", "at most");
    hold(&[
        Limit("write units of an entry, import to SENT", sent.entry_units_of_one(), 3.0),
        Limit("write units beside it, of one of many", sent.other_units_of_one(), 0.2),
        Limit("processor time of a row, × a single put", timed.micros_per_row / single, 0.2),
        Limit("peak memory, × that of few rows", many.peak_megabytes / few.peak_megabytes, 1.2),
        Limit("rows of the fullest shard, × mean", timed.spread(), 1.2),
        Limit("turns that many rows took", many.turns as f64, 1.0),
    ]);
}

/// Sends a mailing without measuring it.
pub async fn mail(world: &World, recipients: usize) {
    send(world, recipients, "").await;
}

/// Sends a mailing that waits for its slots: its groups request them concurrently, and some
/// requests are refused.
async fn at_the_rate_of_a_new_account() {
    let world = &start(SHARD_GROUPS as usize, "SendRates", &json!({})).await;
    // Long names make more shards than there are groups, in spite of the few recipients.
    let sent = send(world, SLOW_RECIPIENTS, &"x".repeat(300)).await;
    sent.print(&format!("at {MAILS_PER_SECOND} a second in {SHARD_GROUPS} groups"));
    world.stack.stop().await.expect("stops");
}

/// Prints all limits before one of them fails the run.
fn hold(limits: &[Limit]) {
    for Limit(name, measured, most) in limits {
        println!("{name:<44} {measured:>12.3} {most:>9.1}");
    }
    for Limit(name, measured, most) in limits {
        assert!(measured <= most, "{name}: {measured:.3} is more than {most}");
    }
}

fn many() -> usize {
    std::env::var(MANY_VARIABLE).map_or(MANY, |rows| rows.parse().expect("a number of rows"))
}

/// Uploads a file with a separate upload form, as large files are.
async fn upload(world: &World, file_name: &str, file: &str, content: Value) -> String {
    let mut body = content;
    (body["filename"], body["size"]) = (json!(file_name), json!(file.len()));
    let asked = world.post("/mailings/uploads", &body).await;
    assert_eq!(asked.status, 202, "{}", asked.body);
    assert_eq!(world.post_form(&asked.body["upload"], file.as_bytes()).await, 204);
    asked.text("/mailingId")
}

/// Returns a CSV file; `more` makes every name longer.
fn file(rows: usize, more: &str) -> String {
    let mut file = String::from("email,nome\n");
    (0..rows).for_each(|n| file.extend([address(n), ",".to_owned(), name(n), more.to_owned(), "\n".to_owned()]));
    file
}

pub fn address(n: usize) -> String {
    format!("ana.silva.{n:07}@example.com")
}

pub fn name(n: usize) -> String {
    format!("Ana Silva {n}")
}
