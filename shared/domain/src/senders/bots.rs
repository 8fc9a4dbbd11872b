//! The row of a bot: the name of its token, the hashes of its webhook secret, and its rate limits.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use serde_with::skip_serializing_none;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::codes::{FieldProblem, codes};
use crate::fields::{FieldError, Fields};
use crate::senders::is_name;
use crate::senders::limiter::Limit;
use crate::senders::rates::Rates;
use crate::time::Timestamp;

const LONGEST_NAME: usize = 120;
const SHORTEST_SECRET: usize = 16;
const LONGEST_SECRET: usize = 256;

codes! {
    /// Warnings about a bot: the request is accepted, but is probably a mistake.
    BotWarning {
        /// The deployment's secret of senders has no token with the name `token_ref`. The bot's
        /// offers wait until it has one.
        TokenMissing = "token_missing",
    }
}

#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BotRow {
    pub slug: String,
    pub name: Option<String>,
    /// The name of the bot's token in the secret of senders.
    pub token_ref: String,
    /// Hashes of the secret that Telegram sends to the webhook. The secret itself is not stored.
    /// During a change of the secret, there are the hashes of both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub webhook_secret_hashes: Vec<String>,
    pub active: bool,
    pub messages_per_second: Option<u32>,
    pub messages_per_chat_per_minute: Option<u32>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
}

impl std::fmt::Debug for BotRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BotRow").field("slug", &self.slug).field("version", &self.version).finish_non_exhaustive()
    }
}

impl BotRow {
    /// Reads a new bot: `{slug, name?, token_ref?, webhook_secret?, active?, messages_per_second?,
    /// …}`.
    pub fn read(body: &Map<String, Value>, now: Timestamp) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let slug = fields.text("slug").map(str::to_owned);
        if slug.as_deref().is_some_and(|slug| !is_name(slug)) {
            let detail = "must have 1 to 64 letters, digits, dots, dashes and underscores";
            fields.refuse("slug", FieldProblem::Malformed, detail);
        }
        let blank = Self {
            token_ref: slug.clone().unwrap_or_default(),
            slug: slug.unwrap_or_default(),
            name: None,
            webhook_secret_hashes: Vec::new(),
            active: true,
            messages_per_second: None,
            messages_per_chat_per_minute: None,
            created_at: now,
            updated_at: now,
            version: 1,
        };
        let row = blank.read_over(&mut fields);
        fields.finish(Some(row))
    }

    /// Reads a change. A field that is left out keeps its value. A new secret is accepted in
    /// addition to the last one, until the next new secret.
    pub fn read_change(&self, body: &Map<String, Value>, now: Timestamp) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        if fields.optional_text("slug").is_some_and(|slug| slug != self.slug) {
            fields.refuse("slug", FieldProblem::Conflicting, "cannot be changed");
        }
        let row = Self { updated_at: now, version: self.version + 1, ..self.read_over(&mut fields) };
        fields.finish(Some(row))
    }

    fn read_over(&self, fields: &mut Fields<'_>) -> Self {
        let mut row = self.clone();
        // `null` removes a value.
        if fields.is_null("webhook_secret") {
            row.webhook_secret_hashes.clear();
        }
        row.name = row.name.filter(|_| !fields.is_null("name"));
        if let Some(name) = fields.optional_text("name") {
            if name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
                let detail = format!("must be a line of at most {LONGEST_NAME} characters");
                fields.refuse("name", FieldProblem::OutOfRange, detail);
            }
            row.name = Some(name.trim().to_owned());
        }
        if let Some(token_ref) = fields.optional_text("token_ref") {
            if !is_name(token_ref) {
                fields.refuse("token_ref", FieldProblem::Malformed, "must be the name of a sender, not its token");
            }
            row.token_ref = token_ref.to_owned();
        }
        if let Some(secret) = fields.optional_text("webhook_secret") {
            let letters = secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
            if !letters || !(SHORTEST_SECRET..=LONGEST_SECRET).contains(&secret.len()) {
                let detail = "must have 16 to 256 letters, digits, dashes and underscores";
                fields.refuse("webhook_secret", FieldProblem::Malformed, detail);
            }
            let hash = hash(secret);
            if row.webhook_secret_hashes.first() != Some(&hash) {
                row.webhook_secret_hashes.insert(0, hash);
                row.webhook_secret_hashes.truncate(2);
            }
        }
        row.active = fields.optional_bool("active").unwrap_or(row.active);
        for (name, limit, range) in [
            ("messages_per_second", &mut row.messages_per_second, 1..=1_000),
            ("messages_per_chat_per_minute", &mut row.messages_per_chat_per_minute, 1..=600),
        ] {
            let kept = limit.filter(|_| !fields.is_null(name));
            *limit = fields.whole_number(name, range).or(kept);
        }
        row
    }

    /// Returns whether Telegram's header is this bot's secret. Compares hashes in constant time,
    /// and always all of them.
    pub fn admits(&self, header: Option<&str>) -> bool {
        let given = hash(header.unwrap_or_default());
        let is_it = |known: &String| bool::from(known.as_bytes().ct_eq(given.as_bytes()));
        header.is_some() && self.webhook_secret_hashes.iter().fold(false, |found, known| found | is_it(known))
    }

    /// Returns the limits of the channel, with the bot's own limits applied.
    pub fn rates(&self, rates: Rates) -> Rates {
        TokenRow::from(self).rates(rates)
    }

    /// Returns the error for a `token_ref` that another bot owns.
    pub fn token_taken(owner: &str) -> FieldError {
        let detail = format!("belongs to the bot {owner}: a token has one bot, and so one limit");
        FieldError::new("token_ref", FieldProblem::Conflicting, detail)
    }

    /// Returns the bot as callers see it. The view shows whether there is a webhook secret, never
    /// the secret.
    pub fn view(&self) -> Value {
        json!({
            "slug": self.slug,
            "name": self.name,
            "token_ref": self.token_ref,
            "has_webhook_secret": !self.webhook_secret_hashes.is_empty(),
            "active": self.active,
            "messages_per_second": self.messages_per_second,
            "messages_per_chat_per_minute": self.messages_per_chat_per_minute,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "version": self.version,
        })
    }
}

/// The row of a token name: the one bot that owns the token, and the bot's limits. One transaction
/// writes it together with the bot.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    pub slug: String,
    pub messages_per_second: Option<u32>,
    pub messages_per_chat_per_minute: Option<u32>,
}

impl TokenRow {
    /// Returns the limits of Telegram, with the bot's limits applied.
    pub fn rates(&self, rates: Rates) -> Rates {
        let per = |count: u32, window_ms| Limit::per(i64::from(count), window_ms);
        Rates {
            sender: self.messages_per_second.map_or(rates.sender, |count| per(count, 1_000)),
            chat: self.messages_per_chat_per_minute.map(|count| per(count, 60_000)).or(rates.chat),
            ..rates
        }
    }
}

impl From<&BotRow> for TokenRow {
    fn from(bot: &BotRow) -> Self {
        let BotRow { messages_per_second, messages_per_chat_per_minute, .. } = *bot;
        Self { slug: bot.slug.clone(), messages_per_second, messages_per_chat_per_minute }
    }
}

fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_seconds(1_000)
    }

    fn read(body: &Value) -> Result<BotRow, Vec<FieldError>> {
        BotRow::read(body.as_object().expect("an object"), now())
    }

    #[test]
    fn a_secret_is_stored_as_a_hash_and_never_shown() {
        let row = read(&json!({"slug": "loja", "webhook_secret": "canary-secret-0001"})).expect("fits");
        assert!(row.admits(Some("canary-secret-0001")));
        assert!(!row.admits(Some("canary-secret-0002")) && !row.admits(Some("")) && !row.admits(None));
        let shown = format!("{row:?} {} {}", json!(row), json!(row.view()));
        assert!(!shown.contains("canary"), "{shown}");
        assert_eq!(row.view()["has_webhook_secret"], true);
    }

    #[test]
    fn a_bot_without_a_secret_admits_no_request() {
        let row = read(&json!({"slug": "loja"})).expect("fits");
        assert!(!row.admits(Some("")) && !row.admits(None));
    }

    #[test]
    fn the_previous_secret_stays_valid_until_the_next_change() {
        let row = read(&json!({"slug": "loja", "webhook_secret": "first-secret-00001"})).expect("fits");
        let change = |row: &BotRow, secret: &str| {
            let body = json!({ "webhook_secret": secret });
            row.read_change(body.as_object().expect("an object"), now()).expect("fits")
        };
        let row = change(&row, "second-secret-0001");
        assert!(row.admits(Some("first-secret-00001")) && row.admits(Some("second-secret-0001")));
        let row = change(&change(&row, "second-secret-0001"), "third-secret-00001");
        assert!(!row.admits(Some("first-secret-00001")) && row.admits(Some("second-secret-0001")));
    }

    #[test]
    fn the_limits_of_a_bot_override_those_of_its_channel() {
        let rates = Rates { sender: Limit::BOT, chat: Some(Limit::CHAT), group: Some(Limit::GROUP) };
        assert_eq!(read(&json!({"slug": "loja"})).expect("fits").rates(rates), rates);
        let slow = json!({"slug": "loja", "messages_per_second": 5, "messages_per_chat_per_minute": 6});
        let slow = read(&slow).expect("fits").rates(rates);
        assert_eq!((slow.sender, slow.chat), (Limit::per(5, 1_000), Some(Limit::per(6, 60_000))));
        assert_eq!(slow.group, rates.group);
    }

    #[test]
    fn the_row_of_a_token_is_read_back_unchanged() {
        let body = json!({"slug": "loja", "messages_per_second": 1, "messages_per_chat_per_minute": 6});
        let row = TokenRow::from(&read(&body).expect("fits"));
        assert_eq!(json!(row), body);
        assert_eq!(serde_json::from_value::<TokenRow>(body).expect("a row"), row);
        let free = TokenRow::from(&read(&json!({"slug": "loja"})).expect("fits"));
        assert_eq!(json!(free), json!({"slug": "loja"}));
    }

    #[test]
    fn a_null_field_is_cleared_and_an_omitted_field_is_kept() {
        let body =
            json!({"slug": "loja", "name": "Loja", "webhook_secret": "first-secret-00001", "messages_per_second": 5});
        let row = read(&body).expect("fits");
        let change = |body: Value| row.read_change(body.as_object().expect("an object"), now()).expect("fits");
        let nothing = json!({"name": null, "webhook_secret": null, "messages_per_second": null});
        let bare = change(nothing);
        assert_eq!((bare.name, bare.messages_per_second, bare.webhook_secret_hashes.len()), (None, None, 0));
        let kept = change(json!({"active": false}));
        assert_eq!((kept.name.as_deref(), kept.messages_per_second, kept.active), (Some("Loja"), Some(5), false));
        assert!(kept.admits(Some("first-secret-00001")));
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        for (body, field) in [
            (json!({}), "slug"),
            (json!({"slug": "a#b"}), "slug"),
            (json!({"slug": "a", "token_ref": "123:ABC/def"}), "token_ref"),
            (json!({"slug": "a", "webhook_secret": "short"}), "webhook_secret"),
            (json!({"slug": "a", "messages_per_second": 0}), "messages_per_second"),
            (json!({"slug": "a", "token": "1"}), "token"),
        ] {
            assert_eq!(read(&body).expect_err("refused")[0].field, field, "{body}");
        }
    }
}
