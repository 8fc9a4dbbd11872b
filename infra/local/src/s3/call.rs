//! The S3 operation of a request, derived from method, path and query, and the permissions that it
//! needs.

use http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;

use crate::calls::Needed;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct What {
    pub operation: &'static str,
    pub bucket: String,
    pub key: String,
    /// The prefix of a list request, if it has one.
    pub prefix: Option<String>,
    /// `bucket/key` of the source of a copy.
    source: Option<String>,
}

impl What {
    pub fn of(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let path = uri.path().strip_prefix('/').unwrap_or_default();
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let has = |name: &str| {
            let names =
                uri.query().unwrap_or_default().split('&').map(|pair| pair.split('=').next().unwrap_or_default());
            names.into_iter().any(|found| found == name)
        };
        let source = headers.get("x-amz-copy-source").and_then(|source| source.to_str().ok());
        let source = source.map(|source| decoded(source.trim_start_matches('/').split('?').next().unwrap_or_default()));
        let operation = match (bucket.is_empty(), key.is_empty()) {
            (true, _) => "ListBuckets",
            (false, true) => on_bucket(method, has),
            (false, false) => on_object(method, source.is_some(), has),
        };
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let prefix = pairs.into_iter().find(|(name, _)| *name == "prefix").map(|(_, value)| decoded(value));
        Self { operation, bucket: decoded(bucket), key: decoded(key), prefix, source }
    }

    pub fn is_read(&self) -> bool {
        ["GetObject", "HeadObject"].contains(&self.operation)
    }

    /// Returns the event of the object that the operation creates if it succeeds.
    pub(super) fn creates(&self) -> Option<&'static str> {
        match self.operation {
            "PutObject" => Some("ObjectCreated:Put"),
            "CopyObject" => Some("ObjectCreated:Copy"),
            "CompleteMultipartUpload" => Some("ObjectCreated:CompleteMultipartUpload"),
            _ => None,
        }
    }

    /// Returns the permission that a reader needs, and its `s3:prefix`, to get a 404 for a missing
    /// object. Without it the reader gets a 403.
    pub fn needed_to_miss(&self) -> (Needed, &str) {
        (Needed { action: "s3:ListBucket".to_owned(), on: self.bucket.clone() }, &self.key)
    }

    /// Returns the permissions that the operation needs. Objects are named `bucket/key`.
    pub fn needed(&self) -> Vec<Needed> {
        let object = format!("{}/{}", self.bucket, self.key);
        let needed = |action: &str, on: &str| Needed { action: format!("s3:{action}"), on: on.to_owned() };
        let copied = || self.source.iter().map(|source| needed("GetObject", source));
        match self.operation {
            "GetObject" | "HeadObject" => vec![needed("GetObject", &object)],
            "PutObject" | "PostObject" | "CreateMultipartUpload" | "UploadPart" | "CompleteMultipartUpload" => {
                vec![needed("PutObject", &object)]
            }
            "CopyObject" | "UploadPartCopy" => copied().chain([needed("PutObject", &object)]).collect(),
            "DeleteObject" | "DeleteObjects" => vec![needed("DeleteObject", &object)],
            "AbortMultipartUpload" => vec![needed("AbortMultipartUpload", &object)],
            "ListParts" => vec![needed("ListMultipartUploadParts", &object)],
            "ListObjects" | "ListObjectsV2" | "HeadBucket" => vec![needed("ListBucket", &self.bucket)],
            "ListMultipartUploads" => vec![needed("ListBucketMultipartUploads", &self.bucket)],
            "ListBuckets" => vec![needed("ListAllMyBuckets", "*")],
            other => vec![needed(other, &self.bucket)],
        }
    }
}

fn on_bucket(method: &Method, has: impl Fn(&str) -> bool) -> &'static str {
    match *method {
        Method::GET if has("location") => "GetBucketLocation",
        Method::GET if has("uploads") => "ListMultipartUploads",
        Method::GET if has("list-type") => "ListObjectsV2",
        Method::GET => "ListObjects",
        Method::HEAD => "HeadBucket",
        Method::POST if has("delete") => "DeleteObjects",
        Method::POST => "PostObject",
        Method::PUT => "CreateBucket",
        Method::DELETE => "DeleteBucket",
        _ => "Unknown",
    }
}

fn on_object(method: &Method, copies: bool, has: impl Fn(&str) -> bool) -> &'static str {
    match *method {
        Method::GET if has("uploadId") => "ListParts",
        Method::GET => "GetObject",
        Method::HEAD => "HeadObject",
        Method::PUT if has("partNumber") && copies => "UploadPartCopy",
        Method::PUT if has("partNumber") => "UploadPart",
        Method::PUT if copies => "CopyObject",
        Method::PUT => "PutObject",
        Method::POST if has("uploads") => "CreateMultipartUpload",
        Method::POST if has("uploadId") => "CompleteMultipartUpload",
        Method::DELETE if has("uploadId") => "AbortMultipartUpload",
        Method::DELETE => "DeleteObject",
        _ => "Unknown",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn what(method: Method, uri: &str) -> What {
        What::of(&method, &uri.parse().unwrap(), &HeaderMap::new())
    }

    #[test]
    fn an_operation_is_derived_from_method_path_and_query() {
        let cases = [
            (Method::GET, "/", "ListBuckets", "s3:ListAllMyBuckets", "*"),
            (Method::GET, "/b?list-type=2&prefix=a", "ListObjectsV2", "s3:ListBucket", "b"),
            (Method::GET, "/b/?list-type=2", "ListObjectsV2", "s3:ListBucket", "b"),
            (Method::HEAD, "/b", "HeadBucket", "s3:ListBucket", "b"),
            (Method::POST, "/b", "PostObject", "s3:PutObject", "b/"),
            (Method::POST, "/b?delete", "DeleteObjects", "s3:DeleteObject", "b/"),
            (Method::GET, "/b/a/c%20d?x-id=GetObject", "GetObject", "s3:GetObject", "b/a/c d"),
            (Method::HEAD, "/b/k", "HeadObject", "s3:GetObject", "b/k"),
            (Method::PUT, "/b/k?x-id=PutObject", "PutObject", "s3:PutObject", "b/k"),
            (Method::PUT, "/b/k?partNumber=1&uploadId=u", "UploadPart", "s3:PutObject", "b/k"),
            (Method::POST, "/b/k?uploads", "CreateMultipartUpload", "s3:PutObject", "b/k"),
            (Method::POST, "/b/k?uploadId=u", "CompleteMultipartUpload", "s3:PutObject", "b/k"),
            (Method::DELETE, "/b/k?uploadId=u", "AbortMultipartUpload", "s3:AbortMultipartUpload", "b/k"),
            (Method::DELETE, "/b/k", "DeleteObject", "s3:DeleteObject", "b/k"),
        ];
        for (method, uri, operation, action, on) in cases {
            let what = what(method, uri);
            assert_eq!(what.operation, operation, "{uri}");
            assert_eq!(what.needed(), [Needed { action: action.to_owned(), on: on.to_owned() }], "{uri}");
        }
    }

    #[test]
    fn a_copy_needs_read_access_to_its_source() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-copy-source", HeaderValue::from_static("/b/old%20one"));
        let what = What::of(&Method::PUT, &"/b/new".parse().unwrap(), &headers);
        assert_eq!((what.operation, what.creates()), ("CopyObject", Some("ObjectCreated:Copy")));
        let needed = |action: &str, on: &str| Needed { action: action.to_owned(), on: on.to_owned() };
        assert_eq!(what.needed(), [needed("s3:GetObject", "b/old one"), needed("s3:PutObject", "b/new")]);
    }
}
