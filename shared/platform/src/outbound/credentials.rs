//! What senders sign with: one secret, `{"telegram": {"<sender>": "<token>"}, "whatsapp": {"<instance>": "<api key>"}}`.

use std::collections::BTreeMap;

use umavez_domain::outbound::Channel;

use crate::invocation::Invocation;
use crate::secrets::{Secret, SecretError};

type Secrets = BTreeMap<Channel, BTreeMap<String, String>>;

#[derive(Debug)]
pub struct Senders(Secret<Secrets>);

impl Senders {
    pub fn new(client: aws_sdk_secretsmanager::Client, secret_id: String) -> Self {
        Self(Secret::new(client, secret_id, |text| serde_json::from_str(text).ok()))
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

    /// A provider refused what was read: it is read again before long.
    pub fn doubt(&self) {
        self.0.doubt();
    }
}
