//! An API Gateway HTTP API: a request becomes an event of payload format 2.0, a function's answer
//! becomes a response.
//!
//! - `routes`: which route a request takes.
//! - `event`: what the function and the authorizer are given.
//! - `response`: what the client is given.
//!
//! What the gateway itself answers, always as `{"message": …}`: 404 without a route, 413 for a body
//! that is too large, 403 when the authorizer refuses and 500 when it fails, 502 when the function
//! fails or its answer cannot be read, 503 when there is no answer in time.

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

/// The limit of an HTTP API for a request's body. A function takes less: its event is limited too.
const BODY_LIMIT: usize = 10 * 1024 * 1024;

#[derive(Clone)]
pub struct Gateway {
    pub api: Api,
    pub functions: Functions,
    /// How long a client waits for a function, its authorizer not counted. An HTTP API waits 29
    /// seconds.
    pub timeout: Duration,
    /// Milliseconds since the epoch.
    pub now: Arc<dyn Fn() -> i64 + Send + Sync>,
}

impl Gateway {
    /// Always answers. What a client has set in motion goes on when the client goes away.
    pub async fn handle(&self, request: Request) -> Response {
        let id = request_id();
        let mut response = match self.accept(request, &id).await {
            Ok(exchange) => {
                // Of its own, so that it outlives the connection.
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
        // API Gateway knows its own names; here anybody can send anything.
        let is_host = |host: &HeaderValue| host.to_str().is_ok_and(|host| host.parse::<Authority>().is_ok());
        if parts.headers.get("host").is_some_and(|host| !is_host(host)) {
            return Err(StatusCode::BAD_REQUEST);
        }
        let route = match_route(&self.api.routes, parts.method.as_str(), parts.uri.path());
        let Match { route, parameters } = route.ok_or(StatusCode::NOT_FOUND)?;
        // Nobody is there to read the answer to a body that ends in the middle, so only its size is
        // worth an answer.
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

/// A request that has its route.
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
            tracing::warn!(function = self.function, %problem, "an answer that is no response");
            message(StatusCode::BAD_GATEWAY)
        })
    }

    /// What the authorizer says of the caller; nothing on a route without one.
    async fn authorize(&self) -> Result<Option<Value>, StatusCode> {
        let Some(authorizer) = &self.authorizer else { return Ok(None) };
        let answer = self.invoke(authorizer, &authorizer_event(&self.incoming)).await;
        let answer = answer.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        match response::authorization(&answer) {
            Some((true, context)) => Ok(Some(context)),
            Some((false, _)) => Err(StatusCode::FORBIDDEN),
            None => {
                tracing::warn!(function = authorizer, "an answer that is no authorization");
                Err(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }

    /// Stops waiting after the timeout; the invocation goes on.
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

/// Shaped like those of an HTTP API: `JKJaXmPLvHcESHA=`.
fn request_id() -> String {
    let random = fastrand::u128(..).to_ne_bytes();
    BASE64_STANDARD.encode(&random[..11])
}
