//! S3 notifications about objects that were put into a bucket.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub key: String,
    /// The version of the content: an object can be replaced.
    pub etag: String,
    pub size: u64,
}

/// Returns the objects that a message reports. `None` if it is not an S3 notification. Keys are as
/// S3 writes them, with escapes; ours contain no character that S3 escapes.
pub fn objects(message: &str) -> Option<Vec<Object>> {
    let message: Value = serde_json::from_str(message).ok()?;
    if let Some(records) = message["Records"].as_array() {
        return Some(records.iter().filter_map(object).collect());
    }
    // S3 sends a test event when notifications are configured.
    (message["Event"] == "s3:TestEvent").then(Vec::new)
}

fn object(record: &Value) -> Option<Object> {
    let object = &record["s3"]["object"];
    let (key, etag) = (object["key"].as_str()?, object["eTag"].as_str()?);
    Some(Object { key: key.to_owned(), etag: etag.trim_matches('"').to_owned(), size: object["size"].as_u64()? })
}
