//! Resolves the sender that a message names to a credential, a rate bucket and rate limits.
//!
//! One credential has one bucket and one limit, whichever name a message uses for it. On Telegram a
//! name means, in this order: the bot with this slug, and so the bot's `token_ref`; the token with
//! this name, with the limits of the bot that owns it; or a token that no bot owns, with the limits
//! of the channel. So a slug wins over a token with the same name: messages reach that token
//! through the slug of its own bot.

use crate::channels::Channel;
use crate::keys::{self, Key};
use crate::senders::bots::{BotRow, TokenRow};
use crate::senders::rates::Rates;

/// Mail has one limit per account, whatever the sender is.
const MAIL_BUCKET: &str = "ses";

/// The credential, the rate bucket and the limits for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub channel: Channel,
    /// The name of the credential in the secret of senders. `None` for mail, which the function's
    /// own role signs.
    pub credential: Option<String>,
    /// The name of the rate bucket. Suppressions against one sender use this name too.
    pub bucket: String,
    pub rates: Rates,
}

impl Resolved {
    /// Resolves the sender `name` of a channel. `bot` is the bot with this slug, `owner` the row of
    /// the token with this name, and `rates` are the limits of the channel.
    pub fn of(channel: Channel, name: &str, bot: Option<&BotRow>, owner: Option<&TokenRow>, rates: Rates) -> Self {
        match (channel, bot, owner) {
            (Channel::Email, ..) => Self::of_mail(rates),
            (Channel::Telegram, Some(bot), _) => Self::of_bot(bot, rates),
            (Channel::Telegram, None, Some(owner)) => Self::named(channel, name, owner.rates(rates)),
            (Channel::Telegram, None, None) | (Channel::Whatsapp, ..) => Self::named(channel, name, rates),
        }
    }

    /// Resolves a bot: its offers, and messages that name its slug. `rates` are the limits of
    /// Telegram.
    pub fn of_bot(bot: &BotRow, rates: Rates) -> Self {
        Self::named(Channel::Telegram, &bot.token_ref, bot.rates(rates))
    }

    /// Resolves any sender of mail. `rates` are the limits of mail.
    pub fn of_mail(rates: Rates) -> Self {
        Self { channel: Channel::Email, credential: None, bucket: MAIL_BUCKET.to_owned(), rates }
    }

    /// Returns the bucket of everything that is sent with the credential.
    pub fn sender_bucket(&self) -> Key {
        keys::rate_of_sender(self.channel.as_str(), &self.bucket)
    }

    /// Returns the bucket of everything that is sent with the credential to one address.
    pub fn chat_bucket(&self, to: &str) -> Key {
        keys::rate_of_chat(self.channel.as_str(), &self.bucket, to)
    }

    fn named(channel: Channel, credential: &str, rates: Rates) -> Self {
        Self { channel, credential: Some(credential.to_owned()), bucket: credential.to_owned(), rates }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::senders::limiter::Limit;
    use crate::time::Timestamp;

    const RATES: Rates = Rates { sender: Limit::BOT, chat: Some(Limit::CHAT), group: Some(Limit::GROUP) };

    fn bot(body: Value) -> BotRow {
        BotRow::read(body.as_object().expect("an object"), Timestamp::from_seconds(0)).expect("a bot")
    }

    fn loja() -> BotRow {
        bot(json!({"slug": "loja", "token_ref": "shop", "messages_per_second": 1, "messages_per_chat_per_minute": 6}))
    }

    fn telegram(name: &str, bot: Option<&BotRow>, owner: Option<&TokenRow>) -> Resolved {
        Resolved::of(Channel::Telegram, name, bot, owner, RATES)
    }

    #[test]
    fn a_bot_is_the_same_sender_by_its_slug_by_its_token_and_for_an_offer() {
        let bot = loja();
        let by_slug = telegram("loja", Some(&bot), None);
        assert_eq!(by_slug, telegram("shop", None, Some(&TokenRow::from(&bot))));
        assert_eq!(by_slug, Resolved::of_bot(&bot, RATES));
        assert_eq!((by_slug.credential.as_deref(), by_slug.bucket.as_str()), (Some("shop"), "shop"));
        let (sender, chat) = (Limit::per(1, 1_000), Some(Limit::per(6, 60_000)));
        assert_eq!(by_slug.rates, Rates { sender, chat, ..RATES });
    }

    #[test]
    fn a_slug_wins_over_the_token_of_another_bot_with_the_same_name() {
        let shop = bot(json!({"slug": "shop", "token_ref": "third"}));
        let resolved = telegram("shop", Some(&shop), Some(&TokenRow::from(&loja())));
        assert_eq!((resolved.credential.as_deref(), resolved.rates), (Some("third"), RATES));
    }

    #[test]
    fn a_token_that_no_bot_owns_has_the_limits_of_its_channel() {
        let resolved = telegram("default", None, None);
        assert_eq!((resolved.credential.as_deref(), resolved.bucket.as_str()), (Some("default"), "default"));
        assert_eq!(resolved.rates, RATES);
    }

    #[test]
    fn mail_has_one_bucket_and_no_credential_and_an_instance_has_its_own() {
        let mail = Resolved::of(Channel::Email, "loja", None, None, RATES);
        assert_eq!((mail.credential.as_deref(), mail.sender_bucket()), (None, keys::rate_of_sender("email", "ses")));
        let whatsapp = Resolved::of(Channel::Whatsapp, "loja", None, None, RATES);
        assert_eq!(whatsapp.credential.as_deref(), Some("loja"));
        assert_eq!(whatsapp.chat_bucket("55119"), keys::rate_of_chat("whatsapp", "loja", "55119"));
    }

    #[test]
    fn a_bot_is_not_a_sender_of_another_channel() {
        let (bot, owner) = (loja(), TokenRow::from(&loja()));
        let resolved = Resolved::of(Channel::Whatsapp, "loja", Some(&bot), Some(&owner), RATES);
        assert_eq!((resolved.credential.as_deref(), resolved.rates), (Some("loja"), RATES));
    }
}
