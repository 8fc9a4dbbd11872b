//! Costs at the list prices of us-east-1.

use umavez_local::calls::Call;

/// Per million, in dollars: on-demand write and read units, queue requests, HTTP API requests,
/// Lambda requests on arm64 and its gigabyte-seconds, and mails.
const WRITE_UNIT: f64 = 0.625;
const READ_UNIT: f64 = 0.125;
pub const QUEUE_REQUEST: f64 = 0.40;
pub const API_REQUEST: f64 = 1.00;
const LAMBDA_REQUEST: f64 = 0.20;
pub const GIGABYTE_SECOND: f64 = 13.3334;
pub const MAIL: f64 = 100.0;
/// A million bytes of ingested logs.
pub const LOG_MEGABYTE: f64 = 0.50 / 1e3;
/// A month of an alarm, a dashboard, a custom metric and a secret.
pub const ALARM: f64 = 0.10;
pub const DASHBOARD: f64 = 3.0;
pub const METRIC: f64 = 0.30;
pub const SECRET: f64 = 0.40;
/// The memory of functions without a memory size of their own.
pub const GIGABYTES: f64 = 0.25;
/// The billed time of an invocation for one message.
pub const BILLED_SECONDS: f64 = 0.03;

/// Prints the cost of a million messages, if one takes these calls and invocations.
pub fn of_messages(calls: &[Call], invocations: u64) {
    let (write, read) = (write_units(calls), read_units(calls));
    let lambda = invocations as f64 * of_invocation();
    println!(
        "\na million messages with intents, at list prices (us-east-1, arm64, 256 MB, 30 ms an invocation, one at a time)"
    );
    let whole = print(&[
        ("DynamoDB", of_units(calls)),
        // The event source mapping receives and deletes each message, in the worst case one at a
        // time.
        ("SQS", (queue_requests(calls) + 2.0) * QUEUE_REQUEST),
        ("Lambda", lambda),
        ("HTTP API", API_REQUEST),
    ]);
    println!(
        "{:<44} {whole:>8.2} $   ({write} write units, {read} read units, {invocations} invocations each)",
        "together"
    );
}

/// Prints the cost of a million recipients of a mailing that took these calls up to SENT, and these
/// calls for the events of SES. `senders` run concurrently and mostly wait for slots; compared with
/// that time, Lambda's price per request is negligible.
pub fn of_recipients(sent: &[Call], ses_events: &[Call], recipients: usize, senders: u32, mails_per_second: f64) {
    let gigabyte_seconds = f64::from(senders) * GIGABYTES / mails_per_second;
    println!("\na million recipients, at list prices ({senders} senders at {mails_per_second} mails a second)");
    let whole = print(&[
        ("DynamoDB, import to SENT", of_units(sent) / recipients as f64),
        ("DynamoDB, events of SES", of_units(ses_events) / recipients as f64),
        ("SQS, import to SENT", 3.0 * queue_requests(sent) * QUEUE_REQUEST / recipients as f64),
        ("Lambda, senders", gigabyte_seconds * GIGABYTE_SECOND),
        ("SES", MAIL),
    ]);
    println!("{:<44} {whole:>8.2} $   ({:.4} $ per 1,000 recipients)", "together", whole / 1_000.0);
}

pub fn write_units(calls: &[Call]) -> f64 {
    calls.iter().map(|call| call.write_units).sum()
}

pub fn read_units(calls: &[Call]) -> f64 {
    calls.iter().map(|call| call.read_units).sum()
}

/// Returns the DynamoDB cost of a million times these calls.
pub fn of_units(calls: &[Call]) -> f64 {
    write_units(calls) * WRITE_UNIT + read_units(calls) * READ_UNIT
}

/// Returns the cost of a million invocations for one message each.
pub fn of_invocation() -> f64 {
    LAMBDA_REQUEST + GIGABYTE_SECOND * GIGABYTES * BILLED_SECONDS
}

/// Returns the number of requests to queues.
pub fn queue_requests(calls: &[Call]) -> f64 {
    calls.iter().filter(|call| call.service == "sqs").count() as f64
}

/// Prints the parts, and returns their sum.
fn print(parts: &[(&str, f64)]) -> f64 {
    for (name, dollars) in parts {
        println!("{name:<44} {dollars:>8.2} $");
    }
    parts.iter().map(|(_, dollars)| dollars).sum()
}
