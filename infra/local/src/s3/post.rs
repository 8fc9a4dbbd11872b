//! Form uploads: a presigned POST limits which object its user may put, and how large it may be.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};

use super::form::{Form, FormError};
use super::former::Former;
use super::refusal::escaped;
use super::{S3, access, is_a_file_name, policy, refuse};
use crate::calls::Needed;
use crate::model::Bucket;

/// Fields that become headers of the object, besides user metadata and checksums.
const HEADERS: &[&str] =
    &["cache-control", "content-type", "content-disposition", "content-encoding", "content-language", "expires"];
const USERS_HEADERS: &[&str] = &["x-amz-meta-", "x-amz-checksum-"];

impl S3 {
    pub(super) async fn post(&self, bucket: &Bucket, request: Request<Body>) -> Response {
        let content_type =
            request.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let boundary = content_type.split_once("boundary=").map(|(_, rest)| rest.split(';').next().unwrap_or(rest));
        let Some(boundary) = boundary.filter(|_| content_type.starts_with("multipart/form-data")) else {
            let message = "Bucket POST must be of the enclosure-type multipart/form-data";
            return refuse(412, "PreconditionFailed", message);
        };
        let boundary = boundary.trim().trim_matches('"').to_owned();
        let base = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
        match Form::read(request.into_body(), &boundary).await {
            Ok(form) => self.put_form(bucket, form, &base).await,
            Err(error) => unreadable(error),
        }
    }

    async fn put_form(&self, bucket: &Bucket, form: Form, host: &str) -> Response {
        let Some(key) = form.field("key").filter(|key| !key.is_empty()) else {
            return refuse(400, "InvalidArgument", "Bucket POST must contain a field named 'key'.");
        };
        let range = match policy::check(&form, &bucket.name, key, self.0.clock.now_ms()) {
            Ok(range) => range,
            Err(refused) => return *refused,
        };
        let key = key.replace("${filename}", &form.file_name);
        if !is_a_file_name(&bucket.name, &key) {
            let message = "the local stack keeps objects as files and cannot have one of this key";
            return refuse(400, "InvalidArgument", message);
        }
        let answer = Answer::of(&form);
        let credential = form.field("x-amz-credential").unwrap_or_default();
        let access_key = credential.split('/').next().unwrap_or_default().to_owned();
        let posted = Posted { access_key, object: format!("{}/{key}", bucket.name) };
        let signer = self.0.permissions.caller(posted.access_key.clone());
        if let Err(refusal) = self.0.permissions.check(&signer, &posted.needed(), &[]) {
            return refuse(403, "AccessDenied", &refusal.to_string());
        }
        let headers: Vec<_> = form.fields().filter_map(header).collect();
        let size = Arc::new(AtomicU64::new(0));
        let file = bounded(form, size.clone(), *range.start(), *range.end());
        let mut put = access::inside(Method::PUT, &bucket.name, &key, Body::from_stream(file));
        put.headers_mut().extend(headers);
        let former = Former::of(self.file(&bucket.name, &key), &self.0.directory.path);
        let response = self.emulate(put).await;
        if !response.status().is_success() {
            if response.status() == StatusCode::BAD_REQUEST {
                former.restore();
            }
            return match size.load(Ordering::SeqCst) {
                size if size > *range.end() => {
                    refuse(400, "EntityTooLarge", "Your proposed upload exceeds the maximum allowed size")
                }
                size if size < *range.start() => {
                    refuse(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
                }
                _ if response.status().is_server_error() => unreadable(FormError::Malformed),
                _ => response,
            };
        }
        self.created(bucket, &key, "ObjectCreated:Post").await;
        let mut answer = answer.respond(&bucket.name, &key, host, response.headers().get("etag"));
        answer.extensions_mut().insert(posted);
        answer
    }
}

/// The object that a form uploaded, and the access key that signed the form.
#[derive(Debug, Clone)]
pub struct Posted {
    pub access_key: String,
    object: String,
}

impl Posted {
    pub fn needed(&self) -> Vec<Needed> {
        vec![Needed { action: "s3:PutObject".to_owned(), on: self.object.clone() }]
    }
}

/// Returns the stream of the file. It fails when the file is too large, or at the end if the file
/// is too small; the emulator does not store a file whose stream fails.
fn bounded(
    form: Form,
    size: Arc<AtomicU64>,
    least: u64,
    most: u64,
) -> impl futures::Stream<Item = io::Result<bytes::Bytes>> {
    let counted = size.clone();
    let file = form.file.into_stream().map(move |piece| {
        let piece = piece?;
        let length = piece.len() as u64;
        let so_far = counted.fetch_add(length, Ordering::SeqCst) + length;
        if so_far > most { Err(io::Error::other("too large")) } else { Ok(piece) }
    });
    let end = stream::once(async move {
        let too_small = size.load(Ordering::SeqCst) < least;
        if too_small { Err(io::Error::other("too small")) } else { Ok(bytes::Bytes::new()) }
    });
    file.chain(end)
}

fn unreadable(error: FormError) -> Response {
    match error {
        FormError::Malformed => {
            let message = "The body of your POST request is not well-formed multipart/form-data.";
            refuse(400, "MalformedPOSTRequest", message)
        }
        FormError::TooLong => {
            let message = "Your POST request fields preceding the upload file were too large.";
            refuse(400, "MaxPostPreDataLengthExceeded", message)
        }
        FormError::WithoutFile => refuse(400, "InvalidArgument", "POST requires exactly one file upload per request."),
    }
}

fn header((name, value): (&str, &str)) -> Option<(HeaderName, HeaderValue)> {
    let kept = HEADERS.contains(&name) || USERS_HEADERS.iter().any(|prefix| name.starts_with(prefix));
    kept.then(|| Some((HeaderName::try_from(name).ok()?, HeaderValue::from_str(value).ok()?))).flatten()
}

/// The success response that the form asks for.
struct Answer {
    status: StatusCode,
    redirect: Option<String>,
}

impl Answer {
    fn of(form: &Form) -> Self {
        let status = match form.field("success_action_status") {
            Some("200") => StatusCode::OK,
            Some("201") => StatusCode::CREATED,
            _ => StatusCode::NO_CONTENT,
        };
        let redirect = form.field("success_action_redirect").or(form.field("redirect"));
        Self { status, redirect: redirect.map(str::to_owned) }
    }

    fn respond(&self, bucket: &str, key: &str, host: &str, etag: Option<&HeaderValue>) -> Response {
        let uri = access::inside(Method::GET, bucket, key, Body::empty()).uri().to_string();
        let location = format!("http://{host}{uri}");
        let etag = etag.and_then(|etag| etag.to_str().ok()).unwrap_or_default();
        let headers = [("etag", etag.to_owned()), ("location", location.clone())];
        if let Some(to) = &self.redirect {
            let joint = if to.contains('?') { '&' } else { '?' };
            let to = format!(
                "{to}{joint}bucket={bucket}&key={}&etag={}",
                &uri[bucket.len() + 2..],
                etag.replace('"', "%22")
            );
            return (StatusCode::SEE_OTHER, [("etag", etag.to_owned()), ("location", to)]).into_response();
        }
        if self.status != StatusCode::CREATED {
            return (self.status, headers).into_response();
        }
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<PostResponse><Location>{}</Location><Bucket>{bucket}</Bucket>\
             <Key>{}</Key><ETag>{}</ETag></PostResponse>",
            escaped(&location),
            escaped(key),
            escaped(etag)
        );
        (self.status, headers, [("content-type", "application/xml")], body).into_response()
    }
}
