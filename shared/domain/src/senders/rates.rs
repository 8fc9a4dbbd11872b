//! The rate limits of each channel. The defaults are those that the providers document; a
//! deployment may change them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::channels::{Channel, is_group};
use crate::senders::limiter::Limit;

/// The limits of one channel. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// For everything that is sent with the same credentials.
    pub sender: Limit,
    /// For everything that is sent to one person.
    pub chat: Option<Limit>,
    /// For everything that is sent to one group.
    pub group: Option<Limit>,
}

impl Rates {
    /// Returns the limit of one address.
    pub fn of_address(&self, channel: Channel, to: &str) -> Option<Limit> {
        if is_group(channel, to) { self.group } else { self.chat }
    }

    const fn default_of(channel: Channel) -> Self {
        match channel {
            Channel::Telegram => Self { sender: Limit::BOT, chat: Some(Limit::CHAT), group: Some(Limit::GROUP) },
            // No limit is documented for one's own number; a person with a phone is slower than
            // this.
            Channel::Whatsapp => {
                Self { sender: Limit::per(5, 1_000), chat: Some(Limit::CHAT), group: Some(Limit::GROUP) }
            }
            // The limit of an SES account outside the sandbox.
            Channel::Email => Self { sender: Limit::per(14, 1_000), chat: None, group: None },
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RatesError {
    #[error("not a JSON object of channels with `sender`, `chat` and `group`: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("`{0}` is not a rate such as 30/1s or 20/60s")]
    NotARate(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    sender: Option<String>,
    chat: Option<String>,
    group: Option<String>,
}

/// The limits of every channel.
#[derive(Debug, Clone)]
pub struct RateTable(BTreeMap<Channel, Rates>);

impl Default for RateTable {
    fn default() -> Self {
        Self(Channel::ALL.iter().map(|channel| (*channel, Rates::default_of(*channel))).collect())
    }
}

impl RateTable {
    /// Reads `{"telegram": {"sender": "30/1s", "group": "20/60s"}}`. A limit that is left out keeps
    /// its default.
    pub fn with_options(options: &str) -> Result<Self, RatesError> {
        let given: BTreeMap<Channel, Given> = serde_json::from_str(options)?;
        let Self(mut rates) = Self::default();
        for (channel, given) in given {
            let Some(rates) = rates.get_mut(&channel) else { continue };
            if let Some(text) = given.sender {
                rates.sender = parse(&text)?;
            }
            for (text, limit) in [(given.chat, &mut rates.chat), (given.group, &mut rates.group)] {
                if let Some(text) = text {
                    *limit = Some(parse(&text)?);
                }
            }
        }
        Ok(Self(rates))
    }

    pub fn of(&self, channel: Channel) -> Rates {
        self.0.get(&channel).copied().unwrap_or(Rates::default_of(channel))
    }
}

/// Parses `count/seconds`, with or without an `s` at the end.
fn parse(text: &str) -> Result<Limit, RatesError> {
    let parts = text.trim().trim_end_matches('s').split_once('/');
    let numbers = parts.and_then(|(count, window)| Some((count.parse::<i64>().ok()?, window.parse::<i64>().ok()?)));
    match numbers {
        Some((count @ 1..=100_000, window @ 1..=86_400)) => Ok(Limit::per(count, window * 1_000)),
        _ => Err(RatesError::NotARate(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_rates_are_the_limits_that_providers_document() {
        let rates = RateTable::with_options(r#"{"telegram": {"sender": "25/1s"}}"#).expect("rates");
        let telegram = rates.of(Channel::Telegram);
        assert_eq!(telegram.sender, Limit::per(25, 1_000));
        assert_eq!(telegram.of_address(Channel::Telegram, "987654321"), Some(Limit::CHAT));
        assert_eq!(telegram.of_address(Channel::Telegram, "-1001234567890"), Some(Limit::GROUP));
        assert_eq!(rates.of(Channel::Email).of_address(Channel::Email, "a@b.co"), None);
    }

    #[test]
    fn an_invalid_rate_is_refused_at_start() {
        for options in [
            "[]",
            r#"{"sms": {}}"#,
            r#"{"telegram": {"sender": "fast"}}"#,
            r#"{"telegram": {"sender": "0/1s"}}"#,
            r#"{"telegram": {"bot": "1/1s"}}"#,
        ] {
            assert!(RateTable::with_options(options).is_err(), "{options}");
        }
    }
}
