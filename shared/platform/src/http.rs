//! HTTP as all functions use it: a request that is read once, a route with its scope, and an answer
//! or a problem.
//!
//! The authorizer has identified the caller. This module checks the caller's permissions against
//! the scope of the route, so that 401 and 403 are problems like any other. A route that the
//! function does not know gets a 404.

mod answer;
mod identity;
pub mod paging;
mod problem;
mod request;

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use lambda_http::{Body, Response};
use umavez_domain::access::{Scope, allows};
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::fields::FieldError;
use umavez_domain::telemetry::{Event, Metric};

pub use answer::Answer;
pub use identity::Identity;
pub use problem::Problem;
pub use request::{CONTEXT_DENIED, CONTEXT_KEY_ID, CONTEXT_SCOPES, Caller, MAX_BODY, Request};

use crate::invocation::Invocation;

/// A route of the template and the access that it requires.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The key as in the template: `POST /intents/{fingerprint}/release`.
    pub key: &'static str,
    pub access: Access,
    /// The largest body that the route accepts.
    pub takes: usize,
    pub query: QueryParameters,
}

/// The query parameters that a route accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryParameters {
    /// Accepts these and rejects any other, like an unknown field of a body.
    Only(&'static [&'static str]),
    /// Accepts any. Third parties write the URL (a payment gateway, a mail client that adds to
    /// links), so unknown parameters are ignored.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Public,
    Scope(Scope),
}

impl Route {
    pub const fn public(key: &'static str) -> Self {
        Self { key, access: Access::Public, takes: MAX_BODY, query: QueryParameters::Only(&[]) }
    }

    pub const fn scoped(key: &'static str, scope: &'static str) -> Self {
        Self { key, access: Access::Scope(Scope(scope)), takes: MAX_BODY, query: QueryParameters::Only(&[]) }
    }

    /// Lets the route accept larger bodies than those of JSON.
    pub const fn taking(self, takes: usize) -> Self {
        Self { takes, ..self }
    }

    /// Lets the route accept these query parameters.
    pub const fn query(self, names: &'static [&'static str]) -> Self {
        Self { query: QueryParameters::Only(names), ..self }
    }

    /// Lets the route ignore unknown query parameters.
    pub const fn any_query(self) -> Self {
        Self { query: QueryParameters::Any, ..self }
    }
}

/// Defines the `ROUTES` of a function, and `run`, which calls the handler of a request's route. A
/// handler is an async function of the function's `Deps`, the invocation and the request. The
/// template declares the same routes.
#[macro_export]
macro_rules! routes {
    ($($route:expr => $handler:expr),+ $(,)?) => {
        pub const ROUTES: &[$crate::http::Route] = &[$($route),+];

        pub async fn run(
            deps: std::sync::Arc<Deps>,
            invocation: std::sync::Arc<$crate::invocation::Invocation>,
            request: $crate::http::Request,
        ) -> Result<$crate::http::Answer, $crate::http::Problem> {
            match request.route.as_str() {
                $(key if key == const { $route.key } => ($handler)(&deps, &invocation, &request).await,)+
                _ => Err($crate::http::Problem::not_found("there is no such route")),
            }
        }
    };
}

/// Handles one request: checks access, runs the handler, and turns the result into a response. It
/// catches panics.
pub async fn answer(
    routes: &[Route],
    invocation: &Invocation,
    request: lambda_http::Request,
    run: impl AsyncFnOnce(Request) -> Result<Answer, Problem>,
) -> Response<Body> {
    let mut route = String::new();
    // Only a POST needs a key to be retried.
    let may_ask_again =
        request.method() != lambda_http::http::Method::POST || request.headers().contains_key("idempotency-key");
    let handled = async {
        let request = Request::read(routes, request)?;
        route.clone_from(&request.route);
        admit(routes, &request)?;
        run(request).await
    };
    let handled = AssertUnwindSafe(handled).catch_unwind().await.unwrap_or_else(|_| Err(Problem::internal()));
    let handled =
        handled.map_err(|problem| if may_ask_again { problem } else { problem.without_key(&invocation.request_id) });
    let request_id = &invocation.request_id;
    let (status, code, cause) = match &handled {
        Ok(answer) => (answer.status(), "ok", None),
        Err(problem) => (problem.status, problem.code.as_str(), problem.cause.as_deref()),
    };
    if status < 500 {
        tracing::info!(event = Event::RequestAnswered.as_str(), route, status, code, request_id);
    } else {
        tracing::error!(event = Event::RequestAnswered.as_str(), route, status, code, cause, request_id);
    }
    metrics::counter!(Metric::HttpRequests.as_str(), "Status" => format!("{}xx", status / 100)).increment(1);
    match handled {
        Ok(answer) => answer.into_response(request_id),
        Err(problem) => problem.into_response(request_id),
    }
}

fn admit(routes: &[Route], request: &Request) -> Result<(), Problem> {
    let Some(route) = routes.iter().find(|route| route.key == request.route) else {
        return Err(Problem::not_found("there is no such route"));
    };
    if let Access::Scope(scope) = route.access
        && !allows(request.caller()?.scopes.iter().map(String::as_str), scope)
    {
        let detail = format!("the key has no scope that covers `{}`", scope.0);
        return Err(Problem::new(403, ProblemCode::MissingScope, detail));
    }
    check_query(route.query, request)
}

/// Rejects unknown query parameters: `?dry_run=1` must not send anything.
fn check_query(query: QueryParameters, request: &Request) -> Result<(), Problem> {
    let QueryParameters::Only(known) = query else { return Ok(()) };
    let detail = match known {
        [] => "this route takes no parameters in the query".to_owned(),
        known => format!("is not a parameter of this route, which takes {}", known.join(", ")),
    };
    let mut unknown: Vec<_> = request.query.keys().filter(|name| !known.contains(&name.as_str())).collect();
    unknown.sort();
    let errors: Vec<_> =
        unknown.into_iter().map(|name| FieldError::new(name, FieldProblem::Unknown, detail.as_str())).collect();
    Problem::if_any(errors)
}
