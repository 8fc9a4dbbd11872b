//! Secrets from Secrets Manager. A secret is cached and read again from time to time, so that a
//! rotated secret takes effect without a deployment.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::invocation::Invocation;

const FRESH_FOR: Duration = Duration::from_secs(300);
/// A secret that does not serve is read again, but not for every request.
const REREAD_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("the secret could not be read")]
    Unavailable,
    #[error("the secret does not have the form that it should have")]
    Malformed,
}

/// One secret, parsed from its text.
pub struct Secret<T> {
    client: aws_sdk_secretsmanager::Client,
    secret_id: String,
    parse: fn(&str) -> Option<T>,
    cached: Mutex<Option<Cached<T>>>,
}

struct Cached<T> {
    read_at: Instant,
    /// A provider refused the secret: the next call reads it again.
    invalid: bool,
    value: Arc<T>,
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("secret_id", &self.secret_id).finish_non_exhaustive()
    }
}

impl<T> Secret<T> {
    pub fn new(client: aws_sdk_secretsmanager::Client, secret_id: String, parse: fn(&str) -> Option<T>) -> Self {
        Self { client, secret_id, parse, cached: Mutex::new(None) }
    }

    /// Returns the secret. It is read again if the cached one is old, invalidated, or does not pass
    /// `serves`.
    pub async fn get(&self, invocation: &Invocation, serves: impl Fn(&T) -> bool) -> Result<Arc<T>, SecretError> {
        let known = self.known(&serves);
        if let Some((value, true)) = known {
            return Ok(value);
        }
        match self.read(invocation).await {
            Ok(value) => {
                let value = Arc::new(value);
                let fresh = Cached { read_at: Instant::now(), invalid: false, value: value.clone() };
                *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh);
                Ok(value)
            }
            // If the read fails, the cached secret is used if it passes `serves`.
            Err(error) => known.map(|(value, _)| value).filter(|value| serves(value)).ok_or(error),
        }
    }

    /// Drops the cached secret after a 401; the next read fetches it again, unless it was read a
    /// moment ago.
    pub fn invalidate(&self) {
        if let Some(cached) = self.cached.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            cached.invalid = true;
        }
    }

    /// Returns the cached secret and whether it can be used without another read.
    fn known(&self, serves: &impl Fn(&T) -> bool) -> Option<(Arc<T>, bool)> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = cached.as_ref()?;
        let age = cached.read_at.elapsed();
        let will_do = age < REREAD_AFTER || (age < FRESH_FOR && !cached.invalid && serves(&cached.value));
        Some((cached.value.clone(), will_do))
    }

    async fn read(&self, invocation: &Invocation) -> Result<T, SecretError> {
        let call = self.client.get_secret_value().secret_id(&self.secret_id).send();
        let answer = invocation.within(call).await.map_err(|_| SecretError::Unavailable)?;
        let answer = answer.map_err(|_| SecretError::Unavailable)?;
        // A parser's error may repeat the content of the secret.
        answer.secret_string().and_then(self.parse).ok_or(SecretError::Malformed)
    }
}
