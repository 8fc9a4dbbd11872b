//! Identifies the caller. For a known key that is not revoked, it returns the key's id and scopes;
//! for any other, the reason for the refusal.
//!
//! It always lets the request through to its function, whose HTTP layer answers 401 and 403 as
//! problem+json. The gateway's own refusals could not give a reason. A route that needs a key
//! refuses requests without this context.

use aws_lambda_events::apigw::{
    ApiGatewayV2CustomAuthorizerSimpleResponse as Response, ApiGatewayV2CustomAuthorizerV2Request as Request,
};
use lambda_runtime::Error;
use serde_json::{Value, json};
use umavez_domain::access::{KeyRecord, PresentedKey, bearer};
use umavez_domain::codes::ProblemCode;
use umavez_domain::telemetry::Event;
use umavez_platform::api_keys;
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::http::{CONTEXT_DENIED, CONTEXT_KEY_ID, CONTEXT_SCOPES};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Store;

#[derive(Debug)]
pub struct Deps {
    pub store: Store,
    pub config_table: String,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let store = Store::new(Aws::from_env()?.dynamodb());
        Ok(Self { store, config_table: config::required("CONFIG_TABLE")? })
    }
}

/// Returns an error, which the gateway answers with 500, if the store does not answer: no caller is
/// admitted then.
pub async fn run(deps: &Deps, invocation: &Invocation, request: Request) -> Result<Response<Value>, Error> {
    let header = request.headers.get("authorization").and_then(|value| value.to_str().ok());
    let context = match header.and_then(bearer).map(PresentedKey::of) {
        None => denied(ProblemCode::MissingKey),
        Some(presented) => {
            let found = api_keys::find(&deps.store, invocation, &deps.config_table, &presented).await?;
            match found.filter(|key| key.admits(&presented)) {
                Some(key) => admitted(&key),
                None => denied(ProblemCode::InvalidKey),
            }
        }
    };
    let outcome = context.get(CONTEXT_DENIED).and_then(Value::as_str).unwrap_or("admitted");
    tracing::info!(event = Event::KeyChecked.as_str(), outcome, request_id = invocation.request_id);
    let mut response = Response::default();
    response.is_authorized = true;
    response.context = context;
    Ok(response)
}

fn admitted(key: &KeyRecord) -> Value {
    json!({CONTEXT_KEY_ID: key.key_id, CONTEXT_SCOPES: key.scopes.join(" ")})
}

fn denied(problem: ProblemCode) -> Value {
    json!({CONTEXT_DENIED: problem})
}
