//! S3: the embedded emulator, which stores objects as files, with the features that it lacks:
//! conditional reads, form uploads, presigned URLs that expire by the stack's clock, CORS, events,
//! and object expiration.
//!
//! Bodies are streamed in both directions, because an object may be larger than memory. The
//! emulator checks every signature.

mod access;
mod call;
mod cors;
pub mod events;
mod expiry;
mod form;
mod former;
mod policy;
mod post;
mod presigned;
mod refusal;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, Method, Request, StatusCode};
use s3s::service::S3Service;
use tokio::sync::Mutex;

pub use self::access::{FUNCTION_SECRET, PRESIGNED};
pub use self::call::What;
use self::former::Former;
pub use self::post::Posted;
pub use self::presigned::signer;
pub use self::refusal::refuse;
use crate::StackError;
use crate::bus::Bus;
use crate::clock::Clock;
use crate::functions::random_uuid;
use crate::model::Bucket;
use crate::permissions::Permissions;
use crate::queues::Queues;

/// A cheap handle: all clones share the same buckets.
#[derive(Clone)]
pub struct S3(Arc<Shared>);

struct Shared {
    buckets: Vec<Bucket>,
    /// `None` if there are no buckets.
    emulator: Option<S3Service>,
    directory: Directory,
    queues: Queues,
    bus: Bus,
    clock: Clock,
    permissions: Permissions,
    /// The emulator checks a condition first and writes later, so conditional writes run one at a
    /// time.
    conditional: Mutex<()>,
    sequence: AtomicU64,
}

/// The directory that holds the objects.
struct Directory {
    path: PathBuf,
    temporary: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

impl S3 {
    /// Starts the emulator. Without a directory, it stores objects in a temporary one until
    /// [`Self::stop`].
    pub fn start(
        buckets: &[Bucket],
        directory: Option<PathBuf>,
        queues: Queues,
        bus: Bus,
        clock: Clock,
        permissions: Permissions,
    ) -> Result<Self, StackError> {
        let temporary = directory.is_none();
        let path = directory.unwrap_or_else(|| std::env::temp_dir().join(format!("umavez-s3-{}", random_uuid())));
        let directory = Directory { path, temporary };
        for bucket in buckets {
            let path = directory.path.join(&bucket.name);
            std::fs::create_dir_all(&path).map_err(|error| StackError::unusable(&path, error))?;
        }
        let emulator = if buckets.is_empty() { None } else { Some(access::emulator(&directory.path)?) };
        let (conditional, sequence) = (Mutex::default(), AtomicU64::default());
        let buckets = buckets.to_vec();
        let shared = Shared { buckets, emulator, directory, queues, bus, clock, permissions, conditional, sequence };
        Ok(Self(Arc::new(shared)))
    }

    /// Removes the objects if their directory is temporary.
    pub fn stop(&self) {
        if self.0.directory.temporary {
            let _ = std::fs::remove_dir_all(&self.0.directory.path);
        }
    }

    pub fn has_bucket(&self, name: &str) -> bool {
        self.bucket(name).is_some()
    }

    fn bucket(&self, name: &str) -> Option<&Bucket> {
        self.0.buckets.iter().find(|bucket| bucket.name == name)
    }

    /// Handles an HTTP request.
    pub async fn handle(&self, what: &What, request: Request<Body>) -> Response {
        if ["CreateBucket", "DeleteBucket"].contains(&what.operation) {
            return refuse(501, "NotImplemented", "the buckets of the local stack are those of the template");
        }
        if what.operation == "ListBuckets" {
            return self.emulate(request).await;
        }
        let Some(bucket) = self.bucket(&what.bucket) else {
            return refuse(404, "NoSuchBucket", "The specified bucket does not exist");
        };
        let origin = request.headers().get("origin").cloned();
        let method = request.method().clone();
        let mut response = match self.check(what, &request) {
            Some(refused) => refused,
            None if what.operation == "PostObject" => self.post(bucket, request).await,
            None => self.carry_out(bucket, what, request).await,
        };
        if let Some(origin) = origin {
            cors::allow(&bucket.cors, &origin, &method, response.headers_mut());
        }
        response
    }

    /// Answers the CORS preflight request of a browser.
    pub fn preflight(&self, what: &What, headers: &HeaderMap) -> Response {
        cors::preflight(self.bucket(&what.bucket).map_or(&[], |bucket| &bucket.cors), headers)
    }

    /// Returns the error response if the request cannot be performed.
    fn check(&self, what: &What, request: &Request<Body>) -> Option<Response> {
        if !is_a_file_name(&what.bucket, &what.key) {
            let message = "the local stack keeps objects as files and cannot have one of this key";
            return Some(refuse(400, "InvalidArgument", message));
        }
        presigned::refusal(request.uri(), &self.0.clock)
    }

    async fn carry_out(&self, bucket: &Bucket, what: &What, request: Request<Body>) -> Response {
        let headers = request.headers();
        let conditions = [headers.get("if-match").cloned(), headers.get("if-none-match").cloned()];
        let [if_match, if_none_match] = conditions.map(|value| value.and_then(|v| v.to_str().ok().map(str::to_owned)));
        if what.is_read() {
            // A directory is not an object.
            if self.file(&what.bucket, &what.key).is_dir() {
                return refuse(404, "NoSuchKey", "The specified key does not exist.");
            }
            let response = self.emulate(request).await;
            return conditioned(response, if_match.as_deref(), if_none_match.as_deref());
        }
        let _one_at_a_time = match if_match.or(if_none_match) {
            Some(_) => Some(self.0.conditional.lock().await),
            None => None,
        };
        let may_replace = || Former::of(self.file(&what.bucket, &what.key), &self.0.directory.path);
        let former = (what.operation == "PutObject").then(may_replace);
        let response = self.emulate(request).await;
        if let Some(former) = former.filter(|_| response.status() == StatusCode::BAD_REQUEST) {
            former.restore();
        }
        if let Some(event) = what.creates().filter(|_| response.status().is_success()) {
            self.created(bucket, &what.key, event).await;
        }
        response
    }

    async fn emulate(&self, request: Request<Body>) -> Response {
        let Some(emulator) = &self.0.emulator else {
            return refuse(404, "NoSuchBucket", "The specified bucket does not exist");
        };
        match emulator.call(request.map(s3s::Body::http_body_unsync)).await {
            Ok(response) => response.map(Body::new),
            Err(error) => {
                tracing::warn!(?error, "the S3 emulator failed");
                refuse(500, "InternalError", "We encountered an internal error. Please try again.")
            }
        }
    }

    /// Sets the modification time of a new object by the stack's clock and publishes its events.
    async fn created(&self, bucket: &Bucket, key: &str, event: &'static str) {
        let file = self.file(&bucket.name, key);
        let now = UNIX_EPOCH + Duration::from_millis(u64::try_from(self.0.clock.now_ms()).unwrap_or(0));
        if let Err(error) = std::fs::File::options().write(true).open(&file).and_then(|file| file.set_modified(now)) {
            tracing::warn!(%error, "could not set the modification time of an object");
        }
        let (size, etag) = self.head(&bucket.name, key).await;
        self.publish_or_warn(bucket, &events::Created { event, key, size, etag: &etag }).await;
    }

    /// Returns size and ETag of an object.
    async fn head(&self, bucket: &str, key: &str) -> (u64, String) {
        let request = access::inside(Method::HEAD, bucket, key, Body::empty());
        let response = self.emulate(request).await;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        (header("content-length").parse().unwrap_or(0), header("etag").trim_matches('"').to_owned())
    }

    fn file(&self, bucket: &str, key: &str) -> PathBuf {
        self.0.directory.path.join(bucket).join(key)
    }
}

/// Returns whether the emulator can store an object with this key. It stores the object as a file
/// below its bucket, and its ETag in another file whose name contains both in Base64.
fn is_a_file_name(bucket: &str, key: &str) -> bool {
    let in_base64 = |text: &str| text.len().div_ceil(3) * 4;
    let plain = |part: &str| !["", ".", ".."].contains(&part) && part.len() <= 255;
    let path = Path::new(key);
    key.is_empty() || (key.split('/').all(plain) && path.is_relative() && in_base64(bucket) + in_base64(key) <= 190)
}

/// Evaluates the conditions of a read, which the emulator ignores.
fn conditioned(response: Response, if_match: Option<&str>, if_none_match: Option<&str>) -> Response {
    let etag = response.headers().get("etag").and_then(|etag| etag.to_str().ok()).unwrap_or_default();
    let names = |wanted: &str| {
        let bare = |tag: &str| tag.trim().trim_start_matches("W/").trim_matches('"').to_owned();
        wanted.split(',').any(|tag| tag.trim() == "*" || bare(tag) == bare(etag))
    };
    if !response.status().is_success() {
        return response;
    }
    if if_match.is_some_and(|wanted| !names(wanted)) {
        let message = "At least one of the pre-conditions you specified did not hold";
        return refuse(412, "PreconditionFailed", message);
    }
    if if_none_match.is_some_and(names) {
        let mut unchanged = Response::new(Body::empty());
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged.headers_mut().extend(response.headers().get("etag").map(|etag| (http::header::ETAG, etag.clone())));
        return unchanged;
    }
    response
}
