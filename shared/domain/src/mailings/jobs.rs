//! What the two queues of mailings carry: tagged and versioned, because a message may be in a queue over a deployment.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::identity::MailingId;
use crate::keys;
use crate::outbox::Emit;
use crate::queue::Unreadable;
use crate::time::Timestamp;
use crate::uploaded::{self, Object};

/// The queues' names, as rows say them.
pub const IMPORT_QUEUE: &str = "mailing-import";
pub const SEND_QUEUE: &str = "mailing-send";

/// Objects that callers upload by a form, and those that came with their request. Only the first tell of themselves.
const UPLOADED: &str = "mailings/uploads/";
const INLINE: &str = "mailings/inline/";

/// Where the file of a mailing is that is uploaded by a form.
pub fn uploaded_object(id: &MailingId) -> String {
    format!("{UPLOADED}{id}.csv")
}

/// Where a file is put that came with its request. Each request has its own: one that loses its name takes nothing away.
pub fn inline_object(id: &MailingId, request_id: &str) -> String {
    let request: String = request_id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    format!("{INLINE}{id}/{request}.csv")
}

/// What an importer is handed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportWork {
    /// Read the file, from its last checkpoint on.
    Import(MailingId),
    /// Hand its shards to the senders.
    HandOut(MailingId),
    /// Files have arrived.
    Uploaded(Vec<Arrived>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    pub mailing: MailingId,
    pub etag: String,
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Body {
    Import {
        v: u32,
        mailing_id: String,
    },
    HandOut {
        v: u32,
        mailing_id: String,
    },
    Shard {
        v: u32,
        mailing_id: String,
        shard: u32,
        #[serde(default)]
        seq: u64,
    },
}

const UNREADABLE_IMPORT: Unreadable = Unreadable("an import job or an upload");
const UNREADABLE_SHARD: Unreadable = Unreadable("a shard job");

impl ImportWork {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        // The error's own text may repeat the body.
        let value: Value = serde_json::from_str(body).map_err(|_| UNREADABLE_IMPORT)?;
        if let Some(objects) = uploaded::objects(&value) {
            return Ok(Self::Uploaded(objects.into_iter().filter_map(arrived).collect()));
        }
        let id = |text: &str| MailingId::parse(text).ok_or(UNREADABLE_IMPORT);
        match serde_json::from_value(value) {
            Ok(Body::Import { v: 1, mailing_id }) => Ok(Self::Import(id(&mailing_id)?)),
            Ok(Body::HandOut { v: 1, mailing_id }) => Ok(Self::HandOut(id(&mailing_id)?)),
            _ => Err(UNREADABLE_IMPORT),
        }
    }
}

fn arrived(object: Object) -> Option<Arrived> {
    let mailing = MailingId::parse(object.key.strip_prefix(UPLOADED)?.strip_suffix(".csv")?)?;
    Some(Arrived { mailing, etag: object.etag, size: object.size })
}

/// One shard of one mailing, for a sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardWork {
    pub mailing: MailingId,
    pub shard: u32,
    /// Of the emission: once there is a later one, this has nothing to say.
    pub seq: u64,
}

impl ShardWork {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        match serde_json::from_str(body) {
            Ok(Body::Shard { v: 1, mailing_id, shard, seq }) => {
                Ok(Self { mailing: MailingId::parse(&mailing_id).ok_or(UNREADABLE_SHARD)?, shard, seq })
            }
            _ => Err(UNREADABLE_SHARD),
        }
    }
}

/// `seq` is greater than that of any emission of the mailing's row before.
pub fn emit_import(id: &MailingId, seq: u64) -> Emit {
    of_mailing(id, seq, &Body::Import { v: 1, mailing_id: id.as_str().to_owned() })
}

/// As [`emit_import`], of the same row.
pub fn emit_hand_out(id: &MailingId, seq: u64) -> Emit {
    of_mailing(id, seq, &Body::HandOut { v: 1, mailing_id: id.as_str().to_owned() })
}

fn of_mailing(id: &MailingId, seq: u64, body: &Body) -> Emit {
    Emit { seq, queue: IMPORT_QUEUE.to_owned(), not_before: None, id: format!("{id}/{seq}"), body: text(body) }
}

/// `id` names the work to whoever looks at the queue; recovery gives its own.
pub fn emit_shard(
    mailing: &MailingId,
    shard: u32,
    seq: u64,
    not_before: Option<Timestamp>,
    id: Option<String>,
) -> Emit {
    let body = text(&Body::Shard { v: 1, mailing_id: mailing.as_str().to_owned(), shard, seq });
    let id = id.unwrap_or_else(|| format!("{}/{seq}", keys::mailing_shard_id(mailing, shard)));
    Emit { seq, queue: SEND_QUEUE.to_owned(), not_before: not_before.map(Timestamp::millis), id, body }
}

fn text(body: &Body) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> MailingId {
        MailingId::of("monthly.csv", 0)
    }

    #[test]
    fn every_released_form_is_read() {
        let v1 = |kind: &str| format!(r#"{{"kind":"{kind}","v":1,"mailing_id":"{}"}}"#, id());
        assert_eq!(ImportWork::read(&v1("import")), Ok(ImportWork::Import(id())));
        assert_eq!(ImportWork::read(&v1("hand_out")), Ok(ImportWork::HandOut(id())));
        assert_eq!(emit_import(&id(), 2).body, v1("import"));
        assert_eq!(emit_hand_out(&id(), 2).body, v1("hand_out"));
        let shard = format!(r#"{{"kind":"shard","v":1,"mailing_id":"{}","shard":7,"seq":3}}"#, id());
        assert_eq!(ShardWork::read(&shard), Ok(ShardWork { mailing: id(), shard: 7, seq: 3 }));
        let emitted = emit_shard(&id(), 7, 3, None, None);
        assert_eq!((emitted.body, emitted.id), (shard, format!("{}-07/3", id())));
    }

    #[test]
    fn a_form_of_the_future_is_not_guessed_at() {
        for body in ["", "{}", "[]", r#"{"kind":"import","v":1,"mailing_id":"x"}"#] {
            assert_eq!(ImportWork::read(body), Err(UNREADABLE_IMPORT), "{body}");
            assert_eq!(ShardWork::read(body), Err(UNREADABLE_SHARD), "{body}");
        }
        let v2 = format!(r#"{{"kind":"import","v":2,"mailing_id":"{}"}}"#, id());
        assert_eq!(ImportWork::read(&v2), Err(UNREADABLE_IMPORT));
    }

    #[test]
    fn s3_tells_of_files_and_of_itself() {
        let of = |key: &str| {
            let record = serde_json::json!({"s3": {"object": {"key": key, "eTag": "\"e1\"", "size": 7}}});
            ImportWork::read(&serde_json::json!({"Records": [record]}).to_string())
        };
        let arrived = Arrived { mailing: id(), etag: "e1".to_owned(), size: 7 };
        assert_eq!(of(&uploaded_object(&id())), Ok(ImportWork::Uploaded(vec![arrived])));
        assert_eq!(of(&inline_object(&id(), "r/1")), Ok(ImportWork::Uploaded(Vec::new())));
        assert_eq!(of("other/x.csv"), Ok(ImportWork::Uploaded(Vec::new())));
        assert_eq!(ImportWork::read(r#"{"Event":"s3:TestEvent"}"#), Ok(ImportWork::Uploaded(Vec::new())));
    }

    #[test]
    fn an_object_has_no_key_that_a_request_could_choose() {
        assert_eq!(inline_object(&id(), "../a b?"), format!("mailings/inline/{}/ab.csv", id()));
    }
}
