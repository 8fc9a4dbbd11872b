//! What S3 tells about objects that were put into a bucket.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub key: String,
    /// Which writing of it: an object can be replaced.
    pub etag: String,
    pub size: u64,
}

/// The objects that a message tells of; `None` if it is no word of S3's. Keys are as S3 writes
/// them, with escapes: ours have no character that it would escape.
pub fn objects(message: &Value) -> Option<Vec<Object>> {
    if let Some(records) = message["Records"].as_array() {
        return Some(records.iter().filter_map(object).collect());
    }
    // S3 tries its notifications out when they are set up.
    (message["Event"] == "s3:TestEvent").then(Vec::new)
}

fn object(record: &Value) -> Option<Object> {
    let object = &record["s3"]["object"];
    let (key, etag) = (object["key"].as_str()?, object["eTag"].as_str()?);
    Some(Object { key: key.to_owned(), etag: etag.trim_matches('"').to_owned(), size: object["size"].as_u64()? })
}
