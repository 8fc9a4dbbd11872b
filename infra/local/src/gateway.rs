//! An API Gateway HTTP API. It converts a request to an event of payload format 2.0, and the
//! function's answer to a response.
//!
//! - `routes`: selects the route of a request.
//! - `event`: builds the events for the function and the authorizer.
//! - `response`: builds the response for the client.
//!
//! The gateway itself answers with `{"message": …}` and one of these statuses: 400 for an invalid
//! `Host` header, 404 if there is no route, 413 if the body is too large, 403 if the authorizer
//! denies the request and 500 if it fails, 502 if the function fails or its answer is invalid, and
//! 503 if there is no answer in time.

mod event;
mod response;
mod routes;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub(crate) mod urlencoded;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    extract::{ConnectInfo, Request},
    http::{HeaderValue, StatusCode, uri::Authority},
    response::Response,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::Value;

use self::{
    event::{Incoming, authorizer_event, build_event},
    response::{message, to_response},
    routes::{Match, match_route},
};
use crate::{
    functions::{Functions, InvokeError},
    model::Api,
};

/// The limit of an HTTP API for the body of a request. A function accepts less, because its event
/// has a limit too.
const BODY_LIMIT: usize = 10 * 1024 * 1024;

#[derive(Clone)]
pub struct Gateway {
    pub api: Api,
    pub functions: Functions,
    /// How long a client waits for a function, without the time of the authorizer. For an HTTP API
    /// on AWS this is 29 seconds.
    pub timeout: Duration,
    /// Returns milliseconds since the epoch.
    pub now: Arc<dyn Fn() -> i64 + Send + Sync>,
}

impl Gateway {
    /// Handles a request. Always returns a response. If the client disconnects, the invocation
    /// still runs to its end.
    pub async fn handle(&self, request: Request) -> Response {
        let id = request_id();
        let mut response = match self.accept(request, &id).await {
            Ok(exchange) => {
                // A separate task, so that it outlives the connection.
                let exchange = tokio::spawn(exchange.run());
                exchange.await.unwrap_or_else(|_| message(StatusCode::INTERNAL_SERVER_ERROR))
            }
            Err(status) => message(status),
        };
        if let Ok(id) = id.try_into() {
            response.headers_mut().insert("apigw-requestid", id);
        }
        response
    }

    async fn accept(&self, request: Request, id: &str) -> Result<Exchange, StatusCode> {
        let (parts, body) = request.into_parts();
        // API Gateway accepts only its own host names; here a client can send anything.
        let is_host = |host: &HeaderValue| host.to_str().is_ok_and(|host| host.parse::<Authority>().is_ok());
        if parts.headers.get("host").is_some_and(|host| !is_host(host)) {
            return Err(StatusCode::BAD_REQUEST);
        }
        let route = match_route(&self.api.routes, parts.method.as_str(), parts.uri.path());
        let Match { route, parameters } = route.ok_or(StatusCode::NOT_FOUND)?;
        // A client that breaks off in the middle of a body does not read an answer, so the only
        // error that needs an answer is the size.
        let body = axum::body::to_bytes(body, BODY_LIMIT).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
        let authorizer = match &self.api.authorizer {
            _ if !route.authorized => None,
            Some(authorizer) => Some(authorizer.clone()),
            None => return Err(StatusCode::INTERNAL_SERVER_ERROR),
        };
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip());
        Ok(Exchange {
            incoming: Incoming {
                id: id.to_owned(),
                route_key: routes::key(route),
                parameters,
                source_ip: peer.map_or("127.0.0.1".to_owned(), |ip| ip.to_canonical().to_string()),
                at_ms: (self.now)(),
                parts,
                body,
            },
            functions: self.functions.clone(),
            function: route.function.clone(),
            authorizer,
            timeout: self.timeout,
        })
    }
}

/// A request with its route.
struct Exchange {
    incoming: Incoming,
    functions: Functions,
    function: String,
    authorizer: Option<String>,
    timeout: Duration,
}

impl Exchange {
    async fn run(self) -> Response {
        let context = match self.authorize().await {
            Ok(context) => context,
            Err(status) => return message(status),
        };
        let event = build_event(&self.incoming, context);
        let answer = match self.invoke(&self.function, &event).await {
            Ok(answer) => answer,
            Err(status) => return message(status),
        };
        to_response(&answer).unwrap_or_else(|problem| {
            tracing::warn!(function = self.function, %problem, "the answer of the function is not a valid response");
            message(StatusCode::BAD_GATEWAY)
        })
    }

    /// Calls the authorizer and returns its context, or `None` if the route has no authorizer.
    async fn authorize(&self) -> Result<Option<Value>, StatusCode> {
        let Some(authorizer) = &self.authorizer else { return Ok(None) };
        let answer = self.invoke(authorizer, &authorizer_event(&self.incoming)).await;
        let answer = answer.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        match response::authorization(&answer) {
            Some((true, context)) => Ok(Some(context)),
            Some((false, _)) => Err(StatusCode::FORBIDDEN),
            None => {
                tracing::warn!(function = authorizer, "the answer of the authorizer is not valid");
                Err(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }

    /// Invokes a function. Stops waiting after the timeout; the invocation continues.
    async fn invoke(&self, function: &str, event: &Value) -> Result<Bytes, StatusCode> {
        let (functions, name, event) = (self.functions.clone(), function.to_owned(), event.to_string().into());
        let invocation = tokio::spawn(async move { functions.invoke(&name, event).await });
        let Ok(ended) = tokio::time::timeout(self.timeout, invocation).await else {
            tracing::warn!(function, "no answer in time");
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        };
        let Ok(answer) = ended else { return Err(StatusCode::BAD_GATEWAY) };
        answer.map_err(|error| {
            tracing::warn!(function, %error, "an invocation failed");
            match error {
                InvokeError::EventTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                _ => StatusCode::BAD_GATEWAY,
            }
        })
    }
}

/// Returns an id in the format of an HTTP API: `JKJaXmPLvHcESHA=`.
fn request_id() -> String {
    let random = fastrand::u128(..).to_ne_bytes();
    BASE64_STANDARD.encode(&random[..11])
}
