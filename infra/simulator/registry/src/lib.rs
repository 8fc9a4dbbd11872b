//! The functions of the product, by the name of their program.
//!
//! A crate of its own, because the code of all functions is compiled where they are polled: changes
//! of the simulator do not compile it again.

use std::rc::Rc;
use std::sync::Arc;

use futures::future::LocalBoxFuture;
use lambda_http::Body;
use lambda_http::http::Response;
use lambda_http::request::LambdaRequest;
use lambda_runtime::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use umavez_platform::config::ConfigError;
use umavez_platform::http::{self, Answer, Problem, Request, Route};
use umavez_platform::invocation::Invocation;

pub type Handler = Rc<dyn Fn(Invocation, Value) -> LocalBoxFuture<'static, Result<Value, String>>>;

/// Starts an instance of a function: builds its dependencies from the host.
pub fn start(binary: &str) -> Handler {
    match binary {
        "outbound-api" => http(outbound_api::ROUTES, outbound_api::Deps::from_env, outbound_api::run),
        "admin" => http(admin::ROUTES, admin::Deps::from_env, admin::run),
        "webhook-intake" => http(webhook_intake::ROUTES, webhook_intake::Deps::from_env, webhook_intake::run),
        "conversations-api" => {
            http(conversations_api::ROUTES, conversations_api::Deps::from_env, conversations_api::run)
        }
        "ingest" => http(ingest::ROUTES, ingest::Deps::from_env, ingest::run),
        "backfill-worker" => events(backfill_worker::Deps::from_env, backfill_worker::run),
        "conversation-worker" => events(conversation_worker::Deps::from_env, conversation_worker::run),
        "downsell-sweep" => events(downsell_sweep::Deps::from_env, downsell_sweep::run),
        "mailings-api" => http(mailings_api::ROUTES, mailings_api::Deps::from_env, mailings_api::run),
        "mailing-importer" => events(mailing_importer::Deps::from_env, mailing_importer::run),
        "mailing-sender" => events(mailing_sender::Deps::from_env, mailing_sender::run),
        "outbound-sender" => events(outbound_sender::Deps::from_env, outbound_sender::run),
        "outbound-sweep" => events(outbound_sweep::Deps::from_env, outbound_sweep::run),
        "outbox-relay" => events(outbox_relay::Deps::from_env, outbox_relay::run),
        "recovery" => events(recovery::Deps::from_env, recovery::run),
        "intent-expiry" => events(intent_expiry::Deps::from_env, intent_expiry::run),
        "delivery-events" => events(delivery_events::Deps::from_env, delivery_events::run),
        other => panic!("the simulator does not know the function {other}"),
    }
}

fn events<D, E, R, F>(deps: fn() -> Result<D, ConfigError>, run: F) -> Handler
where
    D: 'static,
    E: DeserializeOwned + 'static,
    R: Serialize,
    F: AsyncFn(&D, &Invocation, E) -> Result<R, Error> + Copy + 'static,
{
    let deps = Rc::new(deps().expect("the template configures its functions"));
    Rc::new(move |invocation, event| {
        let deps = deps.clone();
        Box::pin(async move {
            let event = serde_json::from_value(event).map_err(|error| error.to_string())?;
            let answer = run(&deps, &invocation, event).await.map_err(|error| error.to_string())?;
            serde_json::to_value(answer).map_err(|error| error.to_string())
        })
    })
}

fn http<D: 'static>(
    routes: &'static [Route],
    deps: fn() -> Result<D, ConfigError>,
    run: impl AsyncFn(Arc<D>, Arc<Invocation>, Request) -> Result<Answer, Problem> + Copy + 'static,
) -> Handler {
    let deps = Arc::new(deps().expect("the template configures its functions"));
    Rc::new(move |invocation, event| {
        let deps = deps.clone();
        Box::pin(async move {
            let request: LambdaRequest = serde_json::from_value(event).map_err(|error| error.to_string())?;
            let invocation = Arc::new(invocation);
            let run = async |request| run(deps, invocation.clone(), request).await;
            let response = http::answer(routes, &invocation, request.into(), run).await;
            Ok(answer(response))
        })
    })
}

/// Returns the status and the JSON of a response.
fn answer(response: Response<Body>) -> Value {
    let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
    let is_replayed = response.headers().contains_key("idempotency-replayed");
    json!({"status": response.status().as_u16(), "body": body, "replayed": is_replayed})
}
