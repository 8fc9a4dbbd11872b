//! Bots in the Config table, each with the row of its token.
//!
//! Invariant: a token name belongs to at most one bot. Every write of a bot is one transaction with
//! the row of its token, on the condition that the token's row is absent or names this bot. Bots
//! are never deleted.

use std::ops::ControlFlow::{Break, Continue};

use serde_json::{Map, Value};
use umavez_domain::channels::Channel;
use umavez_domain::fields::FieldError;
use umavez_domain::keys::{self, Key};
use umavez_domain::senders::bots::{BotRow, TokenRow};

use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::store::{Condition, Refusal, Store, StoreError, Transacted, Write, read_row};

#[derive(Debug, Clone)]
pub struct Bots {
    pub store: Store,
    /// The Config table.
    pub table: String,
}

/// The outcome of creating a bot.
#[derive(Debug)]
pub enum CreatedBot {
    New,
    /// A bot with this slug exists.
    Exists(BotRow),
    Refused(FieldError),
}

/// The outcome of changing a bot.
#[derive(Debug)]
pub enum ChangedBot {
    Done(BotRow),
    NoSuchBot,
    Refused(Vec<FieldError>),
}

impl Bots {
    pub fn from_env(store: &Store) -> Result<Self, ConfigError> {
        Ok(Self { store: store.clone(), table: config::required("CONFIG_TABLE")? })
    }

    pub async fn get(&self, invocation: &Invocation, slug: &str) -> Result<Option<BotRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::bot(slug)).await
    }

    /// Returns all bots, ordered by slug.
    pub async fn list(&self, invocation: &Invocation) -> Result<Vec<BotRow>, StoreError> {
        let mut rows: Vec<BotRow> = self.store.scan_prefix(invocation, &self.table, keys::BOT_PREFIX).await?;
        rows.sort_by(|a, b| a.slug.cmp(&b.slug));
        Ok(rows)
    }

    /// Reads both meanings of a Telegram sender name in one request: the bot with this slug, and
    /// the owner of the token with this name.
    pub async fn named(
        &self,
        invocation: &Invocation,
        name: &str,
    ) -> Result<(Option<BotRow>, Option<TokenRow>), StoreError> {
        let (bot, token) = (keys::bot(name), token_key(name));
        let mut rows = self.store.get_many(invocation, &self.table, &[bot.clone(), token.clone()]).await?;
        let (bot, token) = (rows.remove(&bot), rows.remove(&token));
        Ok((bot.map(read_row).transpose()?, token.map(read_row).transpose()?))
    }

    /// Creates a bot and makes it the owner of its token.
    pub async fn create(&self, invocation: &Invocation, row: &BotRow) -> Result<CreatedBot, StoreError> {
        let bot = Write::put(&self.table, keys::bot(&row.slug), row)?.when(Condition::Absent);
        match self.store.transact(invocation, vec![bot, self.own_token(row)?]).await? {
            Transacted::Done => Ok(CreatedBot::New),
            Transacted::Refused(refusals) => match refused(refusals)? {
                Refused::Bot(Some(stored)) => Ok(CreatedBot::Exists(stored)),
                Refused::Token(owner) => Ok(CreatedBot::Refused(BotRow::token_taken(&owner.slug))),
                Refused::Bot(None) | Refused::LastToken => Err(StoreError::Corrupt("a new bot that nothing refused")),
            },
        }
    }

    /// Changes a bot. If `token_ref` changes, the bot owns the new token and releases the previous
    /// one.
    pub async fn change(
        &self,
        invocation: &Invocation,
        slug: &str,
        body: &Map<String, Value>,
    ) -> Result<ChangedBot, StoreError> {
        let stored = self.get(invocation, slug).await?;
        let step = |(stored, owns_last_token): (Option<BotRow>, bool)| async move {
            let Some(before) = stored else { return Ok(Break(ChangedBot::NoSuchBot)) };
            let row = match before.read_change(body, invocation.now) {
                Ok(row) => row,
                Err(errors) => return Ok(Break(ChangedBot::Refused(errors))),
            };
            let as_read = Condition::version(before.version);
            let bot = Write::put(&self.table, keys::bot(slug), &row)?.when(as_read);
            let mut writes = vec![bot, self.own_token(&row)?];
            if row.token_ref != before.token_ref && owns_last_token {
                writes.push(self.free_token(&before));
            }
            Ok(match self.store.transact(invocation, writes).await? {
                Transacted::Done => Break(ChangedBot::Done(row)),
                Transacted::Refused(refusals) => match refused(refusals)? {
                    Refused::Bot(stored) => Continue((stored, owns_last_token)),
                    Refused::LastToken => Continue((Some(before), false)),
                    Refused::Token(owner) => Break(ChangedBot::Refused(vec![BotRow::token_taken(&owner.slug)])),
                },
            })
        };
        self.store.retry_from(invocation, (stored, true), step).await
    }

    /// Returns the write that makes the bot the owner of its token, with its limits. The token's
    /// row is absent, or this bot owns it.
    fn own_token(&self, row: &BotRow) -> Result<Write, StoreError> {
        let write = Write::put(&self.table, token_key(&row.token_ref), &TokenRow::from(row))?;
        Ok(write.when(Condition::any([Condition::Absent, is_owned_by(&row.slug)])))
    }

    /// Returns the write that releases the bot's token. A bot that was written before token rows
    /// existed has none to release, and another bot may own the token by now.
    fn free_token(&self, row: &BotRow) -> Write {
        let free = Condition::any([Condition::Absent, is_owned_by(&row.slug)]);
        Write::delete(&self.table, token_key(&row.token_ref)).when(free)
    }
}

fn token_key(name: &str) -> Key {
    keys::token(Channel::Telegram.as_str(), name)
}

fn is_owned_by(slug: &str) -> Condition {
    Condition::is("slug", slug)
}

/// The row that refused the write of a bot.
enum Refused {
    /// The bot's row. Contains its current state.
    Bot(Option<BotRow>),
    /// The token's row: another bot owns the token.
    Token(TokenRow),
    /// The row of the token to release: another bot owns that token.
    LastToken,
}

fn refused(refusals: Vec<Option<Refusal>>) -> Result<Refused, StoreError> {
    let mut items = refusals.into_iter().map(|refusal| refusal.map(|refusal| refusal.item));
    match (items.next().flatten(), items.next().flatten(), items.next().flatten()) {
        (Some(bot), ..) => Ok(Refused::Bot(bot.map(read_row).transpose()?)),
        (None, Some(Some(token)), _) => Ok(Refused::Token(read_row(token)?)),
        (None, None, Some(_)) => Ok(Refused::LastToken),
        (None, ..) => Err(StoreError::Corrupt("a bot that nothing refused")),
    }
}
