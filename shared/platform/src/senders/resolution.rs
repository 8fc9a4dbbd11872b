//! Resolves senders: each one to its credential, its rate bucket and its limits.
//!
//! All credentials are in one secret, `{"telegram": {"<token name>": "<token>"}, "whatsapp":
//! {"<instance>": "<api key>"}}`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use umavez_domain::channels::Channel;
use umavez_domain::senders::Resolved;
use umavez_domain::senders::bots::BotRow;
use umavez_domain::senders::rates::RateTable;
use umavez_domain::telemetry::Event;

use super::Bots;
use crate::aws::Aws;
use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::secrets::{Secret, SecretError};
use crate::store::{Store, StoreError};

/// How long a resolved name stays cached.
const FRESH_FOR: Duration = Duration::from_secs(60);
/// How long a request waits to find out whether a sender has a credential. The request must have
/// time left to be accepted.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

type Secrets = BTreeMap<Channel, BTreeMap<String, String>>;

#[derive(Debug)]
pub struct Senders {
    bots: Bots,
    /// The limits of each channel.
    rates: RateTable,
    credentials: Secret<Secrets>,
    /// The cache of Telegram names, each with the time when it was resolved.
    resolved: Mutex<HashMap<String, (Instant, Resolved)>>,
}

/// Why it is unknown whether a sender has a credential.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("the call timed out")]
    Late(#[from] tokio::time::error::Elapsed),
}

impl Senders {
    /// `rates` are the limits of each channel; functions that send nothing leave them at their
    /// defaults.
    pub fn from_env(aws: &Aws, store: &Store, rates: RateTable) -> Result<Self, ConfigError> {
        let secret_id = config::required("SENDERS_SECRET")?;
        Ok(Self {
            bots: Bots::from_env(store)?,
            rates,
            credentials: Secret::new(aws.secretsmanager(), secret_id, |text| serde_json::from_str(text).ok()),
            resolved: Mutex::default(),
        })
    }

    /// Resolves the sender that a message names. A change of a bot takes effect after a minute at
    /// the latest.
    pub async fn resolve(&self, invocation: &Invocation, channel: Channel, name: &str) -> Result<Resolved, StoreError> {
        let rates = self.rates.of(channel);
        if channel != Channel::Telegram {
            return Ok(Resolved::of(channel, name, None, None, rates));
        }
        // The lock is held during the read, so that messages that are sent at the same time read a
        // name once.
        let mut known = self.resolved.lock().await;
        if let Some((_, resolved)) = known.get(name).filter(|(read_at, _)| read_at.elapsed() < FRESH_FOR) {
            return Ok(resolved.clone());
        }
        let (bot, owner) = self.bots.named(invocation, name).await?;
        let resolved = Resolved::of(channel, name, bot.as_ref(), owner.as_ref(), rates);
        known.insert(name.to_owned(), (Instant::now(), resolved.clone()));
        Ok(resolved)
    }

    /// Resolves a bot that the caller has just read.
    pub fn of_bot(&self, bot: &BotRow) -> Resolved {
        Resolved::of_bot(bot, self.rates.of(Channel::Telegram))
    }

    /// Reads the credential of a resolved sender. Returns `None` if the secret has none. Mail needs
    /// none and gets an empty text. If there is no credential, the cached resolution is dropped:
    /// the bot may have another token by the next call.
    pub async fn credential(&self, invocation: &Invocation, of: &Resolved) -> Result<Option<String>, SecretError> {
        let Some(name) = &of.credential else { return Ok(Some(String::new())) };
        let find = |secrets: &Secrets| secrets.get(&of.channel).and_then(|senders| senders.get(name)).cloned();
        let secrets = self.credentials.get(invocation, |secrets| find(secrets).is_some()).await?;
        let credential = find(&secrets);
        if credential.is_none() {
            self.resolved.lock().await.retain(|_, (_, resolved)| resolved != of);
        }
        Ok(credential)
    }

    /// Returns whether it is certain that a resolved sender has no credential. Nothing is certain
    /// while the secret cannot be read: a message that is accepted then waits until its sender can
    /// read the secret.
    pub async fn lacks_credential(&self, invocation: &Invocation, of: &Resolved) -> bool {
        let look = async { Ok(self.credential(invocation, of).await?.is_none()) };
        certain(invocation, look).await
    }

    /// Returns whether it is certain that the sender that a message names has no credential, even
    /// after its bot was read again.
    pub async fn is_missing(&self, invocation: &Invocation, channel: Channel, name: &str) -> bool {
        let look = async {
            let cached = self.resolve(invocation, channel, name).await?;
            if self.credential(invocation, &cached).await?.is_some() {
                return Ok(false);
            }
            let read = self.resolve(invocation, channel, name).await?;
            Ok(read == cached || self.credential(invocation, &read).await?.is_none())
        };
        certain(invocation, look).await
    }

    /// Drops the cached secret after a 401; the next read fetches it again.
    pub fn invalidate(&self) {
        self.credentials.invalidate();
    }
}

/// Returns the result of `look`; `false` if it fails or times out.
async fn certain(invocation: &Invocation, look: impl Future<Output = Result<bool, LookError>>) -> bool {
    let looked = tokio::time::timeout(LOOK_LIMIT, look).await;
    looked.map_err(LookError::from).flatten().unwrap_or_else(|error| {
        tracing::error!(event = Event::CredentialsNotRead.as_str(), cause = %error, request_id = invocation.request_id);
        false
    })
}
