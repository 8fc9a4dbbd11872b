//! The secret that verifies webhooks of providers and gateways, and signs requests to responders.

use umavez_domain::webhooks::secrets::WebhookSecrets;

use crate::aws::Aws;
use crate::config::{self, ConfigError};
use crate::secrets::Secret;

pub type Webhooks = Secret<WebhookSecrets>;

impl Webhooks {
    pub fn from_env(aws: &Aws) -> Result<Self, ConfigError> {
        let secret_id = config::required("WEBHOOKS_SECRET")?;
        Ok(Self::new(aws.secretsmanager(), secret_id, WebhookSecrets::parse))
    }
}
