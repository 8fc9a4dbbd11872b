//! The settings of an instance: an Evolution instance, a Telegram bot, or a name that the caller
//! chose.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use crate::codes::FieldProblem;
use crate::conversations::Via;
use crate::fields::{FieldError, Fields};
use crate::time::{SECOND_MS, Timestamp};

const LONGEST_URL: usize = 2_048;
/// The time between the end of a call to the responder and the end of its worker's lease.
const LEASE_MARGIN_MS: i64 = 15 * SECOND_MS;
/// The bounds of the backoff between two calls to a responder that fails.
const FIRST_BACKOFF_MS: i64 = 5 * SECOND_MS;
const LONGEST_BACKOFF_MS: i64 = 300 * SECOND_MS;

/// The times that a conversation follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    pub debounce_ms: i64,
    pub max_wait_ms: i64,
    pub lease_ms: i64,
    /// How long to wait for a late answer.
    pub callback_ms: i64,
    /// How many times the responder is called.
    pub attempts: u32,
    /// The wait after the first failure. It doubles with each further failure.
    pub backoff_ms: i64,
}

impl Timing {
    /// Returns the wait after this number of attempts.
    pub fn wait_ms(&self, attempts: u32) -> i64 {
        (self.backoff_ms << attempts.saturating_sub(1).min(10)).min(LONGEST_BACKOFF_MS)
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRow {
    pub channel: Via,
    pub instance: String,
    pub debounce_seconds: u32,
    pub max_wait_seconds: u32,
    /// `None` selects the deployment's own responder.
    pub responder_url: Option<String>,
    pub responder_timeout_seconds: u32,
    pub responder_attempts: u32,
    pub callback_seconds: u32,
    /// Older messages are stored but not answered.
    pub answer_within_seconds: u32,
    /// How long the bot is silent after a person wrote in its place. With zero, it is not silent at
    /// all.
    pub person_hold_seconds: u32,
    pub history_limit: u32,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
}

impl InstanceRow {
    pub fn timing(&self) -> Timing {
        let ms = |seconds: u32| i64::from(seconds) * SECOND_MS;
        Timing {
            debounce_ms: ms(self.debounce_seconds),
            max_wait_ms: ms(self.max_wait_seconds),
            lease_ms: ms(self.responder_timeout_seconds) + LEASE_MARGIN_MS,
            callback_ms: ms(self.callback_seconds),
            attempts: self.responder_attempts,
            backoff_ms: FIRST_BACKOFF_MS,
        }
    }

    /// Returns an instance with the default settings.
    pub fn by_default(channel: Via, instance: &str, now: Timestamp) -> Self {
        Self {
            channel,
            instance: instance.to_owned(),
            debounce_seconds: 5,
            max_wait_seconds: 30,
            responder_url: None,
            responder_timeout_seconds: 30,
            responder_attempts: 6,
            callback_seconds: 600,
            answer_within_seconds: 86_400,
            person_hold_seconds: 1_800,
            history_limit: 20,
            created_at: now,
            updated_at: now,
            version: 1,
        }
    }

    /// Returns whether a message is too old to be answered: for example, the history that a phone
    /// sends when it is linked again.
    pub fn is_old(&self, sent_at: Option<Timestamp>, now: Timestamp) -> bool {
        let within = i64::from(self.answer_within_seconds) * SECOND_MS;
        sent_at.is_some_and(|at| at.plus_ms(within) < now)
    }

    /// Reads the settings of an instance. A setting that is left out has its default value.
    pub fn read(
        channel: Via,
        instance: &str,
        body: &Map<String, Value>,
        now: Timestamp,
    ) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let mut row = Self::by_default(channel, instance, now);
        let mut number = |name: &'static str, value: &mut u32, range: std::ops::RangeInclusive<u32>| {
            *value = fields.number_within(name, range).unwrap_or(*value);
        };
        number("debounce_seconds", &mut row.debounce_seconds, 0..=300);
        number("max_wait_seconds", &mut row.max_wait_seconds, 1..=600);
        number("responder_timeout_seconds", &mut row.responder_timeout_seconds, 1..=60);
        number("responder_attempts", &mut row.responder_attempts, 1..=20);
        number("callback_seconds", &mut row.callback_seconds, 10..=86_400);
        number("answer_within_seconds", &mut row.answer_within_seconds, 60..=604_800);
        number("person_hold_seconds", &mut row.person_hold_seconds, 0..=604_800);
        number("history_limit", &mut row.history_limit, 0..=100);
        if row.max_wait_seconds < row.debounce_seconds && !fields.refused("max_wait_seconds") {
            fields.refuse("max_wait_seconds", FieldProblem::Conflicting, "must not be less than debounce_seconds");
        }
        row.responder_url = fields.optional_text("responder_url").map(str::to_owned);
        if row.responder_url.as_deref().is_some_and(|url| !is_https(url)) {
            fields.refuse(
                "responder_url",
                FieldProblem::Malformed,
                "must be an https URL with the name of a public host, of at most 2048 characters; any other address can be \
                 the deployment's parameter ResponderUrl",
            );
        }
        fields.finish(Some(row))
    }
}

/// Returns whether `text` is an https URL with a public host name. IP addresses, and names that
/// only a machine or its network knows, are refused.
fn is_https(text: &str) -> bool {
    let of_the_world = |url: url::Url| {
        let host = match url.host() {
            Some(url::Host::Domain(name)) => name.trim_end_matches('.').to_ascii_lowercase(),
            _ => return false,
        };
        let inner = ["localhost", "local", "internal"].iter().any(|end| host.rsplit('.').next() == Some(*end));
        url.scheme() == "https" && url.username().is_empty() && host.contains('.') && !inner
    };
    text.len() <= LONGEST_URL && url::Url::parse(text).is_ok_and(of_the_world)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<InstanceRow, Vec<FieldError>> {
        InstanceRow::read(Via::Whatsapp, "loja", body.as_object().expect("an object"), Timestamp::from_seconds(0))
    }

    #[test]
    fn by_default_the_debounce_is_five_seconds_and_the_longest_wait_is_thirty() {
        let timing = read(&json!({})).expect("defaults").timing();
        assert_eq!((timing.debounce_ms, timing.max_wait_ms), (5_000, 30_000));
        let timing = read(&json!({"debounce_seconds": 0, "max_wait_seconds": 1})).expect("read").timing();
        assert_eq!((timing.debounce_ms, timing.max_wait_ms), (0, 1_000));
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        for (body, field) in [
            (json!({"debounce_seconds": -1}), "debounce_seconds"),
            (json!({"debounce_seconds": "5"}), "debounce_seconds"),
            (json!({"debounce_seconds": 60}), "max_wait_seconds"),
            (json!({"responder_url": "http://example.com/"}), "responder_url"),
            (json!({"responder_url": "https://user@example.com/"}), "responder_url"),
            (json!({"responder_url": "nonsense"}), "responder_url"),
            (json!({"responder_url": "https://127.0.0.1/"}), "responder_url"),
            (json!({"responder_url": "https://[::1]/"}), "responder_url"),
            (json!({"responder_url": "https://2130706433/"}), "responder_url"),
            (json!({"responder_url": "https://localhost/"}), "responder_url"),
            (json!({"responder_url": "https://metadata.google.internal/"}), "responder_url"),
            (json!({"debounce": 5}), "debounce"),
        ] {
            let errors = read(&body).expect_err("refused");
            assert_eq!(errors[0].field, field, "{body}");
        }
    }

    #[test]
    fn the_wait_between_attempts_doubles_up_to_five_minutes() {
        let timing = read(&json!({})).expect("defaults").timing();
        let waits: Vec<_> = (1..=8).map(|attempts| timing.wait_ms(attempts) / 1_000).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_message_older_than_the_limit_is_history() {
        let row = read(&json!({"answer_within_seconds": 60})).expect("read");
        let now = Timestamp::from_seconds(1_000);
        assert!(!row.is_old(Some(now.plus_ms(-60_000)), now));
        assert!(row.is_old(Some(now.plus_ms(-60_001)), now));
        assert!(!row.is_old(None, now), "without a time it is new");
    }
}
