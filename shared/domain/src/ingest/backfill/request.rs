//! The body of `POST /backfills`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::lines::LONGEST_LINE;
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::ingest::entry::Metadata;
use crate::ingest::reading;
use crate::ingest::words::{ContentType, System};

/// Limit in bytes for lines in the request, which are stored in one row. Larger inputs must be
/// uploaded.
const LONGEST_INLINE: usize = LONGEST_LINE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillRequest {
    pub source: System,
    pub input: BackfillInput,
    pub options: BackfillOptions,
    /// Writes nothing, and counts what would be written.
    pub dry_run: bool,
}

/// The origin of the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackfillInput {
    Inline(String),
    /// The caller asks for a place to upload the lines.
    Upload,
}

/// Defaults for lines that do not set these fields themselves.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillOptions {
    pub content_type: Option<ContentType>,
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl BackfillRequest {
    /// Reads `{source, lines | upload: true, options?: {content_type?, metadata?}, dry_run?}`. Each
    /// line has the format that `/normalize/{source}` accepts.
    pub fn read(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let source = reading::word(&mut fields, "source", System::ALL, System::as_str);
        let source = fields.required("source", source);
        let input = read_input(&mut fields);
        let options = fields.optional_object("options");
        let options = match options {
            Some(options) => fields.nested("options", options, |options| Some(read_options(options, source))),
            None => Some(BackfillOptions::default()),
        };
        let dry_run = fields.optional_bool("dry_run").unwrap_or_default();
        let request = source.zip(input).zip(options);
        fields.finish(request.map(|((source, input), options)| Self { source, input, options, dry_run }))
    }
}

fn read_input(fields: &mut Fields<'_>) -> Option<BackfillInput> {
    let lines = fields.optional_text("lines");
    let upload = fields.optional_bool("upload").unwrap_or_default();
    if fields.refused("lines") || fields.refused("upload") {
        return None;
    }
    match (lines, upload) {
        (Some(lines), false) => {
            reading::within(fields, "lines", lines, LONGEST_INLINE).then(|| BackfillInput::Inline(lines.to_owned()))
        }
        (None, true) => Some(BackfillInput::Upload),
        (Some(_), true) => {
            fields.refuse("upload", FieldProblem::Conflicting, "cannot be combined with lines in the body");
            None
        }
        (None, false) => {
            fields.refuse("lines", FieldProblem::Missing, "send JSON lines, or upload: true");
            None
        }
    }
}

fn read_options(options: &mut Fields<'_>, source: Option<System>) -> BackfillOptions {
    let is_of_source =
        |content_type: &ContentType| source.is_none_or(|source| content_type.policy().system() == source);
    let allowed: Vec<_> = ContentType::ALL.iter().copied().filter(is_of_source).collect();
    let content_type = reading::word(options, "content_type", &allowed, ContentType::as_str);
    BackfillOptions { content_type, metadata: reading::metadata(options) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<BackfillRequest, Vec<(String, FieldProblem)>> {
        let read = BackfillRequest::read(body.as_object().expect("an object"));
        read.map_err(|errors| errors.into_iter().map(|error| (error.field, error.code)).collect())
    }

    #[test]
    fn a_job_is_requested_with_inline_lines_or_with_an_upload() {
        let inline = read(&json!({"source": "telegram", "lines": "{}\n{}"})).expect("read");
        assert_eq!(inline.input, BackfillInput::Inline("{}\n{}".into()));
        assert!(!inline.dry_run && inline.options == BackfillOptions::default());
        let options = json!({"content_type": "newsletter", "metadata": {"from": "archive"}});
        let upload = json!({"source": "email", "upload": true, "options": options, "dry_run": true});
        let upload = read(&upload).expect("read");
        assert_eq!((upload.input, upload.dry_run), (BackfillInput::Upload, true));
        assert_eq!(upload.options.content_type, Some(ContentType::Newsletter));
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        use FieldProblem::{Conflicting, Missing, NotAllowed, OutOfRange, Unknown, WrongType};
        let cases = [
            (json!({}), vec![("source", Missing), ("lines", Missing)]),
            (json!({"source": "sms", "lines": "{}"}), vec![("source", NotAllowed)]),
            (json!({"source": "email", "lines": " "}), vec![("lines", Missing)]),
            (json!({"source": "email", "lines": [{}]}), vec![("lines", WrongType)]),
            (json!({"source": "email", "lines": "x".repeat(LONGEST_INLINE + 1)}), vec![("lines", OutOfRange)]),
            (json!({"source": "email", "lines": "{}", "upload": true}), vec![("upload", Conflicting)]),
            (
                json!({"source": "email", "lines": "{}", "options": {"content_type": "thought", "x": 1}, "dry_run": 1}),
                vec![("options.content_type", NotAllowed), ("options.x", Unknown), ("dry_run", WrongType)],
            ),
            (json!({"source": "email", "lines": "{}", "schema": "pkm"}), vec![("schema", Unknown)]),
        ];
        for (body, errors) in cases {
            let errors: Vec<_> = errors.into_iter().map(|(field, code)| (field.to_owned(), code)).collect();
            assert_eq!(read(&body), Err(errors));
        }
    }
}
