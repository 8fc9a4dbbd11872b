//! What links of unsubscribing are signed with: one secret, `{"current": "…", "previous": "…"}`. The previous one is still
//! believed, because links in mailboxes live for years.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::aws::Aws;
use crate::config::{self, ConfigError};
use crate::invocation::Invocation;

const FRESH_FOR: Duration = Duration::from_secs(300);

pub struct LinkSecrets {
    client: aws_sdk_secretsmanager::Client,
    secret_id: String,
    cached: Mutex<Option<(Instant, Signing)>>,
}

#[derive(Clone, Deserialize)]
pub struct Signing {
    pub current: String,
    pub previous: Option<String>,
}

impl Signing {
    /// All that are believed.
    pub fn all(&self) -> impl Iterator<Item = &[u8]> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten().map(String::as_bytes)
    }
}

impl fmt::Debug for LinkSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkSecrets").field("secret_id", &self.secret_id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signing")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret of links could not be read")]
pub struct NoSecret;

impl LinkSecrets {
    pub fn from_env(aws: &Aws) -> Result<Self, ConfigError> {
        let secret_id = config::required("LINK_SECRET")?;
        Ok(Self { client: aws.secretsmanager(), secret_id, cached: Mutex::new(None) })
    }

    pub async fn get(&self, invocation: &Invocation) -> Result<Signing, NoSecret> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((read_at, signing)) = &cached
            && read_at.elapsed() < FRESH_FOR
        {
            return Ok(signing.clone());
        }
        // One that was good a while ago is better than none.
        let signing = match self.read(invocation).await {
            Ok(signing) => signing,
            Err(error) => return cached.map(|(_, signing)| signing).ok_or(error),
        };
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), signing.clone()));
        Ok(signing)
    }

    async fn read(&self, invocation: &Invocation) -> Result<Signing, NoSecret> {
        let call = self.client.get_secret_value().secret_id(&self.secret_id).send();
        let value = invocation.within(call).await.map_err(|_| NoSecret)?.map_err(|_| NoSecret)?;
        let signing: Option<Signing> = value.secret_string().and_then(|text| serde_json::from_str(text).ok());
        signing.filter(|signing| !signing.current.is_empty()).ok_or(NoSecret)
    }
}
