//! A downsell: what is offered, how long after which trigger, and how often to the same person.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use crate::change::{Fence, Row};
use crate::channels::content::{Telegram, read as read_content};
use crate::channels::{Channel, Content};
use crate::codes::{FieldProblem, codes};
use crate::fields::{FieldError, Fields};
use crate::keys::{self, Key};
use crate::time::Timestamp;

/// The maximum number of downsells of one bot: one trigger decides on all of them in one
/// transaction.
pub const MOST_DOWNSELLS: u32 = 30;

const LONGEST_NAME: usize = 120;
const DEFAULT_DELAY_MINUTES: u32 = 20;
/// Thirty days.
const LONGEST_DELAY_MINUTES: u32 = 43_200;
const DEFAULT_EXPIRY_MINUTES: u32 = 1_440;
const LONGEST_COOLDOWN_DAYS: u32 = 3_650;

codes! {
    /// How often the same person gets the downsell.
    Rearm {
        /// Each new /start or charge may schedule the downsell again, once the last offer has
        /// ended.
        OncePerTrigger = "once_per_trigger",
        /// The downsell is not sent again after it was sent once.
        OnceEver = "once_ever",
        /// The downsell is not sent again until `cooldown_days` after it was sent.
        CooldownDays = "cooldown_days",
    }
}

codes! {
    /// A setting that is allowed, but may be a mistake.
    Warning {
        /// Neither a /start nor a charge schedules the downsell.
        NoTrigger = "no_trigger",
        /// The downsell is not active: triggers do not schedule it.
        Inactive = "inactive",
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownsellRow {
    pub id: u64,
    /// The slug of the bot.
    pub slug: String,
    pub name: String,
    pub content: Telegram,
    pub delay_minutes: u32,
    pub active: bool,
    pub after_start: bool,
    pub after_pix: bool,
    pub rearm: Rearm,
    pub cooldown_days: Option<u32>,
    /// An offer that has not left this long after its scheduled time is no longer sent.
    pub expires_after_minutes: u32,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
}

impl Row for DownsellRow {
    fn key(&self) -> Key {
        keys::downsell(&self.slug, self.id)
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
}

impl DownsellRow {
    /// Reads a new downsell of a bot. Its id is 0 until the store has numbered it.
    pub fn read(slug: &str, body: &Map<String, Value>, now: Timestamp) -> Result<Self, Vec<FieldError>> {
        let blank = Self {
            id: 0,
            slug: slug.to_owned(),
            name: String::new(),
            content: Telegram { text: None, parse_mode: None, media: None, buttons: None },
            delay_minutes: DEFAULT_DELAY_MINUTES,
            active: true,
            after_start: true,
            after_pix: false,
            rearm: Rearm::OncePerTrigger,
            cooldown_days: None,
            expires_after_minutes: DEFAULT_EXPIRY_MINUTES,
            created_at: now,
            updated_at: now,
            version: 0,
        };
        blank.read_over(body)
    }

    /// Reads a change. Fields that are absent keep their values.
    pub fn read_change(&self, body: &Map<String, Value>, now: Timestamp) -> Result<Self, Vec<FieldError>> {
        Self { updated_at: now, ..self.clone() }.read_over(body)
    }

    fn read_over(self, body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let (name, content) = (read_name(&mut fields), read_offer(&mut fields));
        for (field, given) in [("name", name.is_some()), ("content", content.is_some())] {
            let is_missing = !given && self.version == 0;
            if is_missing && !fields.refused(field) && !body.get(field).is_some_and(Value::is_object) {
                fields.refuse(field, FieldProblem::Missing, "is required");
            }
        }
        let delay_minutes = fields.whole_number("delay_minutes", 0..=LONGEST_DELAY_MINUTES);
        let expires_after_minutes = fields.whole_number("expires_after_minutes", 1..=LONGEST_DELAY_MINUTES);
        let mut flag = |name, stored| fields.optional_bool(name).unwrap_or(stored);
        let active = flag("active", self.active);
        let after_start = flag("after_start", self.after_start);
        let after_pix = flag("after_pix", self.after_pix);
        let (rearm, cooldown_days) = read_rearm(&mut fields, &self);
        fields.finish(Some(Self {
            name: name.unwrap_or(self.name),
            content: content.unwrap_or(self.content),
            delay_minutes: delay_minutes.unwrap_or(self.delay_minutes),
            active,
            after_start,
            after_pix,
            rearm,
            cooldown_days,
            expires_after_minutes: expires_after_minutes.unwrap_or(self.expires_after_minutes),
            version: self.version + 1,
            ..self
        }))
    }

    pub fn warnings(&self) -> Vec<Warning> {
        let no_trigger = (!self.after_start && !self.after_pix).then_some(Warning::NoTrigger);
        no_trigger.into_iter().chain((!self.active).then_some(Warning::Inactive)).collect()
    }

    pub fn scheduled_at(&self, triggered_at: Timestamp) -> Timestamp {
        triggered_at.plus_ms(minutes_ms(self.delay_minutes))
    }

    pub fn not_after(&self, scheduled_at: Timestamp) -> Timestamp {
        scheduled_at.plus_ms(minutes_ms(self.expires_after_minutes))
    }
}

fn minutes_ms(minutes: u32) -> i64 {
    i64::from(minutes) * 60_000
}

fn read_name(fields: &mut Fields<'_>) -> Option<String> {
    let name = fields.optional_text("name")?.trim();
    if name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
        let detail = format!("must be a line of at most {LONGEST_NAME} characters");
        fields.refuse("name", FieldProblem::OutOfRange, detail);
    }
    Some(name.to_owned())
}

fn read_offer(fields: &mut Fields<'_>) -> Option<Telegram> {
    let object = fields.optional_object("content")?;
    let mut found = Vec::new();
    let content = read_content(Channel::Telegram, object, &mut found);
    found.into_iter().for_each(|error| fields.refuse(error.field, error.code, error.detail));
    match content {
        Some(Content::Telegram(content)) => Some(content),
        _ => None,
    }
}

fn read_rearm(fields: &mut Fields<'_>, stored: &DownsellRow) -> (Rearm, Option<u32>) {
    let text = fields.optional_text("rearm").unwrap_or(stored.rearm.as_str());
    let rearm = Rearm::parse(text).unwrap_or_else(|| {
        let detail = "must be one of once_per_trigger, once_ever, cooldown_days";
        fields.refuse("rearm", FieldProblem::NotAllowed, detail);
        stored.rearm
    });
    let given = fields.whole_number("cooldown_days", 1..=LONGEST_COOLDOWN_DAYS);
    let days = given.or(stored.cooldown_days.filter(|_| stored.rearm == rearm));
    if rearm == Rearm::CooldownDays && days.is_none() && !fields.refused("cooldown_days") {
        fields.refuse("cooldown_days", FieldProblem::Missing, "is required if rearm is cooldown_days");
    }
    if rearm != Rearm::CooldownDays && given.is_some() {
        fields.refuse("cooldown_days", FieldProblem::Conflicting, "is allowed only if rearm is cooldown_days");
    }
    (rearm, days.filter(|_| rearm == Rearm::CooldownDays))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(5);

    fn read(body: &Value) -> Result<DownsellRow, Vec<FieldError>> {
        DownsellRow::read("loja", body.as_object().expect("an object"), NOW)
    }

    fn with(more: &Value) -> Value {
        let mut body = json!({"name": "Oferta", "content": {"text": "Ainda está aí?"}});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    }

    fn refused(body: &Value) -> Vec<(String, &'static str)> {
        let errors = read(body).expect_err("refused");
        errors.into_iter().map(|error| (error.field, error.code.as_str())).collect()
    }

    #[test]
    fn omitted_fields_have_their_defaults() {
        let new = read(&with(&json!({}))).expect("fits");
        assert_eq!((new.delay_minutes, new.active, new.after_start, new.after_pix), (20, true, true, false));
        assert_eq!((new.rearm, new.expires_after_minutes), (Rearm::OncePerTrigger, 1_440));
    }

    #[test]
    fn a_change_keeps_the_fields_that_it_leaves_out() {
        let first = with(&json!({"rearm": "cooldown_days", "cooldown_days": 7}));
        let standing = DownsellRow { id: 3, ..read(&first).expect("fits") };
        assert_eq!((standing.slug.as_str(), standing.version), ("loja", 1));
        let change = json!({"delay_minutes": 30, "after_pix": true});
        let row = standing.read_change(change.as_object().expect("an object"), NOW.plus_ms(1)).expect("fits");
        let expected = DownsellRow {
            delay_minutes: 30,
            after_pix: true,
            updated_at: NOW.plus_ms(1),
            version: 2,
            ..standing.clone()
        };
        assert_eq!(row, expected);
        let ever = json!({"rearm": "once_ever"});
        let changed = standing.read_change(ever.as_object().expect("an object"), NOW).expect("fits");
        assert_eq!((changed.rearm, changed.cooldown_days), (Rearm::OnceEver, None));
    }

    #[test]
    fn only_a_downsell_without_any_trigger_is_accepted_with_a_warning() {
        for (after_start, after_pix, warnings) in
            [(false, false, &[Warning::NoTrigger][..]), (true, false, &[]), (false, true, &[]), (true, true, &[])]
        {
            let body = with(&json!({"after_start": after_start, "after_pix": after_pix}));
            assert_eq!(read(&body).expect("fits").warnings(), warnings, "{body}");
        }
    }

    #[test]
    fn content_and_a_name_of_the_maximum_length_are_accepted() {
        let name = "é".repeat(120);
        let row = read(&with(&json!({"name": name}))).expect("fits");
        assert_eq!((row.name, row.content.text.as_deref()), (name, Some("Ainda está aí?")));
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        for (more, field, code) in [
            (json!({"delay_minutes": -1}), "delay_minutes", "out_of_range"),
            (json!({"delay_minutes": 43_201}), "delay_minutes", "out_of_range"),
            (json!({"delay_minutes": 1.5}), "delay_minutes", "out_of_range"),
            (json!({"delay_minutes": "20"}), "delay_minutes", "wrong_type"),
            (json!({"expires_after_minutes": 0}), "expires_after_minutes", "out_of_range"),
            (json!({"active": "yes"}), "active", "wrong_type"),
            (json!({"name": " "}), "name", "missing"),
            (json!({"name": "n".repeat(121)}), "name", "out_of_range"),
            (json!({"name": "Oferta\n2"}), "name", "out_of_range"),
            (json!({"content": "text"}), "content", "wrong_type"),
            (json!({"content": {"text": "a.b", "parse_mode": "MarkdownV2"}}), "content.text", "malformed"),
            (json!({"content": {"text": "a", "photo": "b"}}), "content.photo", "unknown"),
            (json!({"rearm": "sometimes"}), "rearm", "not_allowed"),
            (json!({"rearm": "cooldown_days"}), "cooldown_days", "missing"),
            (json!({"cooldown_days": 3}), "cooldown_days", "conflicting"),
            (json!({"delay": 3}), "delay", "unknown"),
        ] {
            assert_eq!(refused(&with(&more)), [(field.to_owned(), code)], "{more}");
        }
        let nothing = refused(&json!({}));
        assert_eq!(nothing, [("name".to_owned(), "missing"), ("content".to_owned(), "missing")]);
    }
}
