//! What the three send queues carry: tagged and versioned, because a message may be in a queue over a deployment.

use serde::{Deserialize, Serialize};

use crate::downsells::{ContactId, OfferId};
use crate::outbox::Emit;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    Start,
    Shot,
    Downsell,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SendJob {
    /// Send the message with this id, if it is still to be sent.
    Message { v: u32, id: String },
    /// Send the offer of a downsell with this id, if it may still leave.
    Offer { v: u32, contact: ContactId, id: OfferId },
}

/// A record of a queue or a stream is of no kind or version that its reader knows. Says what was
/// expected and never repeats the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record cannot be read as {0}")]
pub struct Unreadable(pub &'static str);

const UNREADABLE: Unreadable = Unreadable("a send job");

impl SendJob {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        match serde_json::from_str(body) {
            Ok(job @ (Self::Message { v: 1, .. } | Self::Offer { v: 1, .. })) => Ok(job),
            _ => Err(UNREADABLE),
        }
    }
}

/// The name of a class's queue, as rows say it.
pub const fn queue(priority: Priority) -> &'static str {
    match priority {
        Priority::Start => "outbound-start",
        Priority::Shot => "outbound-shot",
        Priority::Downsell => "outbound-downsell",
    }
}

/// Hands a message to its queue. `seq` is greater than that of any emission of the row before.
pub fn emit(id: &str, priority: Priority, seq: u64, not_before: Option<i64>) -> Emit {
    let body = serde_json::json!({"kind": "message", "v": 1, "id": id}).to_string();
    Emit { seq, queue: queue(priority).to_owned(), not_before, id: format!("{id}/{seq}"), body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_released_form_is_read() {
        let v1 = r#"{"kind":"message","v":1,"id":"msg_0123456789abcdef0123456789abcdef"}"#;
        let job = SendJob::Message { v: 1, id: "msg_0123456789abcdef0123456789abcdef".to_owned() };
        assert_eq!(SendJob::read(v1), Ok(job.clone()));
        let emitted = emit("msg_0123456789abcdef0123456789abcdef", Priority::Start, 3, None);
        assert_eq!(SendJob::read(&emitted.body), Ok(job));
        assert_eq!(emitted.queue, "outbound-start");
        assert_eq!(emitted.id, "msg_0123456789abcdef0123456789abcdef/3");
    }

    #[test]
    fn an_offer_is_named_by_its_row() {
        let v1 = r#"{"kind":"offer","v":1,"contact":"loja#7902699be42c8a8e46fbbb4501726517","id":"off_0123456789abcdef0123456789abcdef"}"#;
        let (contact, id) =
            (ContactId::of("loja", 7), OfferId::parse("off_0123456789abcdef0123456789abcdef").expect("an id"));
        let job = SendJob::Offer { v: 1, contact: contact.clone(), id: id.clone() };
        assert_eq!(SendJob::read(v1), Ok(job.clone()));
        let emitted = crate::downsells::job(&contact, &id, None, crate::time::Timestamp::from_millis(5));
        assert_eq!(SendJob::read(&emitted.body), Ok(job));
        assert_eq!((emitted.queue.as_str(), emitted.seq), ("outbound-downsell", 5));
    }

    #[test]
    fn a_form_of_the_future_is_not_guessed_at() {
        for body in ["", "{}", r#"{"kind":"message","v":2,"id":"a"}"#, r#"{"kind":"other","v":1,"id":"a"}"#] {
            assert_eq!(SendJob::read(body), Err(UNREADABLE), "{body}");
        }
    }
}
