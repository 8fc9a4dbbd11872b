//! Parses as much PartiQL as identifies a call: what a statement does, and to which table.

use serde_json::Value;

/// The kind of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Insert,
    Update,
    Delete,
    Select,
}

impl Verb {
    /// Returns the action that a policy has to allow for it.
    pub(super) fn action(self) -> &'static str {
        match self {
            Self::Insert => "PartiQLInsert",
            Self::Update => "PartiQLUpdate",
            Self::Delete => "PartiQLDelete",
            Self::Select => "PartiQLSelect",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statement<'a> {
    pub(super) verb: Verb,
    pub(super) table: &'a str,
    index: Option<&'a str>,
}

impl<'a> Statement<'a> {
    pub(super) fn read(text: &'a str) -> Option<Self> {
        let (verb, rest) = next_word(text);
        let (verb, rest) = match verb.to_uppercase().as_str() {
            "INSERT" => (Verb::Insert, after("INTO", rest)?),
            "UPDATE" => (Verb::Update, rest),
            "DELETE" => (Verb::Delete, after("FROM", rest)?),
            _ => (Verb::Select, after("FROM", rest)?),
        };
        let (table, rest) = name(rest);
        let index = rest.strip_prefix('.').map(|index| name(index).0);
        Some(Self { verb, table, index })
    }

    /// Returns the table, or its index, as a policy names it.
    pub(super) fn on(&self) -> String {
        self.index.map_or_else(|| self.table.to_owned(), |index| format!("{}/index/{index}", self.table))
    }
}

/// Returns the texts of the statements of a request, in any of the fields that can hold them.
pub(super) fn texts(request: &Value) -> Vec<&str> {
    if let Some(one) = request["Statement"].as_str() {
        return vec![one];
    }
    let many = request["Statements"].as_array().or_else(|| request["TransactStatements"].as_array());
    many.into_iter().flatten().filter_map(|statement| statement["Statement"].as_str()).collect()
}

fn next_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

/// Returns the text after a word.
fn after<'a>(wanted: &str, mut text: &'a str) -> Option<&'a str> {
    loop {
        let (word, rest) = next_word(text);
        if word.is_empty() || word.eq_ignore_ascii_case(wanted) {
            return (!word.is_empty()).then_some(rest);
        }
        text = rest;
    }
}

/// Splits off a name, quoted or not, from the text that follows it.
fn name(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    match text.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
        None => {
            let ends = |letter: char| letter.is_whitespace() || ".({".contains(letter);
            text.split_at(text.find(ends).unwrap_or(text.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_says_what_it_does_and_to_which_table() {
        for (text, verb, on) in [
            ("INSERT INTO \"a-b\" VALUE {'pk': ?}", Verb::Insert, "a-b"),
            ("insert into rows value {'pk': 'UPDATE \"x\"'}", Verb::Insert, "rows"),
            ("UPDATE \"rows\" SET a = ? WHERE pk = ?", Verb::Update, "rows"),
            ("DELETE FROM \"rows\" WHERE pk = ?", Verb::Delete, "rows"),
            ("SELECT * FROM \"rows\" WHERE pk = ?", Verb::Select, "rows"),
            ("SELECT a, b\nFROM \"rows\".\"by-day\" WHERE day = ?", Verb::Select, "rows/index/by-day"),
            ("EXISTS(SELECT * FROM \"rows\" WHERE pk = ?)", Verb::Select, "rows"),
        ] {
            let statement = Statement::read(text).expect("the statement is readable");
            assert_eq!((statement.verb, statement.on().as_str()), (verb, on), "{text}");
        }
        for text in ["", "INSERT", "SELECT 1", "nonsense"] {
            assert_eq!(Statement::read(text), None, "{text}");
        }
    }
}
