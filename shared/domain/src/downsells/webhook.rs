//! Reads what a payment gateway, or a flow on its behalf, reports about a charge. Fields that are
//! not read here are ignored, because gateways add their own. Ids are numbers or text, as the
//! gateway has them.

use serde_json::{Map, Value};

use super::charges::{Charge, OPEN_DAYS, OpenCharge, transaction_name};
use crate::codes::{FieldProblem, codes};
use crate::fields::{FieldError, Fields};
use crate::senders::is_name;
use crate::time::Timestamp;

const LONGEST_ID: usize = 128;
/// Telegram's ids have at most 52 significant bits.
const LARGEST_TELEGRAM_ID: i64 = (1 << 52) - 1;
/// How far a gateway's clock may be ahead of ours.
const SKEW_MS: i64 = 300_000;
const LONGEST_OPEN_DAYS: i64 = 366;

codes! {
    /// The fields of a webhook that name the owner of a transaction.
    OwnerField {
        /// The bot is not the stored one, or the field is invalid.
        BotSlug = "bot_slug",
        /// The user is not the stored one, or the field is invalid.
        TelegramId = "telegram_id",
    }
}

/// A charge that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargeCreated {
    pub bot: String,
    pub telegram_id: i64,
    /// See [`transaction_name`].
    pub transaction_id: String,
    pub correlation_id: Option<String>,
    /// When the charge was made.
    pub at: Timestamp,
    pub open_until: Timestamp,
}

impl ChargeCreated {
    pub fn charge(&self) -> Charge<'_> {
        Charge { bot: &self.bot, telegram_id: self.telegram_id, transaction_id: &self.transaction_id }
    }

    pub fn open(&self) -> OpenCharge {
        OpenCharge { made_at: self.at.millis(), until: self.open_until.millis() }
    }

    /// Reads `{bot_slug, telegram_id, transaction_id, correlation_id?, created_at?, expires_at?}`
    /// from a gateway.
    pub fn read(body: &Map<String, Value>, gateway: &str, now: Timestamp) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::open(body);
        let at = fields.optional_timestamp("created_at");
        let until = fields.optional_timestamp("expires_at");
        if at.is_some_and(|at| at > now.plus_ms(SKEW_MS)) {
            fields.refuse("created_at", FieldProblem::OutOfRange, "is in the future");
        }
        let at = at.unwrap_or(now);
        if until.is_some_and(|until| until > at.plus_days(LONGEST_OPEN_DAYS)) {
            let detail = format!("is more than {LONGEST_OPEN_DAYS} days after the charge");
            fields.refuse("expires_at", FieldProblem::OutOfRange, detail);
        }
        let bot = fields.text("bot_slug").map(str::to_owned);
        if bot.as_deref().is_some_and(|bot| !is_name(bot)) {
            fields.refuse("bot_slug", FieldProblem::Malformed, "is not a slug of a bot");
        }
        let telegram_id = read_id_of_person(&mut fields);
        let transaction_id = read_transaction_id(&mut fields, gateway);
        let correlation_id = fields.get("correlation_id").map(|given| read_id(&mut fields, "correlation_id", given));
        let read = bot.zip(telegram_id).zip(transaction_id).map(|((bot, telegram_id), transaction_id)| Self {
            bot,
            telegram_id,
            transaction_id,
            correlation_id: correlation_id.flatten(),
            at,
            open_until: until.unwrap_or(at.plus_days(OPEN_DAYS)),
        });
        fields.finish(read)
    }
}

/// An optional field that may be absent or invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given<T> {
    is_given: bool,
    /// `None` if the field is absent or invalid.
    value: Option<T>,
}

impl<T: PartialEq> Given<T> {
    fn of(given: Option<&Value>, read: impl Fn(&Value) -> Option<T>) -> Self {
        Self { is_given: given.is_some(), value: given.and_then(read) }
    }

    fn differs_from(&self, stored: &T) -> bool {
        self.is_given && self.value.as_ref() != Some(stored)
    }
}

/// A charge that was paid, or that can no longer be paid. Only the transaction id is required: if a
/// payment were rejected for another field, the payer would still get the offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargeEnded {
    /// See [`transaction_name`].
    pub transaction_id: String,
    pub correlation_id: Option<String>,
    bot: Given<String>,
    telegram_id: Given<i64>,
}

impl ChargeEnded {
    /// Reads `{transaction_id, bot_slug?, telegram_id?, correlation_id?}` from a gateway.
    pub fn read(body: &Map<String, Value>, gateway: &str) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::open(body);
        let transaction_id = read_transaction_id(&mut fields, gateway);
        let slug = |given: &Value| given.as_str().filter(|slug| is_name(slug)).map(str::to_owned);
        let ended = transaction_id.map(|transaction_id| Self {
            transaction_id,
            correlation_id: fields.get("correlation_id").and_then(id_of),
            bot: Given::of(fields.get("bot_slug"), slug),
            telegram_id: Given::of(fields.get("telegram_id"), person_of),
        });
        fields.finish(ended)
    }

    /// Returns the charge of the person that the body names. `None` unless the body names both the
    /// bot and the person.
    pub fn named(&self) -> Option<Charge<'_>> {
        let (bot, telegram_id) = (self.bot.value.as_deref()?, self.telegram_id.value?);
        Some(Charge { bot, telegram_id, transaction_id: &self.transaction_id })
    }

    /// Returns the fields that are present and do not match the owner of the stored transaction.
    pub fn differs(&self, stored: &Charge<'_>) -> Vec<OwnerField> {
        let of_bot = self.bot.differs_from(&stored.bot.to_owned()).then_some(OwnerField::BotSlug);
        let of_person = self.telegram_id.differs_from(&stored.telegram_id).then_some(OwnerField::TelegramId);
        of_bot.into_iter().chain(of_person).collect()
    }
}

/// Reads a person's id in a request to our own API. It must be a number; text is an error.
pub fn read_telegram_id(fields: &mut Fields<'_>) -> Option<i64> {
    if fields.get("telegram_id").is_some_and(Value::is_string) {
        fields.refuse("telegram_id", FieldProblem::WrongType, NOT_A_PERSON);
        return None;
    }
    read_id_of_person(fields)
}

const NOT_A_PERSON: &str = "must be the number of a Telegram user";

fn read_id_of_person(fields: &mut Fields<'_>) -> Option<i64> {
    let Some(given) = fields.get("telegram_id") else {
        fields.refuse("telegram_id", FieldProblem::Missing, "is required");
        return None;
    };
    let id = person_of(given);
    if id.is_none() {
        let problem = match given {
            Value::Number(_) => FieldProblem::OutOfRange,
            Value::String(_) => FieldProblem::Malformed,
            _ => FieldProblem::WrongType,
        };
        fields.refuse("telegram_id", problem, NOT_A_PERSON);
    }
    id
}

fn person_of(given: &Value) -> Option<i64> {
    let id = match given {
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        given => given.as_i64(),
    };
    id.filter(|id| (1..=LARGEST_TELEGRAM_ID).contains(id))
}

fn read_transaction_id(fields: &mut Fields<'_>, gateway: &str) -> Option<String> {
    let missing = match fields.get("transaction_id") {
        Some(Value::String(text)) if text.trim().is_empty() => "is blank",
        Some(given) => return read_id(fields, "transaction_id", given).map(|id| transaction_name(gateway, &id)),
        None => "is required",
    };
    fields.refuse("transaction_id", FieldProblem::Missing, missing);
    None
}

fn read_id(fields: &mut Fields<'_>, name: &'static str, given: &Value) -> Option<String> {
    let id = id_of(given);
    if id.is_none() {
        let detail = format!("must be a whole number, or 1 to {LONGEST_ID} visible ASCII characters");
        let is_id = given.is_string() || given.is_number();
        fields.refuse(name, if is_id { FieldProblem::Malformed } else { FieldProblem::WrongType }, detail);
    }
    id
}

/// Returns an id as text. A number is the same id as its digits.
fn id_of(given: &Value) -> Option<String> {
    let text = match given {
        Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    let fits = (1..=LONGEST_ID).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::parse("2026-03-10T12:00:00Z").expect("a time")
    }

    fn created(more: &Value) -> Result<ChargeCreated, Vec<FieldError>> {
        let mut body = json!({"bot_slug": "loja", "telegram_id": 123_456_789, "transaction_id": "tx-test-123"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        ChargeCreated::read(body.as_object().expect("an object"), "default", now())
    }

    fn ended(body: &Value) -> Result<ChargeEnded, Vec<FieldError>> {
        ChargeEnded::read(body.as_object().expect("an object"), "default")
    }

    #[test]
    fn the_times_of_a_charge_are_read_or_have_defaults() {
        let plain = created(&json!({})).expect("fits");
        assert_eq!((plain.at, plain.open_until), (now(), now().plus_days(OPEN_DAYS)));
        let times = json!({"created_at": "2026-03-10T11:00:00Z", "expires_at": "2026-03-10T13:00:00Z"});
        let read = created(&times).expect("fits");
        assert_eq!((read.at, read.open_until), (now().plus_ms(-3_600_000), now().plus_ms(3_600_000)));
    }

    #[test]
    fn unknown_fields_of_a_gateway_are_ignored_and_ids_may_be_numbers_or_text() {
        let more = json!({"amount": 1990, "status": "pending", "data": {"id": 7}, "telegram_id": "123456789",
            "transaction_id": 42, "correlation_id": 43});
        let read = created(&more).expect("fits");
        assert_eq!((read.telegram_id, read.transaction_id.as_str()), (123_456_789, "42"));
        assert_eq!(read.correlation_id.as_deref(), Some("43"));
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        for (more, field, code) in [
            (json!({"telegram_id": "12 3"}), "telegram_id", "malformed"),
            (json!({"telegram_id": "+123"}), "telegram_id", "malformed"),
            (json!({"telegram_id": ""}), "telegram_id", "malformed"),
            (json!({"telegram_id": [1]}), "telegram_id", "wrong_type"),
            (json!({"telegram_id": 1.5}), "telegram_id", "out_of_range"),
            (json!({"telegram_id": -5}), "telegram_id", "out_of_range"),
            (json!({"telegram_id": null}), "telegram_id", "missing"),
            (json!({"transaction_id": ""}), "transaction_id", "missing"),
            (json!({"transaction_id": "a b"}), "transaction_id", "malformed"),
            (json!({"transaction_id": 1.5}), "transaction_id", "malformed"),
            (json!({"transaction_id": true}), "transaction_id", "wrong_type"),
            (json!({"transaction_id": "x".repeat(129)}), "transaction_id", "malformed"),
            (json!({"correlation_id": "ç"}), "correlation_id", "malformed"),
            (json!({"bot_slug": "a#b"}), "bot_slug", "malformed"),
            (json!({"created_at": "2026-03-10T12:06:00Z"}), "created_at", "out_of_range"),
            (json!({"expires_at": "2028-03-10T12:00:00Z"}), "expires_at", "out_of_range"),
        ] {
            let errors = created(&more).expect_err("refused");
            let read: Vec<_> = errors.iter().map(|error| (error.field.as_str(), error.code.as_str())).collect();
            assert_eq!(read, [(field, code)], "{more}");
        }
    }

    #[test]
    fn our_own_api_accepts_a_telegram_id_only_as_a_number() {
        for (given, code) in [(json!("5"), "wrong_type"), (json!({}), "wrong_type"), (json!(0), "out_of_range")] {
            let body = json!({ "telegram_id": given });
            let mut fields = Fields::of(body.as_object().expect("an object"));
            let id = read_telegram_id(&mut fields);
            assert_eq!(fields.finish(id).expect_err("refused")[0].code.as_str(), code, "{given}");
        }
    }

    #[test]
    fn the_end_of_a_charge_needs_only_a_transaction_id() {
        for more in [
            json!({}),
            json!({"bot_slug": 7, "telegram_id": "ana", "correlation_id": "a b", "amount": 1}),
            json!({"bot_slug": null, "telegram_id": null}),
        ] {
            let mut body = json!({"transaction_id": 42});
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let read = ended(&body).expect("fits");
            assert_eq!((read.transaction_id.as_str(), read.correlation_id.as_deref()), ("42", None), "{more}");
            assert_eq!(read.named(), None, "{more}");
        }
        let named = ended(&json!({"transaction_id": "t", "bot_slug": "loja", "telegram_id": "7"})).expect("fits");
        assert_eq!(named.named(), Some(Charge { bot: "loja", telegram_id: 7, transaction_id: "t" }));
        for body in [json!({}), json!({"transaction_id": null}), json!({"transaction_id": "a b"})] {
            assert_eq!(ended(&body).expect_err("refused")[0].field, "transaction_id", "{body}");
        }
    }

    #[test]
    fn fields_that_name_another_owner_are_listed() {
        use OwnerField::{BotSlug, TelegramId};
        for (more, differs) in [
            (json!({}), vec![]),
            (json!({"bot_slug": "loja", "telegram_id": "7"}), vec![]),
            (json!({"bot_slug": "outra"}), vec![BotSlug]),
            (json!({"telegram_id": 8}), vec![TelegramId]),
            (json!({"bot_slug": "a b", "telegram_id": {}}), vec![BotSlug, TelegramId]),
        ] {
            let mut body = json!({"transaction_id": "t"});
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            assert_eq!(
                ended(&body).expect("fits").differs(&Charge { bot: "loja", telegram_id: 7, transaction_id: "t" }),
                differs,
                "{more}"
            );
        }
    }
}
