//! Callers of the API. They retry a request that has no answer with the same `Idempotency-Key`, as
//! callers should.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use umavez_local::model::Model;

use crate::lambda::{Failure, Lambda};
use crate::net::Net;

/// An answer that a caller got.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u64,
    pub body: Value,
    /// When the answer arrived, in milliseconds of the play.
    pub at_ms: u64,
}

#[derive(Clone)]
pub struct Client {
    pub model: &'static Model,
    pub net: Net,
    pub lambda: Lambda,
    pub name: String,
}

/// How often a caller tries.
const TRIES: u64 = 4;
/// How often a provider delivers a webhook.
const DELIVERIES: u64 = 12;

impl Client {
    /// Sends a request until it is answered with anything but a 5xx. Returns `None` if the caller
    /// gives up: then it does not know whether the request was carried out.
    pub async fn request(&self, method: &str, path: &str, key: Option<&str>, body: Option<&Value>) -> Option<Answer> {
        let headers: Vec<_> = key.map(|key| ("idempotency-key", key.to_owned())).into_iter().collect();
        self.send(method, path, &headers, body.map(Value::to_string), TRIES).await
    }

    /// Delivers a webhook, as a provider does: again and again until it is accepted.
    pub async fn webhook(&self, path: &str, headers: &[(&str, String)], body: &Value) -> Option<Answer> {
        self.send("POST", path, headers, Some(body.to_string()), DELIVERIES).await
    }

    /// Sends a request so many times at most.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Option<String>,
        tries: u64,
    ) -> Option<Answer> {
        let (route, function, parameters) = route(self.model, method, path);
        for attempt in 1..=tries {
            let event = self.event(method, path, &route, &parameters, headers, body.as_deref());
            let answered = self.invoke(&function, event).await;
            let shown = match &answered {
                Ok(answer) => format!("{} {}", answer["status"], answer["body"]),
                Err(failure) => format!("no answer: {failure:?}"),
            };
            self.net.note(&format!("{} {method} {path} -> {shown}", self.name));
            if let Ok(answer) = answered
                && let Some(status) = answer["status"].as_u64().filter(|status| *status < 500)
            {
                return Some(Answer { status, body: answer["body"].clone(), at_ms: self.net.elapsed_ms() });
            }
            sleep(Duration::from_millis(700 * attempt)).await;
        }
        None
    }

    /// Invokes a function through the gateway, which now and then stops waiting while the function
    /// goes on.
    async fn invoke(&self, function: &str, event: Value) -> Result<Value, Failure> {
        let decision = self.net.decision(&format!("gateway to {function}"));
        let mut dice = self.net.dice().of(&decision);
        if !self.net.strikes(&decision, self.net.profile().kills) {
            return self.lambda.invoke(function, event).await;
        }
        let (lambda, function) = (self.lambda.clone(), function.to_owned());
        let running = tokio::task::spawn_local(async move { lambda.invoke(&function, event).await });
        match timeout(Duration::from_millis(dice.u64(1..300)), running).await {
            Ok(answered) => answered.unwrap_or_else(|error| Err(Failure::Failed(error.to_string()))),
            Err(_) => Err(Failure::TimedOut),
        }
    }

    fn event(
        &self,
        method: &str,
        path: &str,
        route: &str,
        parameters: &Value,
        given: &[(&str, String)],
        body: Option<&str>,
    ) -> Value {
        let mut headers = json!({"content-type": "application/json", "host": "api.local"});
        for (name, value) in given {
            headers[*name] = json!(value);
        }
        let (raw, query) = path.split_once('?').unwrap_or((path, ""));
        let scopes = "intents outbound ingest mailings conversations downsells";
        json!({
            "version": "2.0", "routeKey": route, "rawPath": raw, "rawQueryString": query, "headers": headers,
            "pathParameters": parameters, "isBase64Encoded": false, "body": body,
            "requestContext": {
                "accountId": "000000000000", "apiId": "local-api", "domainName": "api.local", "domainPrefix": "api",
                "http": {
                    "method": method, "path": raw, "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1", "userAgent": "",
                },
                "requestId": "request", "routeKey": route, "stage": "$default", "time": "",
                "timeEpoch": self.net.now_ms(),
                "authorizer": {"lambda": {"key_id": "0123456789abcdef", "scopes": scopes}},
            },
        })
    }
}

/// Returns the route of a request: its key, the function that serves it, and its path parameters.
fn route(model: &Model, method: &str, path: &str) -> (String, String, Value) {
    let path = path.split('?').next().unwrap_or(path);
    let words: Vec<_> = path.split('/').collect();
    let api = model.api.as_ref().expect("the template has an API");
    for route in api.routes.iter().filter(|route| route.method == method) {
        let pattern: Vec<_> = route.path.split('/').collect();
        let fits = |(wanted, word): (&&str, &&str)| wanted.starts_with('{') || wanted == word;
        if pattern.len() == words.len() && pattern.iter().zip(&words).all(fits) {
            let parameters = pattern.iter().zip(&words).filter(|(wanted, _)| wanted.starts_with('{'));
            let parameters: Value =
                parameters.map(|(name, word)| (name.trim_matches(['{', '}']).to_owned(), Value::from(*word))).collect();
            return (format!("{method} {}", route.path), route.function.clone(), parameters);
        }
    }
    panic!("the template has no route {method} {path}");
}
