//! What makes two requests the same request.

use std::collections::BTreeMap;

use umavez_domain::idempotency::{KnownBy, request_key};

use super::problem::Problem;
use super::request::Request;
use crate::invocation::Invocation;

/// The identity of a request. Two requests with the same `key` are the same request if their `body`
/// is the same too. If the `body` differs, the caller reused the key ([`Problem::key_reused`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// A hash, see [`request_key`]. Rows and keys can contain it, unlike the text of a key, which
    /// callers choose.
    pub key: String,
    /// The hash of the body's bytes.
    pub body: String,
    /// Whether the caller sent an `Idempotency-Key`. Otherwise no other request has this identity.
    pub given: bool,
}

impl Request {
    /// Returns the identity of the request: its `Idempotency-Key`, or else the id of the request,
    /// within the scope of its caller, its route and its path. The route must be one that requires
    /// an API key.
    pub fn identity(&self, invocation: &Invocation) -> Result<Identity, Problem> {
        let given = self.idempotency_key()?;
        let known_by = given.as_ref().map_or(KnownBy::Request(&invocation.request_id), KnownBy::Key);
        let path: BTreeMap<_, _> = self.path.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let key = request_key(&self.caller()?.key_id, &self.route, &path, known_by);
        Ok(Identity { key, body: self.body_hash(), given: given.is_some() })
    }
}
