//! The secret that signs unsubscribe links: `{"current": "…", "previous": "…"}`. Links signed with
//! the previous value stay valid, because links in mailboxes live for years.

use std::fmt;

use serde::Deserialize;

use crate::aws::Aws;
use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::secrets::{Secret, SecretError};

#[derive(Debug)]
pub struct LinkSecrets(Secret<Signing>);

#[derive(Clone, Deserialize)]
pub struct Signing {
    pub current: String,
    pub previous: Option<String>,
}

impl Signing {
    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|signing: &Self| !signing.current.is_empty())
    }

    /// Returns all values that a valid link may be signed with.
    pub fn all(&self) -> impl Iterator<Item = &[u8]> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten().map(String::as_bytes)
    }
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signing")
    }
}

impl LinkSecrets {
    pub fn from_env(aws: &Aws) -> Result<Self, ConfigError> {
        let secret_id = config::required("LINK_SECRET")?;
        Ok(Self(Secret::new(aws.secretsmanager(), secret_id, Signing::parse)))
    }

    pub async fn get(&self, invocation: &Invocation) -> Result<Signing, SecretError> {
        Ok((*self.0.get(invocation, |_| true).await?).clone())
    }
}
