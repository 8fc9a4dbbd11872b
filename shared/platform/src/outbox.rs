//! The relay of the outbox: publishes what rows emit, in order, and decides nothing.
//!
//! It is lifted over a table's stream. A record whose publication failed fails the batch from there on, so the stream
//! delivers it again; what was published twice by that is known to its consumers by its id.

use std::collections::BTreeMap;

use aws_lambda_events::dynamodb::EventRecord;
use aws_sdk_sqs::types::MessageAttributeValue;
use umavez_domain::outbox::{ATTRIBUTE, Emit, delay_seconds, to_publish};

use crate::batch::{Outcome, RecordError};
use crate::invocation::Invocation;

/// The message attribute that carries [`Emit::id`].
pub const ID_ATTRIBUTE: &str = "emit_id";

/// Queue names, as rows say them, and the URLs of this deployment.
#[derive(Debug, Clone)]
pub struct Relay {
    pub sqs: aws_sdk_sqs::Client,
    pub queues: BTreeMap<String, String>,
}

impl Relay {
    /// Publishes what one change of a row emits, if anything.
    pub async fn relay(&self, invocation: &Invocation, record: &EventRecord) -> Result<Outcome, RecordError> {
        let old = emit_of(&record.change.old_image)?;
        let new = emit_of(&record.change.new_image)?;
        let Some(emit) = to_publish(old.as_ref(), new.as_ref()) else { return Ok(Outcome("nothing_to_publish")) };
        let url = self.queues.get(&emit.queue).ok_or(RecordError::Poison("unknown_queue"))?;
        let id = MessageAttributeValue::builder().data_type("String").string_value(&emit.id).build();
        let id = id.map_err(|_| RecordError::Poison("unreadable_emit"))?;
        let delay = i32::try_from(delay_seconds(emit.not_before, invocation.now)).unwrap_or(0);
        let call = self.sqs.send_message().queue_url(url).message_body(&emit.body).delay_seconds(delay);
        let sent = invocation.within(call.message_attributes(ID_ATTRIBUTE, id).send()).await;
        match sent {
            Ok(Ok(_)) => Ok(Outcome("published")),
            Ok(Err(_)) | Err(_) => Err(RecordError::Retry("publish_failed")),
        }
    }
}

fn emit_of(image: &serde_dynamo::Item) -> Result<Option<Emit>, RecordError> {
    let Some(emit) = image.get(ATTRIBUTE) else { return Ok(None) };
    serde_dynamo::from_attribute_value(emit.clone()).map(Some).map_err(|_| RecordError::Poison("unreadable_emit"))
}
