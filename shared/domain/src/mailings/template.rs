//! The templates of a mailing: text with `{{name}}` as the placeholder of a recipient's column.
//! Templates have no logic and no raw placeholders: a value from a file is always data, in HTML, in
//! a header and in plain text.

use std::collections::{BTreeMap, BTreeSet};

use super::format::column_name;

/// The most characters of a subject after its variables are filled in; the rest is cut.
const LONGEST_SUBJECT: usize = 998;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(String),
}

/// Where the rendered text is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Html,
    Text,
    /// One line, whatever the values contain.
    Subject,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    target: Target,
}

/// A syntax error, written for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("has {{{{ without }}}} in line {line}")]
    NotClosed { line: usize },
    #[error("has {{{{}}}} without a name in line {line}")]
    NoName { line: usize },
    #[error("must not contain line ends or control characters")]
    NotOneLine,
}

impl Template {
    pub fn parse(text: &str, target: Target) -> Result<Self, TemplateError> {
        if target == Target::Subject && text.chars().any(is_break) {
            return Err(TemplateError::NotOneLine);
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let line = 1 + text[..text.len() - after.len()].matches('\n').count();
            let (name, after) = after.split_once("}}").ok_or(TemplateError::NotClosed { line })?;
            if name.contains("{{") || name.contains('\n') {
                return Err(TemplateError::NotClosed { line });
            }
            let name = column_name(name);
            if name.is_empty() {
                return Err(TemplateError::NoName { line });
            }
            parts.extend([Part::Text(before.to_owned()), Part::Variable(name)]);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self { parts, target })
    }

    /// Returns the variables that the template uses and that are not in `known`, each once.
    pub fn unknown<'a>(&'a self, known: &BTreeSet<&str>) -> BTreeSet<&'a str> {
        let used = self.parts.iter().filter_map(|part| match part {
            Part::Variable(name) => Some(name.as_str()),
            Part::Text(_) => None,
        });
        used.filter(|name| !known.contains(name)).collect()
    }

    /// Returns the bytes of the text for one recipient, before its values are escaped, without
    /// rendering it.
    pub(super) fn size(&self, email: &str, variables: &BTreeMap<String, String>) -> usize {
        let size = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Variable(name) => value(name, email, variables).len(),
        };
        self.parts.iter().map(size).sum()
    }

    /// Renders the text for one recipient. `email` is a variable too, unless the file has another
    /// column of that name. A variable without a value is empty.
    pub fn render(&self, email: &str, variables: &BTreeMap<String, String>) -> String {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Variable(name) => {
                    let value = value(name, email, variables);
                    match self.target {
                        Target::Html => escape(value, &mut filled),
                        Target::Text | Target::Subject => filled.push_str(value),
                    }
                }
            }
        }
        if self.target == Target::Subject { one_line(&filled) } else { filled }
    }
}

fn value<'a>(name: &str, email: &'a str, variables: &'a BTreeMap<String, String>) -> &'a str {
    let own = variables.get(name).map(String::as_str);
    own.unwrap_or(if name == "email" { email } else { "" })
}

/// Escapes a value for use between tags and in a quoted attribute.
pub(super) fn escape(value: &str, into: &mut String) {
    for c in value.chars() {
        match c {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&#39;"),
            _ => into.push(c),
        }
    }
}

/// Joins a text into one line, because a line end in a value would start another header.
fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if is_break(c) { ' ' } else { c }).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(LONGEST_SUBJECT).collect()
}

fn is_break(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str, target: Target, name: &str) -> String {
        let variables = BTreeMap::from([("nome".to_owned(), name.to_owned())]);
        Template::parse(text, target).expect("a template").render("a@b.co", &variables)
    }

    #[test]
    fn a_value_is_escaped_for_its_target_and_is_not_a_template() {
        let name = "<b title=\"x\">Zé & 'Cia'</b>";
        let escaped = "&lt;b title=&quot;x&quot;&gt;Zé &amp; &#39;Cia&#39;&lt;/b&gt;";
        assert_eq!(rendered("<p>{{nome}}</p>", Target::Html, name), format!("<p>{escaped}</p>"));
        assert_eq!(rendered("Olá {{ Nome }}!\n", Target::Text, name), format!("Olá {name}!\n"));
        assert_eq!(rendered("{{nome}}", Target::Text, "{{email}}"), "{{email}}", "a value is not a template");
        assert_eq!(rendered("{{email}} {{falta}}.", Target::Text, ""), "a@b.co .");
    }

    #[test]
    fn a_rendered_subject_is_always_one_line() {
        let name = "Ana\r\nBcc: x@y.co\0\u{2028}\u{85}z";
        assert_eq!(rendered("Oi {{nome}}", Target::Subject, name), "Oi Ana Bcc: x@y.co z");
        assert_eq!(rendered("{{nome}}", Target::Subject, &"é".repeat(1_200)).chars().count(), LONGEST_SUBJECT);
        for text in ["a\nb", "a\r", "\0", "a\u{2028}b"] {
            assert_eq!(Template::parse(text, Target::Subject), Err(TemplateError::NotOneLine), "{text:?}");
        }
    }

    #[test]
    fn unknown_variables_are_named() {
        let template = Template::parse("{{nome}} {{x}} {{email}} {{ X }} {{y}}", Target::Text).expect("a template");
        let unknown = template.unknown(&BTreeSet::from(["email", "nome"]));
        assert_eq!(unknown.into_iter().collect::<Vec<_>>(), ["x", "y"]);
    }

    #[test]
    fn the_error_for_a_broken_template_names_its_line() {
        for (text, error) in [
            ("a\n{{nome", TemplateError::NotClosed { line: 2 }),
            ("{{a {{b}}", TemplateError::NotClosed { line: 1 }),
            ("{{a\n}}", TemplateError::NotClosed { line: 1 }),
            ("{{nome}}\n\n{{ }}", TemplateError::NoName { line: 3 }),
        ] {
            assert_eq!(Template::parse(text, Target::Text), Err(error), "{text:?}");
        }
        assert_eq!(TemplateError::NotClosed { line: 2 }.to_string(), "has {{ without }} in line 2");
        assert_eq!(rendered("body { color: red } }} {", Target::Html, ""), "body { color: red } }} {");
    }
}
