//! The control of the import: the same rows, each put by a separate request, in a separate process.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue::{M, N, S};
use tokio::process::Command;
use umavez_domain::keys;
use umavez_domain::mailings::{EntryState, MailingEntryId, MailingId};
use umavez_platform::aws::Aws;
use umavez_tests::{World, processes};

use crate::mailings::{address, name};

/// The argument that makes this program the control. It is followed by the URL, the table and the
/// number of rows.
pub const ARGUMENT: &str = "single-puts";
const SHARDS: u32 = 10;

/// Returns the seconds of processor time from the start of the process to its last row.
pub async fn measure(world: &World, rows: usize) -> f64 {
    let table = world.stack.output("MailingsTable").expect("a table of mailings");
    let program = std::env::current_exe().expect("this program");
    let mut control = Command::new(program);
    control.args([ARGUMENT, world.stack.front_url(), table, &rows.to_string()]);
    let output = control.output().await.expect("the control runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "the control failed: {}", String::from_utf8_lossy(&output.stderr));
    printed.trim().parse().expect("the control prints its time")
}

/// Runs the control. Like a function, it has a runtime with one thread.
pub fn run(mut arguments: impl Iterator<Item = String>) {
    let mut next = || arguments.next().expect("an address, a table and a number");
    let (url, table, rows) = (next(), next(), next().parse().expect("a number of rows"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(put(&url, &table, rows));
    println!("{}", processes::seconds(std::process::id()));
}

async fn put(url: &str, table: &str, rows: usize) {
    let client = Aws::at_endpoint(url, "bench").dynamodb();
    let mailing = MailingId::of("single-puts.csv", 0);
    for n in 0..rows {
        let key = keys::mailing_entry(&MailingEntryId::of(&mailing, &address(n), SHARDS));
        let variables = HashMap::from([("nome".to_owned(), S(name(n)))]);
        let put = client
            .put_item()
            .table_name(table)
            .item("pk", S(key.pk))
            .item("sk", S(key.sk))
            .item("email", S(address(n)))
            .item("line", N((n + 2).to_string()))
            .item("state", S(EntryState::Pending.as_str().to_owned()))
            .item("variables", M(variables))
            .condition_expression("attribute_not_exists(pk)");
        put.send().await.expect("a row that was not there");
    }
}
