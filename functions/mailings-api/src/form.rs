//! Reads a form with one file from a body that is already in memory.

use bytes::Bytes;
use multer::{Constraints, Multipart, SizeLimit};
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::fields::FieldError;
use umavez_domain::mailings::LARGEST_INLINE;
use umavez_platform::http::{Problem, Request};

/// The maximum size of a text field, in bytes. It is larger than the limits of the content, so that
/// the check of the content reports what is too large.
const LARGEST_FIELD: u64 = 300 * 1024;
const MOST_FIELDS: usize = 30;

pub struct Form {
    pub file_name: String,
    pub file: Vec<u8>,
    pub fields: Vec<(String, String)>,
}

pub async fn read(request: &Request) -> Result<Form, Problem> {
    let kind = request.header("content-type").unwrap_or_default();
    let boundary = multer::parse_boundary(kind).map_err(|_| {
        Problem::new(400, ProblemCode::InvalidForm, "the content-type of a form must name its boundary")
    })?;
    let body = Bytes::copy_from_slice(request.body());
    let stream = futures::stream::iter([Ok::<_, std::convert::Infallible>(body)]);
    let limits = SizeLimit::new().per_field(LARGEST_FIELD).for_field("file", LARGEST_INLINE as u64 + 1);
    let mut parts = Multipart::with_constraints(stream, boundary, Constraints::new().size_limit(limits));
    let (mut file, mut fields) = (None, Vec::new());
    while let Some(part) = parts.next_field().await.map_err(unreadable)? {
        let name = part.name().unwrap_or_default().to_owned();
        if name == "file" {
            let file_name = part.file_name().unwrap_or_default().to_owned();
            if file.is_some() {
                return Err(refused(FieldProblem::Conflicting, "must appear only once"));
            }
            file = Some((file_name, part.bytes().await.map_err(unreadable)?));
            continue;
        }
        if fields.len() == MOST_FIELDS {
            return Err(Problem::new(
                400,
                ProblemCode::InvalidForm,
                format!("the form has more than {MOST_FIELDS} fields"),
            ));
        }
        let bytes = part.bytes().await.map_err(unreadable)?;
        let Ok(text) = String::from_utf8(bytes.to_vec()) else {
            let error = FieldError::new(name, FieldProblem::Malformed, "is not UTF-8");
            return Err(Problem::invalid(vec![error]));
        };
        fields.push((name, text));
    }
    let Some((file_name, file)) = file else {
        return Err(refused(FieldProblem::Missing, "is required: the CSV file"));
    };
    Ok(Form { file_name, file: file.to_vec(), fields })
}

fn refused(code: FieldProblem, detail: &str) -> Problem {
    Problem::invalid(vec![FieldError::new("file", code, detail)])
}

fn unreadable(error: multer::Error) -> Problem {
    match error {
        multer::Error::FieldSizeExceeded { field_name, .. } => {
            let field = field_name.unwrap_or_default();
            let detail = "is too large; upload a file of more than 4 MiB with POST /mailings/uploads";
            let detail = if field == "file" { detail } else { "is larger than 300 KB" };
            Problem { errors: vec![FieldError::new(field, FieldProblem::OutOfRange, detail)], ..too_large() }
        }
        _ => Problem::new(400, ProblemCode::InvalidForm, "the form is not valid multipart/form-data"),
    }
}

pub fn too_large() -> Problem {
    let detail = "the file has more than 4 MiB; upload it with POST /mailings/uploads";
    Problem::new(413, ProblemCode::BodyTooLarge, detail)
}
