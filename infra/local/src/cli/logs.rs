//! `logs`: the log lines of the functions.

use clap::Args;
use serde_json::{Value, json};

use super::CliError;
use super::remote::Remote;

/// How long one request waits for a new line.
const WAIT_SECONDS: u64 = 20;

#[derive(Args)]
pub struct LogsArguments {
    /// Go on with new lines as they come
    #[arg(long, short)]
    follow: bool,
    /// Only of this function, for example outbound-sender
    #[arg(long)]
    function: Option<String>,
    /// Begin with so many of the latest lines
    #[arg(long, short = 'n', default_value_t = 200)]
    limit: usize,
}

pub async fn run(remote: &Remote, arguments: LogsArguments) -> Result<(), CliError> {
    let mut query = vec![("format", "json".to_owned())];
    if let Some(function) = &arguments.function {
        let about = remote.about().await?;
        let known: Vec<_> = about["functions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !known.contains(&function.as_str()) {
            let known = known.join(", ");
            return Err(CliError::Usage(format!("there is no function {function:?}; there are {known}")));
        }
        query.push(("function", function.clone()));
    }
    let with = |more: [(&'static str, String); 2]| query.iter().cloned().chain(more).collect::<Vec<_>>();
    let first = with([("limit", arguments.limit.to_string()), ("after", 0.to_string())]);
    let mut page = remote.get("/_local/logs", &first).await?;
    loop {
        for line in page["lines"].as_array().into_iter().flatten() {
            let (function, text) = (&line["function"], &line["line"]);
            let plain = || format!("[{}] {}", function.as_str().unwrap_or_default(), text.as_str().unwrap_or_default());
            // A function's line is JSON already, unless the process itself printed something else.
            let as_json = || {
                let parsed = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
                json!({"function": function, "line": parsed.as_ref().unwrap_or(text)}).to_string()
            };
            println!("{}", if remote.json { as_json() } else { plain() });
        }
        if !arguments.follow {
            return Ok(());
        }
        let next = with([("after", page["next"].to_string()), ("wait_seconds", WAIT_SECONDS.to_string())]);
        page = remote.get("/_local/logs", &next).await?;
    }
}
