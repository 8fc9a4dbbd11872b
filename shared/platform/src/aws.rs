//! The AWS clients. They are built once per process and share one HTTP client with one TLS
//! configuration.
//!
//! A Lambda function has its credentials and its region in its environment, so no other source is
//! queried. Endpoints come from the SDK's own variables (`AWS_ENDPOINT_URL_DYNAMODB`,
//! `AWS_ENDPOINT_URL`, …).

mod post;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region, SharedHttpClient};
use aws_smithy_async::time::{SharedTimeSource, TimeSource};
use aws_smithy_http_client::{Builder, tls};

pub use self::post::PresignedPost;
use crate::clock::Clock;
use crate::config::{self, ConfigError};
use crate::host;

/// Timeouts of one attempt. [`crate::invocation::Invocation::within`] also limits the whole
/// operation to the time left.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(2_500);
/// The attempt timeout for S3: a part of a file has megabytes, unlike a row.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Builds the client of one service. The builders of the SDK's crates have the same shape but no
/// type in common.
macro_rules! client {
    ($aws:expr, $sdk:ident, $service:literal) => {
        client!($aws, $sdk, $service, $aws.http.clone(), RetryConfig::standard(), timeouts())
    };
    ($aws:expr, $sdk:ident, $service:literal, $http:expr, $retry:expr, $timeouts:expr) => {
        $sdk::Client::from_conf(config!($aws, $sdk, $service, $http, $retry, $timeouts).build())
    };
}

macro_rules! config {
    ($aws:expr, $sdk:ident, $service:literal, $http:expr, $retry:expr, $timeouts:expr) => {{
        let mut builder = $sdk::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client($http)
            .region($aws.region.clone())
            .credentials_provider($aws.credentials.clone())
            .timeout_config($timeouts)
            .retry_config($retry);
        builder.set_endpoint_url($aws.endpoint($service));
        if let Some(retries) = host::provided(|host| host.retries.clone()) {
            builder.set_retry_partition(Some(retries));
            builder.set_time_source(Some(SharedTimeSource::new(Signing($aws.clock))));
        }
        builder
    }};
}

/// The settings that all clients are built from.
#[derive(Debug, Clone)]
pub struct Aws {
    http: SharedHttpClient,
    region: Region,
    credentials: Credentials,
    clock: Clock,
    /// One endpoint for all services; it overrides the environment.
    endpoint: Option<String>,
}

impl Aws {
    pub fn from_env() -> Result<Self, ConfigError> {
        let region = config::text("AWS_REGION").or_else(|| config::text("AWS_DEFAULT_REGION"));
        let region = region.ok_or_else(|| ConfigError::Missing("AWS_REGION".to_owned()))?;
        let credentials = Credentials::new(
            config::required("AWS_ACCESS_KEY_ID")?,
            config::required("AWS_SECRET_ACCESS_KEY")?,
            config::text("AWS_SESSION_TOKEN"),
            None,
            "environment",
        );
        let (region, clock) = (Region::new(region), Clock::from_env()?);
        Ok(Self { http: http_client(), region, credentials, clock, endpoint: None })
    }

    /// Creates the settings for tools and tests that call emulators. All services are at one
    /// endpoint, which identifies the caller by the access key.
    pub fn at_endpoint(endpoint: &str, access_key: &str) -> Self {
        let credentials = Credentials::new(access_key, "none", None, None, "given");
        let region = Region::new("us-east-1");
        let (clock, endpoint) = (Clock::default(), Some(endpoint.to_owned()));
        Self { http: http_client(), region, credentials, clock, endpoint }
    }

    pub fn dynamodb(&self) -> aws_sdk_dynamodb::Client {
        client!(self, aws_sdk_dynamodb, "DYNAMODB")
    }

    pub fn sqs(&self) -> aws_sdk_sqs::Client {
        client!(self, aws_sdk_sqs, "SQS")
    }

    /// Creates the S3 client. The validity of a presigned URL starts at the time of the process's
    /// own clock. If an endpoint is configured, buckets are addressed by path.
    pub fn s3(&self) -> aws_sdk_s3::Client {
        let timeouts = timeouts().to_builder().operation_attempt_timeout(UPLOAD_TIMEOUT).build();
        let builder = config!(self, aws_sdk_s3, "S3", self.http.clone(), RetryConfig::standard(), timeouts);
        let config = builder.time_source(Signing(self.clock)).force_path_style(self.endpoint("S3").is_some());
        aws_sdk_s3::Client::from_conf(config.build())
    }

    pub fn secretsmanager(&self) -> aws_sdk_secretsmanager::Client {
        client!(self, aws_sdk_secretsmanager, "SECRETS_MANAGER")
    }

    /// Creates the SES client with the caller's own connections and retries and without timeouts: a
    /// mail must not be sent twice.
    pub fn sesv2(&self, http: SharedHttpClient, retry: RetryConfig) -> aws_sdk_sesv2::Client {
        client!(self, aws_sdk_sesv2, "SESV2", http, retry, TimeoutConfig::disabled())
    }

    fn endpoint(&self, service: &str) -> Option<String> {
        let of_service = || config::text(&format!("AWS_ENDPOINT_URL_{service}"));
        self.endpoint.clone().or_else(of_service).or_else(|| config::text("AWS_ENDPOINT_URL"))
    }
}

/// The time source for signatures.
#[derive(Debug)]
struct Signing(Clock);

impl TimeSource for Signing {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(u64::try_from(self.0.now().millis()).unwrap_or(0))
    }
}

fn http_client() -> SharedHttpClient {
    if let Some(http) = host::provided(|host| host.http.clone()) {
        return http;
    }
    Builder::new().tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring)).build_https()
}

fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(ATTEMPT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .build()
}
