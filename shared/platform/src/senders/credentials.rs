//! What senders sign with: one secret, `{"telegram": {"<sender>": "<token>"}, "whatsapp": {"<instance>": "<api key>"}}`.

use std::collections::BTreeMap;
use std::time::Duration;

use umavez_domain::channels::Channel;

use crate::aws::Aws;
use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::secrets::{Secret, SecretError};

/// How long a request waits to learn whether a sender has a credential: it must have time left to be accepted.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

type Secrets = BTreeMap<Channel, BTreeMap<String, String>>;

#[derive(Debug)]
pub struct Senders(Secret<Secrets>);

impl Senders {
    pub fn from_env(aws: &Aws) -> Result<Self, ConfigError> {
        let secret_id = config::required("SENDERS_SECRET")?;
        Ok(Self(Secret::new(aws.secretsmanager(), secret_id, |text| serde_json::from_str(text).ok())))
    }

    /// The credential of a sender; none if there is no such sender.
    pub async fn of(
        &self,
        invocation: &Invocation,
        channel: Channel,
        sender: &str,
    ) -> Result<Option<String>, SecretError> {
        let find = |secrets: &Secrets| secrets.get(&channel).and_then(|senders| senders.get(sender)).cloned();
        let secrets = self.0.get(invocation, |secrets| find(secrets).is_some()).await?;
        Ok(find(&secrets))
    }

    /// Whether it is certain that a sender has no credential. Mail needs none. While the secret cannot be read, nothing is
    /// certain: what is accepted then waits until its sender can read it.
    pub async fn is_missing(&self, invocation: &Invocation, channel: Channel, sender: &str) -> bool {
        if channel == Channel::Email {
            return false;
        }
        let look = tokio::time::timeout(LOOK_LIMIT, self.of(invocation, channel, sender)).await;
        match look.unwrap_or(Err(SecretError::Unavailable)) {
            Ok(credential) => credential.is_none(),
            Err(error) => {
                tracing::error!(event = "NO_CREDENTIALS", cause = %error, request_id = invocation.request_id);
                false
            }
        }
    }

    /// A provider refused what was read: it is read again before long.
    pub fn doubt(&self) {
        self.0.doubt();
    }
}
