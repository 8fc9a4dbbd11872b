//! Files that clients upload. A signed form allows the upload of one key, limited in size and time;
//! the file is read back in parts.

use std::time::Duration;

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use serde_json::{Value, json};
use umavez_domain::codes::Reason;

use crate::aws::Aws;
use crate::invocation::Invocation;
use crate::store::StoreError;

const VALID_FOR: Duration = Duration::from_secs(15 * 60);

pub struct Uploads {
    aws: Aws,
    client: aws_sdk_s3::Client,
    bucket: String,
}

impl std::fmt::Debug for Uploads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploads").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

/// One version of an uploaded file.
#[derive(Debug)]
pub struct UploadedObject {
    pub key: String,
    pub etag: String,
    pub size: u64,
}

/// Bytes of a file from a position on. `at_end` says that the file ends with them.
#[derive(Debug)]
pub struct Piece {
    pub bytes: Vec<u8>,
    pub at_end: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store of uploads did not answer")]
pub struct Unavailable;

impl Uploads {
    pub fn new(aws: Aws, bucket: String) -> Self {
        let client = aws.s3();
        Self { aws, client, bucket }
    }

    /// Creates a form for one key, as callers get it. It limits the size to `bytes` and is valid
    /// for 15 minutes. If `sha256` (in base64) is given, the content must have this hash.
    pub fn form(
        &self,
        invocation: &Invocation,
        key: &str,
        bytes: std::ops::RangeInclusive<u64>,
        sha256: Option<String>,
    ) -> Value {
        let checksum: Vec<_> = sha256
            .into_iter()
            .flat_map(|sha256| [("x-amz-checksum-algorithm", "SHA256".to_owned()), ("x-amz-checksum-sha256", sha256)])
            .collect();
        let max_bytes = *bytes.end();
        let post = self.aws.presigned_post(&self.bucket, key, bytes, &checksum, VALID_FOR);
        let fields: Value = post.fields.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        let valid_ms = i64::try_from(VALID_FOR.as_millis()).unwrap_or(i64::MAX);
        let expires_at = invocation.now.plus_ms(valid_ms);
        json!({"url": post.url, "fields": fields, "expires_at": expires_at, "max_bytes": max_bytes})
    }

    /// Stores an object and returns its ETag.
    pub async fn put(&self, invocation: &Invocation, key: &str, bytes: Vec<u8>) -> Result<String, Unavailable> {
        let call = self.client.put_object().bucket(&self.bucket).key(key).body(bytes.into()).send();
        let put = invocation.within(call).await.map_err(|_| Unavailable)?.map_err(|_| Unavailable)?;
        put.e_tag.map(|etag| etag.trim_matches('"').to_owned()).ok_or(Unavailable)
    }

    /// Deletes an object. A no-op if it does not exist.
    pub async fn delete(&self, invocation: &Invocation, key: &str) -> Result<(), Unavailable> {
        let call = self.client.delete_object().bucket(&self.bucket).key(key).send();
        invocation.within(call).await.map_err(|_| Unavailable)?.map(drop).map_err(|_| Unavailable)
    }

    /// Reads at most `length` bytes of the object from `from` on, if it is still this version. The
    /// inner error is the reason why the object can never be read.
    pub async fn read(
        &self,
        invocation: &Invocation,
        object: &UploadedObject,
        from: u64,
        length: u64,
    ) -> Result<Result<Piece, Reason>, StoreError> {
        let UploadedObject { key, etag, size } = object;
        let to = from.saturating_add(length).min(*size);
        let at_end = to == *size;
        if from >= to {
            return Ok(Ok(Piece { bytes: Vec::new(), at_end }));
        }
        let call = self.client.get_object().bucket(&self.bucket).key(key);
        let call = call.if_match(format!("\"{etag}\"")).range(format!("bytes={from}-{}", to - 1)).send();
        let found = match invocation.within(call).await? {
            Ok(found) => found,
            Err(error) => {
                return match (error.code(), status(&error)) {
                    (Some("NoSuchKey"), _) | (_, Some(404)) => Ok(Err(Reason::InputMissing)),
                    (Some("PreconditionFailed"), _) | (_, Some(412)) => Ok(Err(Reason::InputChanged)),
                    _ => Err(StoreError::of(&error)),
                };
            }
        };
        match invocation.within(found.body.collect()).await? {
            Ok(bytes) => Ok(Ok(Piece { bytes: bytes.to_vec(), at_end })),
            // The connection broke before the whole body was read.
            Err(_) => Err(StoreError::Unavailable),
        }
    }
}

fn status<E>(error: &SdkError<E>) -> Option<u16> {
    error.raw_response().map(|response| response.status().as_u16())
}
