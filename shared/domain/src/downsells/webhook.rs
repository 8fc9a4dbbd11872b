//! What a payment gateway tells, or whoever speaks for it.

use serde_json::{Map, Value};

use super::bots::is_slug;
use super::charges::{Charge, OPEN_DAYS};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::time::Timestamp;

const LONGEST_ID: usize = 128;
/// Telegram's ids have at most 52 significant bits.
const LARGEST_TELEGRAM_ID: i64 = (1 << 52) - 1;
/// How far ahead of ours a gateway's clock may be.
const SKEW_MS: i64 = 300_000;
const LONGEST_OPEN_DAYS: i64 = 366;

/// A charge that was made or paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentEvent {
    pub bot: String,
    pub telegram_id: i64,
    pub transaction_id: String,
    pub correlation_id: Option<String>,
    /// When it happened.
    pub at: Timestamp,
    pub open_until: Timestamp,
}

impl PaymentEvent {
    pub fn charge(&self) -> Charge<'_> {
        Charge { bot: &self.bot, telegram_id: self.telegram_id, transaction_id: &self.transaction_id }
    }

    /// Reads `{bot_slug, telegram_id, transaction_id, correlation_id?, created_at?, expires_at?}`.
    pub fn read_created(body: &Map<String, Value>, now: Timestamp) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let at = fields.optional_timestamp("created_at");
        let until = fields.optional_timestamp("expires_at");
        if at.is_some_and(|at| at > now.plus_ms(SKEW_MS)) {
            fields.refuse("created_at", FieldProblem::OutOfRange, "lies in the future");
        }
        let at = at.unwrap_or(now);
        if until.is_some_and(|until| until > at.plus_days(LONGEST_OPEN_DAYS)) {
            let detail = format!("lies more than {LONGEST_OPEN_DAYS} days after the charge");
            fields.refuse("expires_at", FieldProblem::OutOfRange, detail);
        }
        Self::read(fields, at, until.unwrap_or(at.plus_days(OPEN_DAYS)))
    }

    /// Reads `{bot_slug, telegram_id, transaction_id, correlation_id?}`.
    pub fn read_approved(body: &Map<String, Value>, now: Timestamp) -> Result<Self, Vec<FieldError>> {
        Self::read(Fields::of(body), now, now)
    }

    fn read(mut fields: Fields<'_>, at: Timestamp, open_until: Timestamp) -> Result<Self, Vec<FieldError>> {
        let bot = fields.text("bot_slug").map(str::to_owned);
        if bot.as_deref().is_some_and(|bot| !is_slug(bot)) {
            fields.refuse("bot_slug", FieldProblem::Malformed, "is no slug of a bot");
        }
        let telegram_id = read_telegram_id(&mut fields);
        let transaction_id = read_id(&mut fields, "transaction_id", true);
        let correlation_id = read_id(&mut fields, "correlation_id", false);
        let read = bot.zip(telegram_id).zip(transaction_id).map(|((bot, telegram_id), transaction_id)| Self {
            bot,
            telegram_id,
            transaction_id,
            correlation_id,
            at,
            open_until,
        });
        fields.finish(read)
    }
}

/// A charge that can no longer be paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    pub transaction_id: String,
    pub correlation_id: Option<String>,
}

impl Expiry {
    /// Reads `{transaction_id, correlation_id?}`. Whose it was may stand there too.
    pub fn read(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        fields.ignore("bot_slug");
        fields.ignore("telegram_id");
        let transaction_id = read_id(&mut fields, "transaction_id", true);
        let correlation_id = read_id(&mut fields, "correlation_id", false);
        fields.finish(transaction_id.map(|transaction_id| Self { transaction_id, correlation_id }))
    }
}

/// A person's id, as a number: what is written as text or with a fraction is somebody's mistake.
pub fn read_telegram_id(fields: &mut Fields<'_>) -> Option<i64> {
    let detail = "must be the number of a Telegram user";
    let Some(given) = fields.get("telegram_id") else {
        fields.refuse("telegram_id", FieldProblem::Missing, "is required");
        return None;
    };
    let id = given.as_i64().filter(|id| (1..=LARGEST_TELEGRAM_ID).contains(id));
    match (id, given.is_number()) {
        (None, false) => fields.refuse("telegram_id", FieldProblem::WrongType, detail),
        (None, true) => fields.refuse("telegram_id", FieldProblem::OutOfRange, detail),
        _ => {}
    }
    id
}

fn read_id(fields: &mut Fields<'_>, name: &'static str, required: bool) -> Option<String> {
    let text = if required { fields.text(name)? } else { fields.optional_text(name)? };
    if text.len() > LONGEST_ID || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let detail = format!("must have 1 to {LONGEST_ID} visible ASCII characters");
        fields.refuse(name, FieldProblem::Malformed, detail);
    }
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::parse("2026-03-10T12:00:00Z").expect("a time")
    }

    fn created(more: &Value) -> Result<PaymentEvent, Vec<FieldError>> {
        let mut body = json!({"bot_slug": "loja", "telegram_id": 123_456_789, "transaction_id": "tx-test-123"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        PaymentEvent::read_created(body.as_object().expect("an object"), now())
    }

    #[test]
    fn a_charge_says_when_it_was_made_and_until_when_it_can_be_paid() {
        let plain = created(&json!({})).expect("fits");
        assert_eq!((plain.at, plain.open_until), (now(), now().plus_days(OPEN_DAYS)));
        let times = json!({"created_at": "2026-03-10T11:00:00Z", "expires_at": "2026-03-10T13:00:00Z"});
        let told = created(&times).expect("fits");
        assert_eq!((told.at, told.open_until), (now().plus_ms(-3_600_000), now().plus_ms(3_600_000)));
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_name() {
        for (more, field, code) in [
            (json!({"telegram_id": "123"}), "telegram_id", "wrong_type"),
            (json!({"telegram_id": 1.5}), "telegram_id", "out_of_range"),
            (json!({"telegram_id": -5}), "telegram_id", "out_of_range"),
            (json!({"telegram_id": null}), "telegram_id", "missing"),
            (json!({"transaction_id": ""}), "transaction_id", "missing"),
            (json!({"transaction_id": "a b"}), "transaction_id", "malformed"),
            (json!({"transaction_id": "x".repeat(129)}), "transaction_id", "malformed"),
            (json!({"correlation_id": "ç"}), "correlation_id", "malformed"),
            (json!({"bot_slug": "a#b"}), "bot_slug", "malformed"),
            (json!({"created_at": "2026-03-10T12:06:00Z"}), "created_at", "out_of_range"),
            (json!({"expires_at": "2028-03-10T12:00:00Z"}), "expires_at", "out_of_range"),
            (json!({"amount": 5}), "amount", "unknown"),
        ] {
            let errors = created(&more).expect_err("refused");
            let told: Vec<_> = errors.iter().map(|error| (error.field.as_str(), error.code.as_str())).collect();
            assert_eq!(told, [(field, code)], "{more}");
        }
    }

    #[test]
    fn an_expiry_needs_only_its_transaction() {
        let body = json!({"transaction_id": "tx-1", "bot_slug": "loja", "telegram_id": 5});
        let expiry = Expiry::read(body.as_object().expect("an object")).expect("fits");
        assert_eq!(expiry, Expiry { transaction_id: "tx-1".to_owned(), correlation_id: None });
        assert_eq!(Expiry::read(&Map::new()).expect_err("refused")[0].field, "transaction_id");
    }
}
