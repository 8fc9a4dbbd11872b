//! What the queue of backfills carries: a job to work on, or S3's word that its lines have arrived.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::identity::BackfillId;
use crate::outbox::Emit;
use crate::queue::Unreadable;
use crate::uploaded::{self, Object};

/// The queue's name, as rows say it.
pub const BACKFILL_QUEUE: &str = "backfill";

/// What the keys of uploaded lines begin with.
pub const UPLOAD_PREFIX: &str = "backfills/";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    Job(BackfillId),
    /// Each with the version that it was: an object can be replaced.
    Uploaded(Vec<Upload>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub id: BackfillId,
    pub etag: String,
    pub size: u64,
}

const UNREADABLE: Unreadable = Unreadable("a backfill job or an upload");

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Body {
    Backfill { v: u32, id: String },
}

impl Work {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        // The error's own text may repeat the body.
        let value: Value = serde_json::from_str(body).map_err(|_| UNREADABLE)?;
        if let Some(objects) = uploaded::objects(&value) {
            return Ok(Self::Uploaded(objects.into_iter().filter_map(upload).collect()));
        }
        match serde_json::from_value(value) {
            Ok(Body::Backfill { v: 1, id }) => BackfillId::parse(&id).map(Self::Job).ok_or(UNREADABLE),
            _ => Err(UNREADABLE),
        }
    }
}

fn upload(object: Object) -> Option<Upload> {
    let id = object.key.strip_prefix(UPLOAD_PREFIX).and_then(BackfillId::parse)?;
    Some(Upload { id, etag: object.etag, size: object.size })
}

pub fn upload_key(id: &BackfillId) -> String {
    format!("{UPLOAD_PREFIX}{id}")
}

/// Hands a job to its worker.
pub fn emit(id: &BackfillId, seq: u64) -> Emit {
    let body = serde_json::json!({"kind": "backfill", "v": 1, "id": id.as_str()}).to_string();
    Emit { seq, queue: BACKFILL_QUEUE.to_owned(), not_before: None, id: format!("{id}/{seq}"), body }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "bf_0b4ec3b807650135984a7da9a632dc79";

    #[test]
    fn every_released_form_is_read() {
        let v1 = format!(r#"{{"kind":"backfill","v":1,"id":"{ID}"}}"#);
        let id = BackfillId::parse(ID).expect("an id");
        assert_eq!(Work::read(&v1), Ok(Work::Job(id.clone())));
        assert_eq!(Work::read(&emit(&id, 7).body), Ok(Work::Job(id)));
        let v2 = v1.replace(r#""v":1"#, r#""v":2"#);
        for other in ["", "{}", v2.as_str(), r#"{"kind":"backfill","v":1,"id":"x"}"#] {
            assert_eq!(Work::read(other), Err(UNREADABLE), "{other}");
        }
    }

    #[test]
    fn an_upload_is_known_by_its_key_and_anything_else_in_the_bucket_is_left() {
        let of = |key: &str| {
            let body = serde_json::json!({"Records": [{"eventSource": "aws:s3", "s3": {
                "bucket": {"name": "b"}, "object": {"key": key, "size": 7, "eTag": "e1"}}}]});
            Work::read(&body.to_string())
        };
        let id = BackfillId::parse(ID).expect("an id");
        let upload = Upload { id: id.clone(), etag: "e1".to_owned(), size: 7 };
        assert_eq!(of(&upload_key(&id)), Ok(Work::Uploaded(vec![upload])));
        assert_eq!(of("backfills/x"), Ok(Work::Uploaded(Vec::new())));
        assert_eq!(of("other/bf_0b4ec3b807650135984a7da9a632dc79"), Ok(Work::Uploaded(Vec::new())));
        assert_eq!(Work::read(r#"{"Service":"Amazon S3","Event":"s3:TestEvent"}"#), Ok(Work::Uploaded(Vec::new())));
    }
}
