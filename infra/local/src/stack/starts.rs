//! Checks that every function starts with the parameters of this stack. The functions decide, by
//! the same code as on AWS: each reads its whole configuration before it asks for work.

use serde_json::Value;
use umavez_domain::telemetry::Event;

use crate::StackError;
use crate::functions::{Functions, InvokeError, Logs};
use crate::model::{Function, Model};

/// Starts a process of every function. If a function rejects an environment variable, the error
/// names the parameter behind it.
pub(super) async fn check(model: &Model, functions: &Functions, logs: &Logs) -> Result<(), StackError> {
    let Err((name, error)) = functions.start_one_of_each().await else { return Ok(()) };
    let Some(function) = model.functions.iter().find(|function| function.name == name) else {
        return Err(StackError::Start(format!("{name} does not start: {error}")));
    };
    let lines = logs.since(0).into_iter().filter(|line| line.function == name);
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(&line.line).ok());
    let logged = lines.rev().find(|line| line["event"] == Event::FunctionNotStarted.as_str()).unwrap_or_default();
    Err(StackError::Start(refusal(function, &logged, &error)))
}

fn refusal(function: &Function, logged: &Value, error: &InvokeError) -> String {
    let cause = logged["cause"].as_str().map_or_else(|| error.to_string(), str::to_owned);
    let parameters = logged["variable"].as_str().and_then(|variable| function.parameters.get(variable));
    let named = parameters.map(|names| names.iter().map(|name| format!("parameter {name}: ")).collect::<String>());
    format!("{}{} does not start: {cause}", named.unwrap_or_default(), function.binary)
}
