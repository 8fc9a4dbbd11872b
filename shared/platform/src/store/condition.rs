//! Conditions as sentences: built from named parts, rendered with a placeholder for every name and
//! value.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use umavez_domain::keys::EXPIRES_AT;
use umavez_domain::time::Timestamp;

use super::Item;
use super::write::{stamp_of, stamps};

/// What must hold for the row before a write changes it.
#[derive(Debug, Clone)]
pub enum Condition {
    /// The row does not exist.
    Absent,
    Has(String),
    HasNot(String),
    Is(String, AttributeValue),
    IsNot(String, AttributeValue),
    /// The attribute exists and is not greater.
    AtMost(String, i64),
    /// The attribute exists and is greater.
    MoreThan(String, i64),
    /// The attribute is a string that starts with this prefix.
    BeginsWith(String, AttributeValue),
    /// The attribute is a list that does not contain this string.
    Lacks(String, AttributeValue),
    /// The attribute is a list, string or map with fewer parts than this.
    Shorter(String, usize),
    /// This same write has not stamped the attribute: see [`super::Write::stamp`].
    NotStamped(String),
    All(Vec<Condition>),
    Any(Vec<Condition>),
}

impl Condition {
    /// The row exists.
    pub fn exists() -> Self {
        Self::has("pk")
    }

    /// The version counter of the row is the one that the caller read, so no other writer has
    /// changed the row since. A row that was never written has version 0.
    pub fn version(version: u64) -> Self {
        if version == 0 { Self::Absent } else { Self::is_number("version", version) }
    }

    pub fn has(name: &str) -> Self {
        Self::Has(name.to_owned())
    }

    pub fn has_not(name: &str) -> Self {
        Self::HasNot(name.to_owned())
    }

    pub fn is(name: &str, text: impl Into<String>) -> Self {
        Self::Is(name.to_owned(), AttributeValue::S(text.into()))
    }

    pub fn is_not(name: &str, text: impl Into<String>) -> Self {
        Self::IsNot(name.to_owned(), AttributeValue::S(text.into()))
    }

    pub fn is_number(name: &str, number: impl ToString) -> Self {
        Self::Is(name.to_owned(), AttributeValue::N(number.to_string()))
    }

    pub fn at_most(name: &str, number: i64) -> Self {
        Self::AtMost(name.to_owned(), number)
    }

    pub fn more_than(name: &str, number: i64) -> Self {
        Self::MoreThan(name.to_owned(), number)
    }

    /// The row has not expired. Conditions compare the time, because TTL deletes late.
    pub fn alive(now: Timestamp) -> Self {
        Self::more_than(EXPIRES_AT, now.seconds())
    }

    /// The row has expired, but TTL has not removed it yet.
    pub fn expired(now: Timestamp) -> Self {
        Self::at_most(EXPIRES_AT, now.seconds())
    }

    pub fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::All(parts.into_iter().collect())
    }

    pub fn any(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::Any(parts.into_iter().collect())
    }

    pub fn begins_with(name: &str, prefix: &str) -> Self {
        Self::BeginsWith(name.to_owned(), AttributeValue::S(prefix.to_owned()))
    }

    pub fn lacks(name: &str, text: impl Into<String>) -> Self {
        Self::Lacks(name.to_owned(), AttributeValue::S(text.into()))
    }

    pub fn shorter(name: &str, than: usize) -> Self {
        Self::Shorter(name.to_owned(), than)
    }

    /// This same write is not among the latest that have stamped the row.
    pub fn not_stamped(name: &str) -> Self {
        let not_by = |name: &String| Self::any([Self::has_not(name), Self::NotStamped(name.clone())]);
        Self::all(stamps(name).iter().map(not_by).collect::<Vec<_>>())
    }

    pub(super) fn render(&self, into: &mut Placeholders) -> String {
        match self {
            Self::Absent => format!("attribute_not_exists({})", into.name("pk")),
            Self::Has(name) => format!("attribute_exists({})", into.name(name)),
            Self::HasNot(name) => format!("attribute_not_exists({})", into.name(name)),
            Self::Is(name, value) => format!("{} = {}", into.name(name), into.value(value.clone())),
            Self::IsNot(name, value) => format!("{} <> {}", into.name(name), into.value(value.clone())),
            Self::AtMost(name, number) => format!("{} <= {}", into.name(name), into.number(*number)),
            Self::MoreThan(name, number) => format!("{} > {}", into.name(name), into.number(*number)),
            Self::BeginsWith(name, value) => format!("begins_with({}, {})", into.name(name), into.value(value.clone())),
            Self::Lacks(name, value) => format!("NOT contains({}, {})", into.name(name), into.value(value.clone())),
            Self::Shorter(name, than) => {
                let than = i64::try_from(*than).unwrap_or(i64::MAX);
                format!("size({}) < {}", into.name(name), into.number(than))
            }
            Self::NotStamped(name) => {
                let token = AttributeValue::S(stamp_of(&into.token).to_owned());
                format!("{} <> {}", into.name(name), into.value(token))
            }
            Self::All(parts) => join(parts, " AND ", into),
            Self::Any(parts) => join(parts, " OR ", into),
        }
    }
}

/// Joins the rendered parts. DynamoDB rejects redundant parentheses, so a single part gets none.
fn join(parts: &[Condition], word: &str, into: &mut Placeholders) -> String {
    if let [only] = parts {
        return only.render(into);
    }
    let parts: Vec<_> = parts.iter().map(|part| format!("({})", part.render(into))).collect();
    parts.join(word)
}

/// The names and values of one request, each under a placeholder, because attribute names may be
/// reserved words.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    pub(super) names: HashMap<String, String>,
    pub(super) values: HashMap<String, AttributeValue>,
    /// The token of the write that this request makes.
    token: String,
}

impl Placeholders {
    pub(super) fn of_write(token: &str) -> Self {
        Self { token: token.to_owned(), ..Self::default() }
    }

    pub(super) fn name(&mut self, name: &str) -> String {
        let placeholder = format!("#{name}");
        self.names.insert(placeholder.clone(), name.to_owned());
        placeholder
    }

    pub(super) fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    pub(super) fn text(&mut self, text: &str) -> String {
        self.value(AttributeValue::S(text.to_owned()))
    }

    pub(super) fn number(&mut self, number: i64) -> String {
        self.value(AttributeValue::N(number.to_string()))
    }

    /// Returns `None` in place of an empty map, which the SDK does not accept.
    pub(super) fn into_parts(self) -> (Option<HashMap<String, String>>, Option<Item>) {
        let some_names = !self.names.is_empty();
        let some_values = !self.values.is_empty();
        (some_names.then_some(self.names), some_values.then_some(self.values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_becomes_one_expression_with_placeholders() {
        let free = Condition::any([
            Condition::Absent,
            Condition::at_most("expires_at", 7),
            Condition::all([Condition::is("status", "HELD"), Condition::has_not("guard")]),
        ]);
        let mut placeholders = Placeholders::default();
        assert_eq!(
            free.render(&mut placeholders),
            "(attribute_not_exists(#pk)) OR (#expires_at <= :v0) OR ((#status = :v1) AND (attribute_not_exists(#guard)))"
        );
        assert_eq!(placeholders.values.len(), 2);
        let alone = Condition::all([Condition::has("a"), Condition::all([Condition::is("b", "x")])]);
        assert_eq!(alone.render(&mut Placeholders::default()), "(attribute_exists(#a)) AND (#b = :v0)");
        assert_eq!(placeholders.names["#status"], "status");
    }
}
