//! HTTP requests to services other than AWS. Each call is one request with its own timeout, and
//! this module never retries it.
//!
//! Idle connections are kept for a few seconds only. Lambda freezes a function between invocations,
//! and the other side may close a connection meanwhile. A request over such a connection fails
//! after its bytes were sent, and it would be unknown whether the other side received it.

use std::error::Error;
use std::time::Duration;

use aws_smithy_http_client::{Connector, tls};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorSettings, SharedHttpConnector};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use umavez_domain::channels::HttpCall;
use umavez_domain::delivery::CallFailure;

use crate::host;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEPT_IDLE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Outgoing {
    connector: SharedHttpConnector,
}

/// The response of the other side.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub retry_after: Option<String>,
    pub body: Vec<u8>,
}

impl Outgoing {
    /// `timeout` is the longest time that any call may take.
    pub fn new(timeout: Duration) -> Self {
        if let Some(connector) = host::provided(|host| host.connector.clone()) {
            return Self { connector };
        }
        let settings = HttpConnectorSettings::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(timeout).build();
        let connector = Connector::builder()
            .connector_settings(settings)
            .pool_idle_timeout(KEPT_IDLE)
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
            .build();
        Self { connector: SharedHttpConnector::new(connector) }
    }

    /// Returns the connector, for an SDK client that shares its connections.
    pub fn connector(&self) -> SharedHttpConnector {
        self.connector.clone()
    }

    /// Makes one request within `limit`.
    pub async fn call(&self, base: &str, call: &HttpCall, limit: Duration) -> Result<Response, CallFailure> {
        let request = http_request(base, call).ok_or(CallFailure::NotConnected)?;
        let whole = async {
            let response = self.connector.call(request).await.map_err(|error| failure_of(&error))?;
            let status = response.status().as_u16();
            let retry_after = response.headers().get("retry-after").map(str::to_owned);
            let body = read_to_end(response.into_body()).await.ok_or(CallFailure::Unreadable)?;
            Ok(Response { status, retry_after, body })
        };
        tokio::time::timeout(limit, whole).await.unwrap_or(Err(CallFailure::TimedOut))
    }
}

/// Builds the request. A call without a path goes to the base URL itself.
fn http_request(base: &str, call: &HttpCall) -> Option<HttpRequest> {
    let uri = match call.path.as_str() {
        "" => base.to_owned(),
        path => format!("{}{path}", base.trim_end_matches('/')),
    };
    let mut request = http::Request::builder().method(call.method).uri(uri);
    for (name, value) in &call.headers {
        request = request.header(*name, value);
    }
    let request = request.body(SdkBody::from(call.body.as_str())).ok()?;
    HttpRequest::try_from(request).ok()
}

/// Classifies a failure by whether any byte can have been sent.
pub(crate) fn failure_of(error: &ConnectorError) -> CallFailure {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>()
            && error.is_connect()
        {
            return CallFailure::NotConnected;
        }
        cause = error.source();
    }
    if error.is_timeout() {
        CallFailure::TimedOut
    } else if error.is_user() {
        CallFailure::NotConnected
    } else {
        CallFailure::Broken
    }
}

/// The largest response body. No provider answers a message with more than this.
const LARGEST_ANSWER: usize = 256 * 1024;

async fn read_to_end(mut body: SdkBody) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(frame) =
        std::future::poll_fn(|cx| http_body::Body::poll_frame(std::pin::Pin::new(&mut body), cx)).await
    {
        if let Ok(data) = frame.ok()?.into_data() {
            if bytes.len() + data.len() > LARGEST_ANSWER {
                return None;
            }
            bytes.extend_from_slice(&data);
        }
    }
    Some(bytes)
}
