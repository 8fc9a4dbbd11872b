//! Imports files of several sizes, and measures processor time, memory and the distribution over
//! partitions.

use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::AttributeValue::S;
use aws_sdk_dynamodb::types::Select;
use serde_json::{Value, json};
use umavez_domain::keys;
use umavez_domain::mailings::{MailingId, shards_of};
use umavez_local::functions::PROCESS_DIED;
use umavez_platform::aws::Aws;
use umavez_tests::{World, processes};

use super::{file, upload};

/// The measurements of an import in a separate process.
pub struct Imported {
    pub micros_per_row: f64,
    pub peak_megabytes: f64,
    /// The number of invocations.
    pub turns: usize,
    /// Rows of each partition.
    shards: Vec<usize>,
}

impl Imported {
    /// Returns the ratio of the fullest shard to the mean.
    pub fn spread(&self) -> f64 {
        let (rows, most) = (self.shards.iter().sum::<usize>(), self.shards.iter().max().copied().unwrap_or(0));
        most as f64 * self.shards.len() as f64 / rows as f64
    }
}

pub fn header() {
    println!(
        "\n{:<44} {:>12} {:>9} {:>8} {:>8} {:>6} {:>7} {:>7} {:>7} {:>9}",
        "import", "rows", "cpu µs/r.", "peak MB", "rows/s", "turns", "shards", "least", "most", "most/mean"
    );
}

/// Imports a file with `rows` rows, and checks that each is in the table.
pub async fn import(world: &World, name: &str, rows: usize) -> Imported {
    let function = world.stack.function_name("mailing-importer").expect("an importer").to_owned();
    // Starts a new process, so that its time and its peak memory are those of this import.
    world.stack.functions().kill(&function).await.expect("an importer");
    let logged = world.stack.logs().position();
    let file = file(rows, "");
    let begun = Instant::now();
    let id = upload(world, &format!("{name}.csv"), &file, json!({})).await;
    let shown = until_imported(world, &id).await;
    let seconds = begun.elapsed().as_secs_f64();
    // Waits until it has logged its end, too.
    world.stack.functions().quiet().await;
    let processes = world.stack.functions().processes();
    let pids: Vec<_> = processes.into_iter().filter(|(of, _)| *of == function).map(|(_, pid)| pid).collect();
    let lines = world.stack.logs().since(logged);
    assert!(
        pids.len() == 1 && !lines.iter().any(|line| line.line.contains(PROCESS_DIED)),
        "more than one process imported the file"
    );
    let import = &shown["import"];
    assert_eq!((&import["rows"], &import["recipients"]), (&json!(rows), &json!(rows)), "{shown}");
    assert_eq!(shown["counts"]["pending"], json!(rows), "{shown}");
    let shards = entries_of_shards(world, &id, shards_of(file.len() as u64)).await;
    assert_eq!(shards.iter().sum::<usize>(), rows, "the number of rows differs");
    let turns = lines.iter().filter(|line| is_turn(&line.line)).count();
    let imported = Imported {
        micros_per_row: processes::seconds(pids[0]) * 1e6 / rows as f64,
        peak_megabytes: processes::peak_megabytes(pids[0]),
        turns,
        shards,
    };
    let Imported { micros_per_row, peak_megabytes, turns, shards } = &imported;
    println!(
        "{name:<44} {rows:>12} {micros_per_row:>9.1} {peak_megabytes:>8.1} {:>8.0} {turns:>6} {:>7} {:>7} {:>7} {:>9.3}",
        rows as f64 / seconds,
        shards.len(),
        shards.iter().min().copied().unwrap_or(0),
        shards.iter().max().copied().unwrap_or(0),
        imported.spread(),
    );
    imported
}

/// Returns whether the line logs the end of an importer's turn.
fn is_turn(line: &str) -> bool {
    let event: Value = serde_json::from_str(line).unwrap_or_default();
    event["event"] == "RECORD_HANDLED" && (event["outcome"] == "imported" || event["outcome"] == "handed_over")
}

async fn until_imported(world: &World, id: &str) -> Value {
    loop {
        let shown = world.get(&format!("/mailings/{id}")).await.body;
        match shown["import"]["state"].as_str() {
            Some("DONE") => return shown,
            Some("AWAITING_UPLOAD" | "QUEUED" | "RUNNING") => tokio::time::sleep(Duration::from_millis(250)).await,
            _ => panic!("not imported: {shown}"),
        }
    }
}

/// Returns the number of rows in each partition of the table.
async fn entries_of_shards(world: &World, id: &str, shards: u32) -> Vec<usize> {
    let client = Aws::at_endpoint(world.stack.front_url(), "test").dynamodb();
    let table = world.stack.output("MailingsTable").expect("a table of mailings");
    let id = MailingId::parse(id).expect("a mailing's id");
    let mut rows = Vec::new();
    for shard in 0..shards {
        let query = client
            .query()
            .table_name(table)
            .select(Select::Count)
            .key_condition_expression("pk = :pk")
            .expression_attribute_values(":pk", S(keys::mailing_entries(&id, shard)));
        let pages: Vec<_> = query.into_paginator().send().try_collect().await.expect("a count");
        rows.push(pages.iter().map(|page| usize::try_from(page.count()).unwrap_or(0)).sum());
    }
    rows
}
