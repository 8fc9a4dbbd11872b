//! Passes the stream of the table to the outbox relay.

use aws_lambda_events::dynamodb::Event;
use aws_lambda_events::streams::DynamoDbEventResponse;
use lambda_runtime::Error;
use umavez_platform::invocation::Invocation;

use crate::Deps;

pub async fn run(deps: &Deps, invocation: &Invocation, event: Event) -> Result<DynamoDbEventResponse, Error> {
    Ok(deps.relay.relay(invocation, &event).await)
}
