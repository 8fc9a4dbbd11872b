//! The types of intent, which are data. A deployment may change the window and the scope of a type,
//! but never its name, its reference or its days, because those are part of the fingerprint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::check::MAX_SKEW_MS;
use super::rows::LIFETIME_DAYS;
use crate::time::DAY_MS;

const BUILT_IN: &str = include_str!("../../data/intent_types.json");

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntentType {
    #[serde(rename = "intent_type")]
    pub name: String,
    /// The field of `context` that has the reference. `None` if the type takes no reference.
    pub reference_field: Option<String>,
    pub window_days: u32,
    pub window: WindowKind,
    pub scope: IntentScope,
}

/// How a window is counted. `Bucket` counts days from a fixed origin, so two sends on either side
/// of its edge can be minutes apart. `Rolling` counts from the last send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    Bucket,
    Rolling,
}

/// How often an intention may be sent per window. `Reference`: once per campaign, offer or
/// conversation. `Contact`: once, regardless of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentScope {
    Reference,
    Contact,
}

impl IntentType {
    /// Returns whether the type needs a guard because the row's own key does not constrain it
    /// enough.
    pub fn is_guarded(&self) -> bool {
        self.window == WindowKind::Rolling || self.scope == IntentScope::Contact
    }

    /// Returns how far back a caller's `at` may lie. A row lives [`LIFETIME_DAYS`]. A moment
    /// further back than that, less a window, could fall into a bucket whose row has expired, and
    /// the intention would be allowed twice. A rolling window counts from the last send, so only
    /// the difference of clocks is allowed.
    pub fn furthest_back_ms(&self) -> i64 {
        match self.window {
            WindowKind::Bucket => (LIFETIME_DAYS - i64::from(self.window_days)) * DAY_MS,
            WindowKind::Rolling => MAX_SKEW_MS,
        }
    }
}

/// Why the options of a deployment are invalid. They are refused at start, not at the first
/// request.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error("not a JSON object of intent types with `window` and `scope`: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("there is no intent type `{name}`; the types are {known}")]
    UnknownType { name: String, known: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    window: Option<WindowKind>,
    scope: Option<IntentScope>,
}

#[derive(Debug, Clone)]
pub struct IntentTypes(BTreeMap<String, IntentType>);

impl IntentTypes {
    /// Returns the ten types with the options of a deployment applied. `options` is a JSON object
    /// such as `{"discovery_first_touch": {"scope": "contact"}}`.
    pub fn with_options(options: &str) -> Result<Self, OptionsError> {
        let built_in: Vec<IntentType> = serde_json::from_str(BUILT_IN)?;
        let mut types: BTreeMap<_, _> = built_in.into_iter().map(|t| (t.name.clone(), t)).collect();
        let options: BTreeMap<String, Options> = serde_json::from_str(options)?;
        for (name, option) in options {
            let Some(known) = types.get_mut(&name) else {
                return Err(OptionsError::UnknownType { name, known: Self(types).names() });
            };
            known.window = option.window.unwrap_or(known.window);
            known.scope = option.scope.unwrap_or(known.scope);
        }
        Ok(Self(types))
    }

    pub fn get(&self, name: &str) -> Option<&IntentType> {
        self.0.get(name)
    }

    /// Returns the names of the types, as a list for a person.
    pub fn names(&self) -> String {
        self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_intent_types_have_their_specified_windows_and_references() {
        let types = IntentTypes::with_options("{}").expect("built in");
        let table: Vec<_> =
            types.0.values().map(|t| (t.name.as_str(), t.reference_field.as_deref(), t.window_days)).collect();
        assert_eq!(
            table,
            [
                ("discovery_first_touch", Some("campaign_id"), 7),
                ("discovery_followup", Some("campaign_id"), 3),
                ("followup_pending_docs", Some("conversation_id"), 2),
                ("followup_silence", Some("conversation_id"), 3),
                ("handoff_confirmation", Some("vaga_id"), 1),
                ("offer_active", Some("vaga_id"), 1),
                ("offer_reminder", Some("vaga_id"), 2),
                ("reactivation_nudge", None, 7),
                ("reactivation_value_prop", None, 7),
                ("shift_reminder", Some("vaga_id"), 1),
            ]
        );
        assert!(types.0.values().all(|t| !t.is_guarded()));
    }

    #[test]
    fn options_change_window_and_scope_of_one_type() {
        let types = IntentTypes::with_options(r#"{"offer_active": {"window": "rolling"}}"#).expect("options");
        assert!(types.get("offer_active").expect("known").is_guarded());
        assert!(!types.get("offer_reminder").expect("known").is_guarded());
    }

    #[test]
    fn the_error_for_an_unknown_type_lists_the_known_types() {
        let error = IntentTypes::with_options(r#"{"my_campaign": {}}"#).expect_err("unknown").to_string();
        let begins = "there is no intent type `my_campaign`; the types are discovery_first_touch, discovery_followup, ";
        assert!(error.starts_with(begins) && error.ends_with("shift_reminder"), "{error}");
    }

    #[test]
    fn unknown_or_invalid_options_are_refused() {
        for options in [
            "",
            "[]",
            r#"{"offer": {}}"#,
            r#"{"offer_active": {"window_days": 2}}"#,
            r#"{"offer_active": {"scope": "all"}}"#,
        ] {
            assert!(IntentTypes::with_options(options).is_err(), "{options}");
        }
    }
}
