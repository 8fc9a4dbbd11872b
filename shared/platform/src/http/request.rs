//! A request, read once: its route, its parameters, its body, and the caller that the authorizer
//! identified.

use std::collections::HashMap;

use lambda_http::request::RequestContext;
use lambda_http::{Body, RequestExt};
use serde_json::{Map, Value};
use umavez_domain::access::KeyId;
use umavez_domain::codes::ProblemCode;
use umavez_domain::idempotency::{IdempotencyKey, body_hash};

use super::Route;
use super::problem::Problem;

/// The largest body that a JSON route accepts.
pub const MAX_BODY: usize = 256 * 1024;

/// The names in the authorizer's context. The authorizer uses the same constants.
pub const CONTEXT_KEY_ID: &str = "key_id";
pub const CONTEXT_SCOPES: &str = "scopes";
pub const CONTEXT_DENIED: &str = "denied";

#[derive(Debug, Clone)]
pub struct Caller {
    pub key_id: KeyId,
    pub scopes: Vec<String>,
}

#[derive(Debug)]
pub struct Request {
    pub route: String,
    pub path: HashMap<String, String>,
    pub query: HashMap<String, String>,
    headers: lambda_http::http::HeaderMap,
    body: Vec<u8>,
    caller: Result<Caller, ProblemCode>,
}

impl Request {
    pub(super) fn read(routes: &[Route], request: lambda_http::Request) -> Result<Self, Problem> {
        let (route, caller) = match request.request_context_ref() {
            Some(RequestContext::ApiGatewayV2(context)) => {
                let authorizer = context.authorizer.as_ref().map(|authorizer| &authorizer.fields);
                (context.route_key.clone().unwrap_or_default(), caller(authorizer))
            }
            _ => (String::new(), Err(ProblemCode::MissingKey)),
        };
        let path = request.path_parameters_ref().map(single_values).unwrap_or_default();
        let query = request.query_string_parameters_ref().map(single_values).unwrap_or_default();
        let (parts, body) = request.into_parts();
        let body = match body {
            Body::Text(text) => text.into_bytes(),
            Body::Binary(bytes) => bytes,
            _ => Vec::new(),
        };
        let takes = routes.iter().find(|known| known.key == route).map_or(MAX_BODY, |known| known.takes);
        if body.len() > takes {
            let detail = format!("the body has more than {takes} bytes");
            return Err(Problem::new(413, ProblemCode::BodyTooLarge, detail));
        }
        Ok(Self { route, path, query, headers: parts.headers, body, caller })
    }

    pub fn caller(&self) -> Result<&Caller, Problem> {
        self.caller.as_ref().map_err(|code| {
            let detail = match code {
                ProblemCode::MissingKey => "send `Authorization: Bearer <key>`",
                _ => "the key is not known, or was revoked",
            };
            Problem::new(401, *code, detail)
        })
    }

    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the media type of the body in lower case, without parameters.
    pub fn media_type(&self) -> String {
        let kind = self.header("content-type").unwrap_or_default();
        kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// Returns the body as a JSON object; an empty object if the body is empty, for routes where it
    /// is optional.
    pub fn object_or_nothing(&self) -> Result<Map<String, Value>, Problem> {
        if self.body.is_empty() { Ok(Map::new()) } else { self.object() }
    }

    /// Returns the body as a JSON object.
    pub fn object(&self) -> Result<Map<String, Value>, Problem> {
        if self.media_type() != "application/json" {
            return Err(Problem::new(
                415,
                ProblemCode::UnsupportedMediaType,
                "send the body as `content-type: application/json`",
            ));
        }
        if self.body.is_empty() {
            return Err(Problem::new(400, ProblemCode::InvalidJson, "the body is empty"));
        }
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(Problem::new(400, ProblemCode::InvalidJson, "the body must be a JSON object")),
            Err(error) => {
                let detail = format!("the body is not JSON: line {}, column {}", error.line(), error.column());
                Err(Problem::new(400, ProblemCode::InvalidJson, detail))
            }
        }
    }

    pub fn body_hash(&self) -> String {
        body_hash(&self.body)
    }

    pub fn idempotency_key(&self) -> Result<Option<IdempotencyKey>, Problem> {
        let Some(value) = self.headers.get("idempotency-key") else { return Ok(None) };
        match value.to_str().ok().and_then(IdempotencyKey::parse) {
            Some(key) => Ok(Some(key)),
            None => {
                let detail = "an Idempotency-Key has 1 to 255 visible ASCII characters";
                Err(Problem::new(400, ProblemCode::InvalidIdempotencyKey, detail))
            }
        }
    }
}

fn caller(context: Option<&HashMap<String, Value>>) -> Result<Caller, ProblemCode> {
    let word = |name: &str| context.and_then(|context| context.get(name)).and_then(Value::as_str);
    let key_id = word(CONTEXT_KEY_ID).and_then(KeyId::parse);
    match (key_id, word(CONTEXT_DENIED)) {
        (Some(key_id), None) => {
            let scopes = word(CONTEXT_SCOPES).unwrap_or_default().split_whitespace().map(str::to_owned).collect();
            Ok(Caller { key_id, scopes })
        }
        (_, Some(denied)) if denied == ProblemCode::InvalidKey.as_str() => Err(ProblemCode::InvalidKey),
        // This also applies if there is no authorizer: a route that lost its authorizer in a
        // deployment is closed, not open.
        _ => Err(ProblemCode::MissingKey),
    }
}

fn single_values(map: &lambda_http::aws_lambda_events::query_map::QueryMap) -> HashMap<String, String> {
    map.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
