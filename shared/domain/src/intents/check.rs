//! A validated check, with all values that the write needs.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::fingerprint::{bucket, bucket_end, fingerprint};
use super::rows::LIFETIME_DAYS;
use super::types::{IntentScope, IntentType, IntentTypes, WindowKind};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields, parse_uuid};
use crate::keys::{self, Key};
use crate::time::Timestamp;

/// How far `at` may be off: the clocks of callers differ slightly.
pub const MAX_SKEW_MS: i64 = 60_000;

/// Asks whether this intention may be sent to this client.
#[derive(Debug, Clone)]
pub struct Check {
    pub client: Uuid,
    pub intent_type: IntentType,
    pub reference: Option<Uuid>,
    pub at: Timestamp,
    pub bucket: i64,
    pub fingerprint: String,
}

impl Check {
    /// Reads `{client_id, intent_type, reference_id? | context?, at?}`.
    pub fn read(body: &Map<String, Value>, types: &IntentTypes, now: Timestamp) -> Result<Self, Vec<FieldError>> {
        Self::read_with(body, types, |fields, intent_type| read_at(fields, intent_type, now))
    }

    /// Reads the `intent` of a message that will be sent at `at`. It has the same fields, except
    /// for `at`.
    pub fn read_for(body: &Map<String, Value>, types: &IntentTypes, at: Timestamp) -> Result<Self, Vec<FieldError>> {
        Self::read_with(body, types, |_, _| at)
    }

    fn read_with(
        body: &Map<String, Value>,
        types: &IntentTypes,
        read_at: impl FnOnce(&mut Fields<'_>, Option<&IntentType>) -> Timestamp,
    ) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let client = fields.uuid("client_id");
        let intent_type = read_type(&mut fields, types);
        let reference = read_reference(&mut fields, intent_type);
        let at = read_at(&mut fields, intent_type);
        let check = client.zip(intent_type).map(|(client, known)| Self::new(client, known, reference, at));
        fields.finish(check)
    }

    pub fn new(client: Uuid, intent_type: &IntentType, reference: Option<Uuid>, at: Timestamp) -> Self {
        let bucket = bucket(at, intent_type.window_days);
        Self {
            client,
            intent_type: intent_type.clone(),
            reference,
            at,
            bucket,
            fingerprint: fingerprint(client, &intent_type.name, reference, bucket),
        }
    }

    /// Returns the guard's key. `None` if the type has no guard. With contact scope, all references
    /// share one guard. With bucket windows, each bucket has its own guard.
    pub fn guard_key(&self) -> Option<Key> {
        let reference = match self.intent_type.scope {
            IntentScope::Reference => self.reference,
            IntentScope::Contact => None,
        };
        let bucket = match self.intent_type.window {
            WindowKind::Bucket => Some(self.bucket),
            WindowKind::Rolling => None,
        };
        let name = &self.intent_type.name;
        self.intent_type.is_guarded().then(|| keys::intent_guard(self.client, name, reference, bucket))
    }

    /// Returns when the same intention may be sent again, if this one is sent.
    pub fn window_until(&self) -> Timestamp {
        match self.intent_type.window {
            WindowKind::Bucket => bucket_end(self.bucket, self.intent_type.window_days),
            WindowKind::Rolling => self.at.plus_days(i64::from(self.intent_type.window_days)),
        }
    }
}

fn read_type<'t>(fields: &mut Fields<'_>, types: &'t IntentTypes) -> Option<&'t IntentType> {
    let name = fields.text("intent_type")?;
    let detail = format!("must be one of {}", types.names());
    fields.or_refuse("intent_type", types.get(name), FieldProblem::Unknown, detail)
}

/// Reads the reference from `reference_id`, or from the type's field of `context`. Both are read in
/// any case, so that a malformed value is reported even if the type is unknown.
fn read_reference(fields: &mut Fields<'_>, intent_type: Option<&IntentType>) -> Option<Uuid> {
    let given = fields.optional_uuid("reference_id");
    let context = fields.optional_object("context");
    let Some(wanted) = &intent_type?.reference_field else {
        let detail = "is not allowed for this intent type";
        fields.refuse_if(given.is_some(), "reference_id", FieldProblem::NotAllowed, detail);
        return None;
    };
    let from_context = context.and_then(|context| read_context(fields, context, wanted));
    match (given, from_context) {
        (Some(given), Some(other)) if given != other => {
            fields.refuse("reference_id", FieldProblem::Conflicting, format!("differs from context.{wanted}"));
            None
        }
        (None, None) => {
            let is_missing = !fields.refused("reference_id") && !fields.refused(&format!("context.{wanted}"));
            let detail = format!("is required for this intent type, here or as context.{wanted}");
            fields.refuse_if(is_missing, "reference_id", FieldProblem::Missing, detail);
            None
        }
        (given, other) => given.or(other),
    }
}

/// Reads the reference from `context`. The other fields of `context` belong to the caller and are
/// ignored.
fn read_context(fields: &mut Fields<'_>, context: &Map<String, Value>, wanted: &str) -> Option<Uuid> {
    let value = context.get(wanted).filter(|value| !value.is_null())?;
    let id = value.as_str().and_then(parse_uuid);
    fields.or_refuse(&format!("context.{wanted}"), id, FieldProblem::Malformed, "must be a UUID")
}

fn read_at(fields: &mut Fields<'_>, intent_type: Option<&IntentType>, now: Timestamp) -> Timestamp {
    let Some(at) = fields.optional_timestamp("at") else { return now };
    if at > now.plus_ms(MAX_SKEW_MS) {
        fields.refuse("at", FieldProblem::OutOfRange, "is in the future");
    } else if let Some(intent_type) = intent_type
        && at.millis() <= now.millis() - intent_type.furthest_back_ms()
    {
        let detail = match intent_type.window {
            WindowKind::Bucket => {
                format!("is more than {} days in the past", LIFETIME_DAYS - i64::from(intent_type.window_days))
            }
            WindowKind::Rolling => {
                "is in the past, but the rolling window of this type counts from the last send".to_owned()
            }
        };
        fields.refuse("at", FieldProblem::OutOfRange, detail);
    }
    at
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";
    const REFERENCE: &str = "1e2feb89-7ed4-4c2c-9cc4-a6ce78e51061";

    fn now() -> Timestamp {
        Timestamp::parse("2026-03-10T12:00:00Z").expect("a time")
    }

    fn read(body: &Value) -> Result<Check, Vec<FieldError>> {
        let types = IntentTypes::with_options("{}").expect("built in");
        Check::read(body.as_object().expect("an object"), &types, now())
    }

    fn refusal(body: &Value) -> Vec<(String, FieldProblem)> {
        read(body).expect_err("refused").into_iter().map(|e| (e.field, e.code)).collect()
    }

    #[test]
    fn the_reference_may_come_from_the_context() {
        let context = json!({"vaga_id": REFERENCE, "campaign_id": "whatever", "note": 1});
        let by_context = read(&json!({"client_id": CLIENT, "intent_type": "offer_active", "context": context}));
        let direct = read(&json!({"client_id": CLIENT, "intent_type": "offer_active", "reference_id": REFERENCE}));
        assert_eq!(by_context.expect("taken").fingerprint, direct.expect("taken").fingerprint);
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        let cases = [
            (json!({}), vec![("client_id", FieldProblem::Missing), ("intent_type", FieldProblem::Missing)]),
            (
                json!({"client_id": "x", "intent_type": "nope"}),
                vec![("client_id", FieldProblem::Malformed), ("intent_type", FieldProblem::Unknown)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "offer_active"}),
                vec![("reference_id", FieldProblem::Missing)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "offer_active", "context": {"campaign_id": REFERENCE}}),
                vec![("reference_id", FieldProblem::Missing)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "offer_active", "context": {"vaga_id": 5}}),
                vec![("context.vaga_id", FieldProblem::Malformed)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "offer_active", "reference_id": "5"}),
                vec![("reference_id", FieldProblem::Malformed)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "offer_active", "reference_id": REFERENCE, "context": {"vaga_id": CLIENT}}),
                vec![("reference_id", FieldProblem::Conflicting)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "reference_id": REFERENCE}),
                vec![("reference_id", FieldProblem::NotAllowed)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": "2026-03-10T12:01:01Z"}),
                vec![("at", FieldProblem::OutOfRange)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": "0001-01-01T00:00:00Z"}),
                vec![("at", FieldProblem::OutOfRange)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": 1}),
                vec![("at", FieldProblem::WrongType)],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "cliente": 1}),
                vec![("cliente", FieldProblem::Unknown)],
            ),
        ];
        for (body, errors) in cases {
            let errors: Vec<_> = errors.into_iter().map(|(field, code)| (field.to_owned(), code)).collect();
            assert_eq!(refusal(&body), errors, "{body}");
        }
    }

    #[test]
    fn a_type_without_reference_ignores_the_context() {
        let body = json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "context": {"vaga_id": REFERENCE}});
        assert_eq!(read(&body).expect("taken").reference, None);
    }

    #[test]
    fn a_rolling_window_reaches_at_least_to_the_end_of_its_bucket() {
        let types = IntentTypes::with_options(r#"{"discovery_first_touch": {"window": "rolling"}}"#).expect("options");
        let rolling = types.get("discovery_first_touch").expect("known");
        let client = parse_uuid(CLIENT).expect("a UUID");
        for hour in 0..24 * 15 {
            let at = now().plus_ms(hour * 3_600_000);
            let check = Check::new(client, rolling, None, at);
            assert!(check.window_until() >= bucket_end(check.bucket, 7));
        }
    }

    #[test]
    fn a_time_whose_intents_may_have_expired_is_refused() {
        let nudge = |at: Timestamp| json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": at});
        let oldest = now().plus_days(-23).plus_ms(1);
        assert!(read(&nudge(oldest)).is_ok());
        assert_eq!(refusal(&nudge(now().plus_days(-23))), [("at".to_owned(), FieldProblem::OutOfRange)]);
        // The row of an accepted moment is alive, and no accepted moment shares a bucket with a row
        // that has expired.
        let check = read(&nudge(oldest)).expect("taken");
        let expired_at = now().plus_days(-30);
        assert!(check.bucket > bucket(expired_at, 7));
    }

    #[test]
    fn a_rolling_window_refuses_a_time_in_the_past() {
        let types = IntentTypes::with_options(r#"{"reactivation_nudge": {"window": "rolling"}}"#).expect("options");
        let ask = |ms: i64| {
            let body = json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": now().plus_ms(ms)});
            Check::read(body.as_object().expect("an object"), &types, now()).is_ok()
        };
        assert!(ask(-59_000) && ask(0) && ask(60_000));
        assert!(!ask(-60_000) && !ask(60_001));
    }
}
