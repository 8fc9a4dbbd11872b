//! The content of a mailing, in the form that is stored beside the mailing's row, and how a request
//! is read into it. The checks are those of any email; in addition, the subject, HTML and text must
//! each be a valid template.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::format::Format;
use super::template::{Target, Template, TemplateError};
use crate::channels::content::{Content, Email, address_of_mailbox, read_email};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::unicode::visible;

const LONGEST_LIST: usize = 100;

/// The most bytes of one recipient's subject, text and HTML together, before values are escaped.
/// Without this limit, a template that names a 64 KB column ten thousand times would crash the
/// worker.
const LARGEST_RENDERED: usize = 1024 * 1024;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailingContent {
    pub subject: String,
    pub html: Option<String>,
    pub text: Option<String>,
    /// An address, or `Name <address>`.
    pub from: String,
    pub reply_to: Option<String>,
}

impl MailingContent {
    /// Reads the content if the request gives any of its fields. A mailing without content waits;
    /// partial content is refused.
    pub(super) fn read_optional(fields: &mut Fields<'_>) -> Option<Self> {
        let given = ["subject", "html", "text", "from", "reply_to"].map(|name| fields.get(name).is_some());
        if given.contains(&true) { Self::read(fields) } else { None }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let Email { from, subject, text, html, reply_to, .. } = read_email(fields)?;
        let content = Self { subject, html, text, from, reply_to };
        for (name, template) in content.templates() {
            if let Err(error) = template
                && !fields.refused(name)
            {
                fields.refuse(name, FieldProblem::Malformed, error.to_string());
            }
        }
        Some(content)
    }

    /// Returns the variables that the content uses and for which no recipient of the file has a
    /// value, by field. `unsubscribe` says whether the mailing has an unsubscribe link.
    pub fn misfits(&self, format: &Format, unsubscribe: bool) -> BTreeMap<&'static str, Vec<String>> {
        let mut known = format.variables();
        if unsubscribe {
            known.insert(UNSUBSCRIBE_URL);
        }
        self.unknown_variables(&known)
    }

    /// Returns the variables that the content uses and that are not in `known`, by field.
    pub fn unknown_variables(&self, known: &BTreeSet<&str>) -> BTreeMap<&'static str, Vec<String>> {
        let unknown = |(name, template): (_, Result<Template, _>)| {
            let template = template.ok()?;
            let names: Vec<_> = template.unknown(known).into_iter().map(str::to_owned).collect();
            (!names.is_empty()).then_some((name, names))
        };
        self.templates().filter_map(unknown).collect()
    }

    /// Returns the mail for one recipient. `headers` are those of the unsubscribe link.
    pub fn email(&self, rendered: Rendered, headers: Vec<(String, String)>) -> Content {
        let Rendered { subject, html, text } = rendered;
        let (from, reply_to) = (self.from.clone(), self.reply_to.clone());
        Content::Email(Email { from, subject, text, html, reply_to, headers })
    }

    fn templates(&self) -> impl Iterator<Item = (&'static str, Result<Template, TemplateError>)> {
        let texts = [
            ("subject", Some(&self.subject), Target::Subject),
            ("html", self.html.as_ref(), Target::Html),
            ("text", self.text.as_ref(), Target::Text),
        ];
        texts.into_iter().filter_map(|(name, text, target)| Some((name, Template::parse(text?, target))))
    }
}

/// The variable that holds each recipient's own unsubscribe link.
pub const UNSUBSCRIBE_URL: &str = "unsubscribe_url";

/// Returns the values for a recipient's templates: the columns of the file, the address under the
/// name of its column, and the unsubscribe link.
pub fn values(
    own: &BTreeMap<String, String>,
    email: &str,
    format: Option<&Format>,
    link: Option<String>,
) -> BTreeMap<String, String> {
    let mut values = own.clone();
    if let Some(name) = format.map(Format::email_name).filter(|name| !name.is_empty()) {
        values.insert(name.to_owned(), email.to_owned());
    }
    values.extend(link.map(|link| (UNSUBSCRIBE_URL.to_owned(), link)));
    values
}

/// The body of `PUT /mailings/{id}/content`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentRequest {
    pub content: MailingContent,
    /// If absent, the value from the upload applies.
    pub unsubscribe: Option<bool>,
    /// If absent, the list from the upload applies, or else the list of the from address.
    pub list: Option<String>,
}

impl ContentRequest {
    /// Reads `{subject, html | text, from, reply_to?, unsubscribe?, list?}`.
    pub fn read(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let content = MailingContent::read(&mut fields);
        let unsubscribe = fields.optional_bool("unsubscribe");
        let list = read_list(&mut fields);
        fields.finish(content.map(|content| Self { content, unsubscribe, list }))
    }
}

pub(super) fn read_list(fields: &mut Fields<'_>) -> Option<String> {
    match list_name(fields.optional_text("list")?) {
        Ok(list) => Some(list),
        Err(error) => {
            fields.refuse(error.field, error.code, error.detail);
            None
        }
    }
}

/// Checks the name of a list, which recipients read when they unsubscribe: one line, as it was
/// given. [`keys::unsubscribed_from`](crate::keys::unsubscribed_from) compares it.
pub fn list_name(text: &str) -> Result<String, FieldError> {
    let refused = |code, detail| Err(FieldError::new("list", code, detail));
    let list = text.trim().to_owned();
    if visible(&list).trim().is_empty() {
        refused(FieldProblem::Missing, "is blank")
    } else if list.chars().count() > LONGEST_LIST {
        refused(FieldProblem::OutOfRange, "must not be longer than 100 characters")
    } else if list.chars().any(char::is_control) {
        refused(FieldProblem::Malformed, "must not contain line ends or control characters")
    } else {
        Ok(list)
    }
}

/// Returns the list that a mailing is sent to: the named one, or else one per from address,
/// identified by that address. Returns `None` if there is neither; such a mailing has not been
/// sent.
pub fn list_of(named: Option<&str>, from: Option<&str>) -> Option<String> {
    named.map(|list| list.trim().to_owned()).or_else(|| from.and_then(address_of_mailbox))
}

/// Content whose templates are parsed once, for many recipients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    subject: Template,
    html: Option<Template>,
    text: Option<Template>,
}

/// The content as one recipient gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rendered {
    pub subject: String,
    pub html: Option<String>,
    pub text: Option<String>,
}

/// With this recipient's values, the content is too large for one email. Only this recipient fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("with these values text and html are larger than 1 MB")]
pub struct TooLarge;

impl Prepared {
    pub fn of(content: &MailingContent) -> Result<Self, TemplateError> {
        let body = |text: &Option<String>, target| text.as_ref().map(|text| Template::parse(text, target)).transpose();
        Ok(Self {
            subject: Template::parse(&content.subject, Target::Subject)?,
            html: body(&content.html, Target::Html)?,
            text: body(&content.text, Target::Text)?,
        })
    }

    pub fn render(&self, email: &str, variables: &BTreeMap<String, String>) -> Result<Rendered, TooLarge> {
        let templates = [Some(&self.subject), self.html.as_ref(), self.text.as_ref()];
        if templates.into_iter().flatten().map(|template| template.size(email, variables)).sum::<usize>()
            > LARGEST_RENDERED
        {
            return Err(TooLarge);
        }
        let fill = |template: &Template| template.render(email, variables);
        Ok(Rendered {
            subject: fill(&self.subject),
            html: self.html.as_ref().map(fill),
            text: self.text.as_ref().map(fill),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn whole() -> Value {
        json!({"subject": "Oi {{nome}}", "html": "<p>{{nome}}</p>", "text": "{{email}}", "from": "Loja <Loja@X.co>",
            "reply_to": "r@x.co"})
    }

    fn with(field: &str, value: Value) -> Value {
        let mut body = whole();
        body[field] = value;
        body
    }

    fn refusals(body: &Value) -> Vec<(String, FieldProblem)> {
        let errors = ContentRequest::read(body.as_object().expect("an object")).expect_err("refused");
        errors.into_iter().map(|error| (error.field, error.code)).collect()
    }

    fn optional(body: &Value) -> Result<Option<MailingContent>, Vec<FieldError>> {
        let mut fields = Fields::of(body.as_object().expect("an object"));
        let content = MailingContent::read_optional(&mut fields);
        fields.finish(Some(content))
    }

    #[test]
    fn content_is_stored_and_read_back_unchanged() {
        let body = with("list", json!(" Clientes "));
        let read = ContentRequest::read(body.as_object().expect("an object")).expect("read");
        assert_eq!((read.list.as_deref(), read.unsubscribe), (Some("Clientes"), None));
        let stored = serde_json::to_value(&read.content).expect("json");
        assert_eq!(stored, whole());
        assert_eq!(serde_json::from_value::<MailingContent>(stored).expect("content"), read.content);
    }

    #[test]
    fn content_may_be_absent_but_incomplete_content_is_refused() {
        use FieldProblem::Missing;
        assert_eq!(optional(&json!({})), Ok(None));
        assert_eq!(optional(&json!({"subject": null})), Ok(None));
        assert!(optional(&whole()).is_ok_and(|content| content.is_some()));
        for (half, missing) in [
            (json!({"reply_to": "r@x.co"}), vec!["from", "subject", "text"]),
            (json!({"subject": "s", "from": "a@b.co"}), vec!["text"]),
            (json!({"html": "h"}), vec!["from", "subject"]),
        ] {
            let errors = optional(&half).expect_err("refused");
            let found: Vec<_> = errors.iter().map(|error| (error.field.as_str(), error.code)).collect();
            assert_eq!(found, missing.into_iter().map(|field| (field, Missing)).collect::<Vec<_>>(), "{half}");
        }
        assert_eq!(refusals(&json!({})).len(), 3, "a PUT must have content");
        for alone in ["html", "text"] {
            let other = if alone == "html" { "text" } else { "html" };
            assert!(optional(&with(other, Value::Null)).is_ok(), "{alone} alone is accepted");
        }
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        use FieldProblem::{Malformed, Missing, OutOfRange, Unknown, WrongType};
        for (field, value, code) in [
            ("subject", json!("a\r\nBcc: x@y.co"), Malformed),
            ("subject", json!("a\0"), Malformed),
            ("subject", json!("a\u{2028}b"), Malformed),
            ("subject", json!("x".repeat(999)), OutOfRange),
            ("subject", json!("{{nome"), Malformed),
            ("subject", json!(" "), Missing),
            ("from", json!("a@b.co\nBcc: x@y.co"), Malformed),
            ("from", json!("a@b.co, c@d.co"), Malformed),
            ("reply_to", json!("nobody"), Malformed),
            ("reply_to", json!("a\u{7f}@b.co"), Malformed),
            ("html", json!("<p>{{ }}</p>"), Malformed),
            ("html", json!("x".repeat(200 * 1024)), OutOfRange),
            ("text", json!("{{a {{b}}"), Malformed),
            ("text", json!(7), WrongType),
            ("unsubscribe", json!("true"), WrongType),
            ("list", json!("x".repeat(101)), OutOfRange),
            ("list", json!("a\nb"), Malformed),
            ("headers", json!({}), Unknown),
        ] {
            assert_eq!(refusals(&with(field, value.clone())), [(field.to_owned(), code)], "{value:.40}");
        }
        let mut html = whole();
        html["html"] = json!("x\n{{nome");
        let errors = ContentRequest::read(html.as_object().expect("an object")).expect_err("refused");
        assert_eq!(errors[0].detail, "has {{ without }} in line 2");
    }

    #[test]
    fn unknown_variables_are_listed_by_field() {
        let mut content = optional(&whole()).expect("read").expect("content");
        let known = BTreeSet::from(["email", "nome"]);
        assert!(content.unknown_variables(&known).is_empty());
        content.text = Some("{{y}} {{x}} {{nome}}".to_owned());
        let unknown = BTreeMap::from([("text", vec!["x".to_owned(), "y".to_owned()])]);
        assert_eq!(content.unknown_variables(&known), unknown);
    }

    #[test]
    fn content_is_prepared_once_and_rendered_for_each_recipient() {
        let content = optional(&whole()).expect("read").expect("content");
        let prepared = Prepared::of(&content).expect("templates");
        for (name, html) in [("Zé & Cia", "<p>Zé &amp; Cia</p>"), ("Ana", "<p>Ana</p>")] {
            let rendered = prepared.render("a@b.co", &BTreeMap::from([("nome".to_owned(), name.to_owned())]));
            let rendered = rendered.expect("small");
            assert_eq!(rendered.subject, format!("Oi {name}"));
            assert_eq!((rendered.html.as_deref(), rendered.text.as_deref()), (Some(html), Some("a@b.co")));
        }
        let broken = MailingContent { subject: "{{".to_owned(), ..content };
        assert_eq!(Prepared::of(&broken), Err(TemplateError::NotClosed { line: 1 }));
    }

    #[test]
    fn a_row_whose_rendered_content_is_too_large_is_refused() {
        let text = "{{x}}".repeat(30_000);
        let content = optional(&with("text", json!(text))).expect("read").expect("content");
        let prepared = Prepared::of(&content).expect("templates");
        let row = |bytes| BTreeMap::from([("x".to_owned(), "<".repeat(bytes))]);
        assert_eq!(prepared.render("a@b.co", &row(60)), Err(TooLarge));
        assert!(prepared.render("a@b.co", &row(1)).is_ok());
    }

    #[test]
    fn the_default_list_is_the_address_of_the_sender() {
        assert_eq!(list_of(Some(" Clientes "), Some("a@b.co")).as_deref(), Some("Clientes"));
        for from in ["Loja <Loja@X.co>", "loja@x.co", "\"Loja, a\" <LOJA@x.co>"] {
            assert_eq!(list_of(None, Some(from)).as_deref(), Some("loja@x.co"), "{from}");
        }
        assert_eq!(list_of(None, None), None);
    }
}
