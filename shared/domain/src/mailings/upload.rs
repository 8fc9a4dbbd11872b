//! An upload request: what the caller says about a file, in each of the three ways to upload it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};

use super::content::{MailingContent, read_list};
use super::encoding::Encoding;
use super::format::ImportOptions;
use super::identity::{NameMode, file_name};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::unicode::comparable;

/// The most bytes of a file that is sent within its request. Lambda accepts requests of up to 6 MB,
/// in base64.
pub const LARGEST_INLINE: usize = 4 * 1024 * 1024;
/// The most bytes of a file that is uploaded to the address in the answer.
pub const LARGEST_UPLOAD: u64 = 1024 * 1024 * 1024;

const LONGEST_COLUMN: usize = 200;
const OF_THE_FILE: [&str; 3] = ["mode", "encoding", "email_column"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRequest {
    pub file_name: String,
    pub mode: NameMode,
    pub options: ImportOptions,
    /// If absent, the mailing waits for its content.
    pub content: Option<MailingContent>,
    /// Whether mails carry an unsubscribe link. Large mailbox providers refuse bulk mail without
    /// one, so the caller must turn it off explicitly.
    pub unsubscribe: bool,
    pub list: Option<String>,
    /// The hash that the caller announces for the file: hexadecimal, in lower case.
    pub sha256: Option<String>,
    pub size: Option<u64>,
}

impl UploadRequest {
    /// Reads an upload of `text/csv` with `?filename=&mode=&encoding=&email_column=`.
    pub fn of_csv<'q>(query: impl IntoIterator<Item = (&'q str, &'q str)>) -> Result<Self, Vec<FieldError>> {
        let mut pairs = Pairs::default();
        pairs.take(query, |name| name == "filename" || OF_THE_FILE.contains(&name));
        pairs.read(|fields| {
            let name = fields.text("filename");
            let file_name = read_name(fields, "filename", name);
            Self::read_file(fields, file_name)
        })
    }

    /// Reads a form of `file` and text fields. The fields about the file may also come in the
    /// query, so that a form for people does not need them.
    pub fn of_form<'q>(
        file: &str,
        form: &'q [(String, String)],
        query: impl IntoIterator<Item = (&'q str, &'q str)>,
    ) -> Result<Self, Vec<FieldError>> {
        let mut pairs = Pairs::default();
        pairs.take(form.iter().map(|(name, value)| (name.as_str(), value.as_str())), |_| true);
        pairs.take(query, |name| OF_THE_FILE.contains(&name));
        pairs.read(|fields| {
            let file_name = read_name(fields, "file", Some(file));
            Self::read_all(fields, file_name)
        })
    }

    /// Reads `POST /mailings/uploads`: the file comes later.
    pub fn of_json(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let name = fields.text("filename");
        let file_name = read_name(&mut fields, "filename", name);
        let sha256 = read_hash(&mut fields);
        let size = read_size(&mut fields);
        let request = Self::read_all(&mut fields, file_name).map(|request| Self { sha256, size, ..request });
        if request.as_ref().is_some_and(|request| request.mode == NameMode::Strict && request.sha256.is_none())
            && !fields.refused("sha256")
        {
            let detail = "is required in strict mode, which compares the content";
            fields.refuse("sha256", FieldProblem::Missing, detail);
        }
        fields.finish(request)
    }

    /// Returns the request as text, so that a repeated request can be recognized. Absent fields are
    /// left out, so a field that a later version adds does not change the text of an old request.
    pub fn canonical_text(&self) -> String {
        let content = self.content.as_ref();
        let text = |part: fn(&MailingContent) -> Option<&String>| content.and_then(part).cloned();
        let said: [(&str, Option<String>); 13] = [
            ("file_name", Some(comparable(&self.file_name))),
            ("mode", Some(self.mode.as_str().to_owned())),
            ("encoding", self.options.encoding.map(|encoding| encoding.as_str().to_owned())),
            ("email_column", self.options.email_column.clone()),
            ("subject", text(|content| Some(&content.subject))),
            ("html", text(|content| content.html.as_ref())),
            ("text", text(|content| content.text.as_ref())),
            ("from", text(|content| Some(&content.from))),
            ("reply_to", text(|content| content.reply_to.as_ref())),
            ("unsubscribe", Some(self.unsubscribe.to_string())),
            ("list", self.list.as_deref().map(comparable)),
            ("sha256", self.sha256.clone()),
            ("size", self.size.map(|size| size.to_string())),
        ];
        let said = said.into_iter().filter_map(|(name, value)| Some([Value::from(name), Value::from(value?)]));
        Value::from(said.map(|pair| Value::from(pair.to_vec())).collect::<Vec<_>>()).to_string()
    }

    fn read_all(fields: &mut Fields<'_>, file_name: Option<String>) -> Option<Self> {
        let content = MailingContent::read_optional(fields);
        let unsubscribe = fields.optional_bool("unsubscribe").unwrap_or(true);
        let list = read_list(fields);
        Self::read_file(fields, file_name).map(|request| Self { content, unsubscribe, list, ..request })
    }

    fn read_file(fields: &mut Fields<'_>, file_name: Option<String>) -> Option<Self> {
        let mode = word(fields, "mode", "lenient, strict", NameMode::parse).unwrap_or(NameMode::Lenient);
        let encoding = word(fields, "encoding", "utf-8, utf-16le, utf-16be, latin1", encoding_of);
        let email_column = fields.optional_text("email_column").map(|name| name.trim().to_owned());
        if email_column.as_ref().is_some_and(|name| name.len() > LONGEST_COLUMN) {
            fields.refuse("email_column", FieldProblem::OutOfRange, "must not be longer than 200 bytes");
        }
        Some(Self {
            file_name: file_name?,
            mode,
            options: ImportOptions { encoding, email_column },
            content: None,
            unsubscribe: true,
            list: None,
            sha256: None,
            size: None,
        })
    }
}

/// The fields of a form or a query, which are all text, as the JSON object that the readers take.
#[derive(Default)]
struct Pairs {
    object: Map<String, Value>,
    errors: Vec<FieldError>,
}

impl Pairs {
    /// Adds the pairs to the object. A blank field counts as absent: browsers send every field of a
    /// form, filled in or not.
    fn take<'q>(&mut self, pairs: impl IntoIterator<Item = (&'q str, &'q str)>, belongs: impl Fn(&str) -> bool) {
        for (name, text) in pairs {
            let value = match (name, text) {
                (_, blank) if blank.trim().is_empty() => Value::Null,
                ("unsubscribe", "true") => Value::Bool(true),
                ("unsubscribe", "false") => Value::Bool(false),
                _ => Value::String(text.to_owned()),
            };
            if !belongs(name) {
                self.refuse(name, FieldProblem::Unknown, "is not a parameter of this request");
            } else if self.object.insert(name.to_owned(), value).is_some() {
                self.refuse(name, FieldProblem::Conflicting, "is given twice");
            }
        }
    }

    fn refuse(&mut self, name: &str, code: FieldProblem, detail: &str) {
        const MOST: usize = 20;
        const LONGEST_NAME: usize = 100;
        if self.errors.len() < MOST {
            self.errors.push(FieldError::new(name.chars().take(LONGEST_NAME).collect::<String>(), code, detail));
        }
    }

    fn read<T>(self, read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Result<T, Vec<FieldError>> {
        let Self { object, errors } = self;
        let mut fields = Fields::of(&object);
        for error in errors {
            fields.refuse(error.field, error.code, error.detail);
        }
        let value = read(&mut fields);
        fields.finish(value)
    }
}

fn read_name(fields: &mut Fields<'_>, field: &'static str, name: Option<&str>) -> Option<String> {
    match file_name(name?) {
        Ok(name) => Some(name),
        Err(detail) => {
            fields.refuse(field, FieldProblem::Malformed, detail);
            None
        }
    }
}

/// Reads a hash in hexadecimal, as tools print it, or in base64, as S3 writes checksums.
fn read_hash(fields: &mut Fields<'_>) -> Option<String> {
    let text = fields.optional_text("sha256")?.trim();
    let bytes = hex::decode(text).or_else(|_| BASE64_STANDARD.decode(text)).unwrap_or_default();
    if bytes.len() != 32 {
        fields.refuse("sha256", FieldProblem::Malformed, "must be 64 hexadecimal digits, or 32 bytes in base64");
        return None;
    }
    Some(hex::encode(bytes))
}

fn read_size(fields: &mut Fields<'_>) -> Option<u64> {
    let Value::Number(size) = fields.get("size")? else {
        fields.refuse("size", FieldProblem::WrongType, "must be a whole number");
        return None;
    };
    let size = size.as_u64().filter(|size| (1..=LARGEST_UPLOAD).contains(size));
    if size.is_none() {
        fields.refuse("size", FieldProblem::OutOfRange, "must be between 1 and 1073741824 bytes");
    }
    size
}

fn word<T>(fields: &mut Fields<'_>, name: &'static str, words: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let found = parse(fields.optional_text(name)?.trim());
    if found.is_none() {
        fields.refuse(name, FieldProblem::NotAllowed, format!("must be one of {words}"));
    }
    found
}

/// Parses an encoding by any of its usual names.
fn encoding_of(text: &str) -> Option<Encoding> {
    match text.to_ascii_lowercase().as_str() {
        "utf8" => Some(Encoding::Utf8),
        "latin-1" | "iso-8859-1" | "windows-1252" | "cp1252" => Some(Encoding::Latin1),
        name => Encoding::parse(name),
    }
}

#[cfg(test)]
mod tests;
