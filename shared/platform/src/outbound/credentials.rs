//! What senders sign with: one secret, `{"telegram": {"<sender>": "<token>"}, "whatsapp": {"<instance>": "<api key>"}}`,
//! read once and again from time to time, so that a rotated token is taken up without a deployment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use umavez_domain::outbound::Channel;

use crate::invocation::Invocation;

const FRESH_FOR: Duration = Duration::from_secs(300);
/// After a refusal, or for a sender that is not there, the secret is read again, but not for every message.
const REREAD_AFTER: Duration = Duration::from_secs(5);

type Secrets = BTreeMap<Channel, BTreeMap<String, String>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    #[error("the secret could not be read")]
    Unavailable,
    #[error("the secret is not an object of channels with senders")]
    Malformed,
}

pub struct Senders {
    pub client: aws_sdk_secretsmanager::Client,
    pub secret_id: String,
    cached: Mutex<Option<Cached>>,
}

#[derive(Clone)]
struct Cached {
    read_at: Instant,
    doubted: bool,
    secrets: Secrets,
}

impl fmt::Debug for Senders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Senders").field("secret_id", &self.secret_id).finish_non_exhaustive()
    }
}

impl Senders {
    pub fn new(client: aws_sdk_secretsmanager::Client, secret_id: String) -> Self {
        Self { client, secret_id, cached: Mutex::new(None) }
    }

    /// The credential of a sender; none if there is no such sender.
    pub async fn of(
        &self,
        invocation: &Invocation,
        channel: Channel,
        sender: &str,
    ) -> Result<Option<String>, CredentialsError> {
        let find = |secrets: &Secrets| secrets.get(&channel).and_then(|senders| senders.get(sender)).cloned();
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(cached) = &cached {
            let age = cached.read_at.elapsed();
            let found = find(&cached.secrets);
            if age < REREAD_AFTER || (age < FRESH_FOR && !cached.doubted && found.is_some()) {
                return Ok(found);
            }
        }
        match self.read(invocation).await {
            Ok(secrets) => {
                let found = find(&secrets);
                let fresh = Cached { read_at: Instant::now(), doubted: false, secrets };
                *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh);
                Ok(found)
            }
            // What was read before is better than nothing.
            Err(error) => match cached.as_ref().and_then(|cached| find(&cached.secrets)) {
                Some(found) => Ok(Some(found)),
                None => Err(error),
            },
        }
    }

    /// A provider refused what was read: it is read again before long.
    pub fn doubt(&self) {
        if let Some(cached) = self.cached.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            cached.doubted = true;
        }
    }

    async fn read(&self, invocation: &Invocation) -> Result<Secrets, CredentialsError> {
        let call = self.client.get_secret_value().secret_id(&self.secret_id).send();
        let answer = invocation.within(call).await.map_err(|_| CredentialsError::Unavailable)?;
        let answer = answer.map_err(|_| CredentialsError::Unavailable)?;
        let text = answer.secret_string().unwrap_or_default();
        // The error's own text may repeat what is in the secret.
        serde_json::from_str(text).map_err(|_| CredentialsError::Malformed)
    }
}
