//! The table's stream, lifted to the relay of the outbox.

use std::sync::Arc;

use aws_lambda_events::dynamodb::Event;
use aws_lambda_events::streams::DynamoDbEventResponse;
use lambda_runtime::Error;
use umavez_platform::invocation::Invocation;

use crate::Deps;

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, event: Event) -> Result<DynamoDbEventResponse, Error> {
    Ok(deps.relay.relay(&invocation, &event).await)
}
