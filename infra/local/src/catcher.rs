//! Stands in for the providers: Telegram's Bot API, Evolution API v2 for WhatsApp, SES v2 for
//! email, and a responder that returns the reply to a batch of messages. The catcher answers each
//! request as its provider would and records the complete request with its secrets masked. Requests
//! to the responder are not outgoing messages: [`Catcher::sent`] lists them only if the channel is
//! named.
//!
//! - `request`: a request as it arrived, its parameters (query, JSON, form or multipart), and the
//!   masking of its secrets.
//! - `telegram`, `evolution`, `ses`, `responder`: for each provider, the recipients of a request
//!   and the answer to it. These modules have no state and make no other decision.
//!
//! Every request goes through `Catcher::take`, which has both the request and its normal answer.
//! The front injects faults (an error, a delay, a lost answer) around the call to the catcher.

mod evolution;
mod request;
mod responder;
pub(crate) mod ses;
mod telegram;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::http::{HeaderMap, Method};
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use self::request::Request;

const CAPACITY: usize = 100_000;

/// One request to a provider.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sent {
    /// Counts from 1 over all channels. `clear` does not reset it.
    pub number: u64,
    /// `telegram`, `whatsapp`, `email` or `responder`.
    pub channel: &'static str,
    /// RFC 3339, in the time of the stack's clock.
    pub at: String,
    pub caller: String,
    /// The chat ids, telephone numbers or addresses that the request names, or the id of the batch
    /// that a responder is asked about. Empty if the request names none.
    pub to: Vec<String>,
    pub method: String,
    /// Includes the query, if there is one.
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// The JSON of the request, or `{"raw": text}` if it is not JSON.
    pub body: Value,
    pub status: u16,
    pub answer: Value,
}

/// The answer of a provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Caught {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

/// A handle: clones are cheap and share one catcher.
#[derive(Clone)]
pub struct Catcher(Arc<Shared>);

struct Shared {
    now: Arc<dyn Fn() -> i64 + Send + Sync>,
    capacity: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    received: VecDeque<Received>,
    last: u64,
    dropped: u64,
}

struct Received {
    sent: Sent,
    goes_out: bool,
}

/// How the catcher handles one provider.
struct Provider {
    channel: &'static str,
    /// Whether requests to this provider are messages to a recipient, which count as sent.
    goes_out: bool,
    read: fn(&Request, Stamp) -> Reading,
    /// Returns whether a segment of the path contains a secret.
    is_secret: fn(&str) -> bool,
}

/// What a provider reads from one request: its recipients and the answer to it.
struct Reading {
    to: Vec<String>,
    answer: Caught,
}

/// The number and the time of a request. They make its answer unique.
#[derive(Clone, Copy)]
struct Stamp {
    number: u64,
    at_ms: i64,
}

impl Catcher {
    /// `now` returns milliseconds since the epoch.
    pub fn new(now: Arc<dyn Fn() -> i64 + Send + Sync>) -> Catcher {
        Catcher::with_capacity(now, CAPACITY)
    }

    /// Keeps at most `capacity` requests and drops the oldest ones first.
    pub fn with_capacity(now: Arc<dyn Fn() -> i64 + Send + Sync>, capacity: usize) -> Catcher {
        Catcher(Arc::new(Shared { now, capacity, kept: Mutex::default() }))
    }

    /// Answers `/bot<token>/<method>` of the Bot API.
    pub fn telegram(&self, caller: &str, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Caught {
        self.take(&telegram::PROVIDER, caller, &Request::new(method, path, headers, body))
    }

    /// Answers `/message/sendText/{instance}` and `/message/sendMedia/{instance}` of Evolution API
    /// v2.
    pub fn evolution(&self, caller: &str, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Caught {
        self.take(&evolution::PROVIDER, caller, &Request::new(method, path, headers, body))
    }

    /// Answers `POST /v2/email/outbound-emails` of SES v2.
    pub fn ses(&self, caller: &str, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Caught {
        self.take(&ses::PROVIDER, caller, &Request::new(method, path, headers, body))
    }

    /// Answers a `POST` of JSON to a responder, at any path.
    pub fn responder(&self, caller: &str, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Caught {
        self.take(&responder::PROVIDER, caller, &Request::new(method, path, headers, body))
    }

    /// Returns the recorded requests, oldest first: all outgoing messages, those of one channel, or
    /// those to one address. Requests to the responder are not outgoing messages, so they are
    /// returned only if `channel` names the responder.
    pub fn sent(&self, channel: Option<&str>, to: Option<&str>) -> Vec<Sent> {
        let kept = self.kept();
        let is_listed = |one: &&Received| channel.map_or(one.goes_out, |channel| one.sent.channel == channel);
        let listed = kept.received.iter().filter(is_listed).map(|one| &one.sent);
        listed.filter(|sent| to.is_none_or(|to| sent.to.iter().any(|one| one == to))).cloned().collect()
    }

    /// Returns how many requests were dropped since the start because the capacity was reached.
    pub fn dropped(&self) -> u64 {
        self.kept().dropped
    }

    pub fn clear(&self) {
        self.kept().received.clear();
    }

    fn take(&self, provider: &Provider, caller: &str, request: &Request) -> Caught {
        let at_ms = (self.0.now)();
        let mut kept = self.kept();
        kept.last += 1;
        let number = kept.last;
        let Reading { to, answer } = (provider.read)(request, Stamp { number, at_ms });
        let sent = Sent {
            number,
            channel: provider.channel,
            at: rfc3339(at_ms),
            caller: caller.to_owned(),
            to,
            method: request.method.clone(),
            path: request.masked_target(provider.is_secret),
            headers: request.masked_headers(),
            body: request.body.clone(),
            status: answer.status,
            answer: answer.body.clone(),
        };
        kept.received.push_back(Received { sent, goes_out: provider.goes_out });
        while kept.received.len() > self.0.capacity {
            kept.received.pop_front();
            kept.dropped += 1;
        }
        answer
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // The list is consistent at all times, so a panic of another holder of the lock does no
        // harm.
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Caught {
    fn json(status: u16, body: Value) -> Caught {
        Caught { status, headers: vec![("content-type".to_owned(), "application/json".to_owned())], body }
    }
}

impl Stamp {
    fn seconds(self) -> i64 {
        self.at_ms.div_euclid(1000)
    }
}

fn rfc3339(at_ms: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000);
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}
