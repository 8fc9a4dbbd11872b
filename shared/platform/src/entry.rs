//! The process of a function: it sets up telemetry and a runtime, builds the dependencies once, and
//! then handles one invocation after another.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use lambda_http::RequestExt;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde::Serialize;
use serde::de::DeserializeOwned;
use umavez_domain::telemetry::Event;

use crate::clock::Clock;
use crate::config::ConfigError;
use crate::http::{self, Answer, Problem, Request, Route};
use crate::invocation::Invocation;
use crate::telemetry;

/// Serves HTTP routes.
pub fn serve_http<D, F, Fut>(
    routes: &'static [Route],
    deps: fn() -> Result<D, ConfigError>,
    run: F,
) -> Result<(), Error>
where
    D: Send + Sync + 'static,
    F: Fn(Arc<D>, Arc<Invocation>, Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Answer, Problem>> + Send,
{
    process(deps, async move |deps, clock| {
        let run = &run;
        let handle = service_fn(|request: lambda_http::Request| {
            let deps = deps.clone();
            async move {
                let invocation = Arc::new(Invocation::of_lambda(&request.lambda_context(), clock));
                // The future is boxed, here and below: without it the nested types of handler and
                // runtime are too deep to compile.
                let run = |request| Box::pin(run(deps, invocation.clone(), request));
                let answered = http::answer(routes, &invocation, request, run).await;
                telemetry::flush();
                Ok::<_, Error>(answered)
            }
        });
        lambda_http::run(handle).await
    })
}

/// Serves events of one type.
pub fn serve_events<D, E: DeserializeOwned, R: Serialize>(
    deps: fn() -> Result<D, ConfigError>,
    run: impl AsyncFn(&D, &Invocation, E) -> Result<R, Error>,
) -> Result<(), Error> {
    process(deps, async move |deps, clock| {
        let run = &run;
        let handle = service_fn(|event: LambdaEvent<E>| {
            let deps = deps.clone();
            async move {
                let invocation = Invocation::of_lambda(&event.context, clock);
                let handled = AssertUnwindSafe(Box::pin(run(&deps, &invocation, event.payload))).catch_unwind().await;
                telemetry::flush();
                // The runtime would report the panic's message, which may contain any data.
                handled.unwrap_or_else(|_| Err("panicked".into()))
            }
        });
        lambda_runtime::run(handle).await
    })
}

/// Runs the process. A current-thread runtime is enough, because a process has one invocation at a
/// time.
fn process<D, S>(deps: fn() -> Result<D, ConfigError>, serve: S) -> Result<(), Error>
where
    S: AsyncFnOnce(Arc<D>, Clock) -> Result<(), Error>,
{
    telemetry::init(std::any::type_name::<D>())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let started = runtime.block_on(async {
        let deps = Arc::new(deps()?);
        Box::pin(serve(deps, Clock::from_env()?)).await
    });
    if let Err(error) = &started {
        let variable = error.downcast_ref::<ConfigError>().map(ConfigError::variable);
        tracing::error!(event = Event::FunctionNotStarted.as_str(), variable, cause = %error);
    }
    started
}
