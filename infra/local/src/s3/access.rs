//! Access to the emulator: it accepts requests that are signed with the secret of their access key,
//! and the stack's own requests.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use http::{Method, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3Result, s3_error};
use s3s_fs::FileSystem;

use crate::StackError;

/// The caller name of a client that uses a presigned URL or form.
pub const PRESIGNED: &str = "presigned";
/// The secret of every function.
pub const FUNCTION_SECRET: &str = "local";
/// The secret of all other clients: tools and tests.
const TOOL_SECRET: &str = "none";
pub(super) const FUNCTION_KEYS: &str = "local-";

/// Marks a request of the stack itself.
#[derive(Clone)]
struct Inside;

struct Keys;
struct Signed;

pub(super) fn emulator(directory: &Path) -> Result<S3Service, StackError> {
    let files = FileSystem::new(directory).map_err(|error| StackError::Emulator(format!("S3: {error:?}")))?;
    let mut config = S3Config::default();
    // The stack's clock may be years ahead of the machine's clock, which is the only one that the
    // emulator knows. So the stack checks the expiry of a URL beforehand, by its own clock.
    config.presigned_url_max_skew_time_secs = u32::MAX;
    let mut builder = S3ServiceBuilder::new(files);
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder.set_auth(Keys);
    builder.set_access(Signed);
    Ok(builder.build())
}

pub(super) fn secret_of(access_key: &str) -> &'static str {
    if access_key.starts_with(FUNCTION_KEYS) { FUNCTION_SECRET } else { TOOL_SECRET }
}

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        Ok(SecretKey::from(secret_of(access_key)))
    }
}

#[async_trait::async_trait]
impl S3Access for Signed {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_some() || context.extensions_mut().get::<Inside>().is_some() {
            return Ok(());
        }
        Err(s3_error!(AccessDenied, "Access Denied"))
    }
}

/// Builds a request of the stack itself for an object.
pub(super) fn inside(method: Method, bucket: &str, key: &str, body: Body) -> Request<Body> {
    const KEY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
    let mut request = Request::new(body);
    *request.method_mut() = method;
    if let Ok(uri) = format!("/{bucket}/{}", utf8_percent_encode(key, KEY)).parse() {
        *request.uri_mut() = uri;
    }
    request.extensions_mut().insert(Inside);
    request
}
