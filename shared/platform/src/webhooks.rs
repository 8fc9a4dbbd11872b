//! The secret that verifies webhooks of providers and gateways, and signs requests to responders.

use std::sync::Arc;

use umavez_domain::webhooks::secrets::WebhookSecrets;

use crate::aws::Aws;
use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::secrets::{Secret, SecretError};

#[derive(Debug)]
pub struct Webhooks(Secret<WebhookSecrets>);

impl Webhooks {
    pub fn from_env(aws: &Aws) -> Result<Self, ConfigError> {
        let secret_id = config::required("WEBHOOKS_SECRET")?;
        Ok(Self(Secret::new(aws.secretsmanager(), secret_id, WebhookSecrets::parse)))
    }

    /// Returns the secret. Reads it again if the cached value does not serve the request, unless it
    /// was read a moment ago: the secret may have changed.
    pub async fn get(
        &self,
        invocation: &Invocation,
        serves: impl Fn(&WebhookSecrets) -> bool,
    ) -> Result<Arc<WebhookSecrets>, SecretError> {
        self.0.get(invocation, serves).await
    }
}
