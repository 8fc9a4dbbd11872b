//! What things cost at the list prices of us-east-1.

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
/// A million bytes of logs, taken in.
pub const LOG_MEGABYTE: f64 = 0.50 / 1e3;
/// A month of an alarm, a dashboard, a metric of our own and a secret.
pub const ALARM: f64 = 0.10;
pub const DASHBOARD: f64 = 3.0;
pub const METRIC: f64 = 0.30;
pub const SECRET: f64 = 0.40;
/// Of the functions that have no size of their own.
pub const GIGABYTES: f64 = 0.25;
/// What an invocation for one message is billed for.
pub const BILLED_SECONDS: f64 = 0.03;

/// A million messages, of one that took these calls and invocations.
pub fn of_messages(calls: &[Call], invocations: u64) {
    let (write, read) = (write_units(calls), read_units(calls));
    let lambda = invocations as f64 * of_invocation();
    println!(
        "\na million messages with intents, at list prices (us-east-1, arm64, 256 MB, 30 ms an invocation, one at a time)"
    );
    let whole = print(&[
        ("DynamoDB", of_units(calls)),
        // Received and deleted by the mapping, a message at a time at worst.
        ("SQS", (queue_requests(calls) + 2.0) * QUEUE_REQUEST),
        ("Lambda", lambda),
        ("HTTP API", API_REQUEST),
    ]);
    println!(
        "{:<44} {whole:>8.2} $   ({write} write units, {read} read units, {invocations} invocations each)",
        "together"
    );
}

/// A million recipients, of a mailing that took these calls up to SENT for some, and these for what
/// SES told afterwards. `senders` work at a time, and wait for slots most of it: beside that time,
/// what Lambda takes per request is nothing.
pub fn of_recipients(sent: &[Call], told: &[Call], recipients: usize, senders: u32, mails_per_second: f64) {
    let gigabyte_seconds = f64::from(senders) * GIGABYTES / mails_per_second;
    println!("\na million recipients, at list prices ({senders} senders at {mails_per_second} mails a second)");
    let whole = print(&[
        ("DynamoDB, import to SENT", of_units(sent) / recipients as f64),
        ("DynamoDB, what SES tells", of_units(told) / recipients as f64),
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

/// A million times these calls, of DynamoDB.
pub fn of_units(calls: &[Call]) -> f64 {
    write_units(calls) * WRITE_UNIT + read_units(calls) * READ_UNIT
}

/// A million invocations for one message each.
pub fn of_invocation() -> f64 {
    LAMBDA_REQUEST + GIGABYTE_SECOND * GIGABYTES * BILLED_SECONDS
}

/// Requests of the functions to queues.
pub fn queue_requests(calls: &[Call]) -> f64 {
    calls.iter().filter(|call| call.service == "sqs").count() as f64
}

/// Prints the parts, and returns what they are together.
fn print(parts: &[(&str, f64)]) -> f64 {
    for (name, dollars) in parts {
        println!("{name:<44} {dollars:>8.2} $");
    }
    parts.iter().map(|(_, dollars)| dollars).sum()
}
