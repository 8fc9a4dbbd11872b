//! What the providers would have received: Telegram's Bot API, Evolution API v2 for WhatsApp, SES
//! v2 for email, and a responder that is asked what to say. Each request is answered as its
//! provider would answer it, and kept whole but for the secrets in it. What the responder was asked
//! is no message that went out: it is listed only for who names it.
//!
//! - `request`: a request as it came, its parameters in whatever form, and its secrets masked.
//! - `telegram`, `evolution`, `ses`, `responder`: per provider, to whom a request goes and what the
//!   answer to it is. They keep nothing and decide nothing else.
//!
//! Every request goes through `Catcher::take`: whoever wants a provider to fail, to stall or to
//! lose an answer begins there, and finds both the request and what would have been the answer.

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
    /// Counts from 1, over all channels; `clear` does not begin anew.
    pub number: u64,
    /// `telegram`, `whatsapp`, `email` or `responder`.
    pub channel: &'static str,
    /// RFC 3339, by the clock of the stack.
    pub at: String,
    pub caller: String,
    /// Chat ids, telephone numbers, addresses, or the batch that a responder is asked about: as far
    /// as the request names any.
    pub to: Vec<String>,
    pub method: String,
    /// With the query, if there is one.
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// The JSON of the request, or `{"raw": text}`.
    pub body: Value,
    pub status: u16,
    pub answer: Value,
}

/// What the provider answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Caught {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

/// A handle: clones are cheap and mean the same catcher.
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

/// What the catcher has to know of a provider.
struct Provider {
    channel: &'static str,
    /// Whether what it gets are messages to somebody, which count as sent.
    goes_out: bool,
    read: fn(&Request, Stamp) -> Reading,
    /// Whether a segment of a path holds a secret.
    is_secret: fn(&str) -> bool,
}

/// A provider's view of one request: to whom it goes, and the answer.
struct Reading {
    to: Vec<String>,
    answer: Caught,
}

/// What makes one answer different from the next: the request's number and its moment.
#[derive(Clone, Copy)]
struct Stamp {
    number: u64,
    at_ms: i64,
}

impl Catcher {
    /// `now` gives milliseconds since the epoch.
    pub fn new(now: Arc<dyn Fn() -> i64 + Send + Sync>) -> Catcher {
        Catcher::with_capacity(now, CAPACITY)
    }

    /// Keeps no more than `capacity` requests: the oldest make room.
    pub fn with_capacity(now: Arc<dyn Fn() -> i64 + Send + Sync>, capacity: usize) -> Catcher {
        Catcher(Arc::new(Shared { now, capacity, kept: Mutex::default() }))
    }

    /// `/bot<token>/<method>` of the Bot API.
    pub fn telegram(&self, caller: &str, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Caught {
        self.take(&telegram::PROVIDER, caller, &Request::new(method, path, headers, body))
    }

    /// `/message/sendText/{instance}` and `/message/sendMedia/{instance}` of Evolution API v2.
    pub fn evolution(&self, caller: &str, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Caught {
        self.take(&evolution::PROVIDER, caller, &Request::new(method, path, headers, body))
    }

    /// `POST /v2/email/outbound-emails` of SES v2.
    pub fn ses(&self, caller: &str, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Caught {
        self.take(&ses::PROVIDER, caller, &Request::new(method, path, headers, body))
    }

    /// `POST` of JSON to a responder, at any path.
    pub fn responder(&self, caller: &str, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Caught {
        self.take(&responder::PROVIDER, caller, &Request::new(method, path, headers, body))
    }

    /// What was received, the oldest first: all that went out, or that of one channel, or to one
    /// address. What the responder was asked did not go out: its channel has to be named.
    pub fn sent(&self, channel: Option<&str>, to: Option<&str>) -> Vec<Sent> {
        let kept = self.kept();
        let is_listed = |one: &&Received| channel.map_or(one.goes_out, |channel| one.sent.channel == channel);
        let listed = kept.received.iter().filter(is_listed).map(|one| &one.sent);
        listed.filter(|sent| to.is_none_or(|to| sent.to.iter().any(|one| one == to))).cloned().collect()
    }

    /// How many requests had to make room for newer ones, ever.
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
        // A panic elsewhere does not spoil a list of what is past.
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
