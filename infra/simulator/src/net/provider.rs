//! Calls to providers. Each call is recorded with the provider's reaction, also if the caller gets
//! no answer.

use std::sync::Arc;
use std::time::Duration;

use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use tokio::time::sleep;
use umavez_local::email_events;

use super::{Net, response};
use crate::outside::{Outside, respond};
use crate::providers::{Heard, Reaction, recipient, text_of};

impl Net {
    pub(super) async fn carry_to_provider(
        &self,
        instance: &Arc<str>,
        path: &str,
        request: &HttpRequest,
    ) -> Result<HttpResponse, ConnectorError> {
        let (provider, path) = path.split_once('/').unwrap_or((path, ""));
        let body = bytes::Bytes::from(request.body().bytes().unwrap_or_default().to_vec());
        let text = text_of(provider, &body);
        let decision = self.decision(&format!("{provider} hears {}", shortened(&text)));
        let mut dice = self.dice().of(&decision);
        let reaction = match self.strikes(&decision, self.profile().providers) {
            true => Reaction::draw(&mut dice),
            false => Reaction::Accepts,
        };
        let begun_ms = self.elapsed_ms();
        sleep(Duration::from_millis(dice.u64(1..=400))).await;
        let longest = self.profile().retry_after_seconds;
        let retry_after = if dice.bool() { 3.min(longest) } else { dice.u64(0..=longest) };
        self.note(&format!("{instance} {provider} hears {:?}: {reaction:?}", shortened(&text)));
        let heard = Heard {
            at_ms: self.elapsed_ms(),
            begun_ms,
            instance: instance.clone(),
            provider: provider.to_owned(),
            to: recipient(provider, &body),
            text,
            reaction,
            parks_s: (reaction == Reaction::Throttles).then_some(retry_after),
        };
        self.state().heard.push(heard);
        if let Some((status, body)) = reaction.refusal(provider, retry_after) {
            let mut refusal = response(status, body.to_string().into_bytes());
            // SES names its errors in a header.
            if let Some(kind) = body["__type"].as_str() {
                refusal.headers_mut().insert("x-amzn-errortype", kind.to_owned());
            }
            return Ok(refusal);
        }
        if reaction == Reaction::NeverHears {
            return Err(ConnectorError::io("the connection was closed".into()));
        }
        let answer = match provider {
            "responder" => self.ask_responder(&body, &mut dice),
            _ => self.accept(instance, provider, path, request, &body, &decision),
        };
        match reaction {
            Reaction::AcceptsSilently => Err(ConnectorError::io("the connection was closed".into())),
            Reaction::AcceptsLate => {
                sleep(Duration::from_secs(60)).await;
                Err(ConnectorError::io("the connection was closed".into()))
            }
            _ => Ok(answer),
        }
    }

    fn ask_responder(&self, body: &[u8], dice: &mut fastrand::Rng) -> HttpResponse {
        let question = serde_json::from_slice(body).unwrap_or_default();
        let (status, answer, later) = respond(&question, dice);
        if let Some(reply) = later {
            self.state().outside.push_back(reply);
            self.wake();
        }
        response(status, answer.to_string().into_bytes())
    }

    /// Lets the catcher of the local stack answer, as the provider would.
    fn accept(
        &self,
        instance: &str,
        provider: &str,
        path: &str,
        request: &HttpRequest,
        body: &bytes::Bytes,
        decision: &str,
    ) -> HttpResponse {
        let mut headers = http::HeaderMap::new();
        for (name, value) in request.headers() {
            if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(name), http::HeaderValue::try_from(value)) {
                headers.append(name, value);
            }
        }
        let (method, path) = (http::Method::POST, format!("/{path}"));
        let catcher = &self.0.catcher;
        let caught = match provider {
            "telegram" => catcher.telegram(instance, &method, &path, &headers, body),
            "evolution" => {
                let caught = catcher.evolution(instance, &method, &path, &headers, body);
                if let Some(key) = caught.body["key"]["id"].as_str() {
                    let (key, to, text) = (key.to_owned(), recipient(provider, body), text_of(provider, body));
                    self.state().outside.push_back(Outside::Echo { key, to, text });
                    self.wake();
                }
                caught
            }
            "ses" => {
                let caught = catcher.ses(instance, &method, &path, &headers, body);
                let events = email_events::to_queues(self.0.model, body, &caught, self.now_ms());
                for (number, (queue, event)) in events.into_iter().enumerate() {
                    self.report(&queue, &event, &format!("event {number} of {decision}"));
                }
                caught
            }
            other => panic!("the simulator has no provider {other}"),
        };
        response(caught.status, caught.body.to_string().into_bytes())
    }

    /// Puts an event into a queue, as SES and S3 do: after a while, so that events arrive in any
    /// order, and now and then twice or not at all.
    pub(super) fn report(&self, queue: &str, event: &str, decision: &str) {
        let mut dice = self.dice().of(decision);
        let delay_ms = if dice.bool() { dice.i64(1..2_000) } else { dice.i64(1..120_000) };
        let is_lost = self.strikes(&format!("lost {decision}"), self.profile().deliveries);
        let is_doubled = self.strikes(&format!("twice {decision}"), self.profile().deliveries);
        if is_lost {
            self.note_lost(event);
        }
        let times = if is_lost { 0 } else { 1 + usize::from(is_doubled) };
        for time in 0..times {
            let delay_ms = delay_ms + if time == 0 { 0 } else { dice.i64(1..60_000) };
            let now_ms = self.now_ms();
            let attributes = serde_json::Value::Null;
            self.with_queues(|queues| queues.put(queue, event.to_owned(), attributes, now_ms, delay_ms));
        }
        self.wake();
    }
}

/// Returns the beginning of a text, for names and traces.
fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}
