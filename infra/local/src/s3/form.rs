//! A multipart form, as browsers send it to S3: the fields at once, the file as a stream.

use std::io;

use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, stream};
use multer::{Field, Multipart};

/// The most bytes that S3 takes for the values of all fields before the file.
const FIELDS_LIMIT: usize = 20 * 1024;

pub(super) struct Form {
    /// Names are in lower case.
    fields: Vec<(String, String)>,
    pub(super) file_name: String,
    pub(super) file: File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FormError {
    Malformed,
    TooLong,
    WithoutFile,
}

impl Form {
    /// Reads the fields up to the file. Fields after the file are ignored, as S3 does.
    pub(super) async fn read(body: Body, boundary: &str) -> Result<Self, FormError> {
        let mut parts = Multipart::new(body.into_data_stream(), boundary);
        let mut fields = Vec::new();
        let mut left = FIELDS_LIMIT;
        while let Some(mut part) = parts.next_field().await.map_err(malformed)? {
            let name = part.name().ok_or(FormError::Malformed)?.to_lowercase();
            if name == "file" {
                let file_name = part.file_name().unwrap_or_default().to_owned();
                return Ok(Self { fields, file_name, file: File { part, parts } });
            }
            let mut value = Vec::new();
            while let Some(piece) = part.chunk().await.map_err(malformed)? {
                left = left.checked_sub(piece.len()).ok_or(FormError::TooLong)?;
                value.extend_from_slice(&piece);
            }
            fields.push((name, String::from_utf8_lossy(&value).into_owned()));
        }
        Err(FormError::WithoutFile)
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields().find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}

fn malformed(_: multer::Error) -> FormError {
    FormError::Malformed
}

/// The rest of a form: its file, and the fields after it, which are ignored.
pub(super) struct File {
    part: Field<'static>,
    parts: Multipart<'static>,
}

impl File {
    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        stream::try_unfold(self, |mut file| async move {
            let broken = |_| io::Error::new(io::ErrorKind::UnexpectedEof, "the form breaks off");
            if let Some(piece) = file.part.chunk().await.map_err(broken)? {
                return Ok(Some((piece, file)));
            }
            // Read to the end, so that the connection can be used again.
            drop(file.part);
            while let Ok(Some(_)) = file.parts.next_field().await {}
            Ok(None)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures::TryStreamExt;

    const FORM: &str = "--XX\r\nContent-Disposition: form-data; name=\"Key\"\r\n\r\na b\r\n--XX\r\n\
                        Content-Disposition: form-data; name=\"file\"; filename=\"f.csv\"\r\nContent-Type: text/csv\r\n\
                        \r\none\r\n--X\r\n-two\r\n--XX\r\nContent-Disposition: form-data; name=\"z\"\r\n\r\n1\r\n--XX--\r\n";

    fn in_pieces(text: &'static str, size: usize) -> Body {
        let pieces = text.as_bytes().chunks(size).map(|piece| Ok::<_, io::Error>(Bytes::from_static(piece)));
        Body::from_stream(stream::iter(pieces.collect::<Vec<_>>()))
    }

    async fn file(form: Form) -> io::Result<Vec<u8>> {
        form.file
            .into_stream()
            .try_fold(Vec::new(), |whole, piece| async move { Ok([whole, piece.to_vec()].concat()) })
            .await
    }

    #[tokio::test]
    async fn a_form_is_read_however_it_is_cut() {
        for size in [1, 2, 3, 7, 50, 1_000] {
            let form = Form::read(in_pieces(FORM, size), "XX").await.unwrap();
            assert_eq!(form.fields().collect::<Vec<_>>(), [("key", "a b")]);
            assert_eq!((form.field("key"), form.field("z"), form.file_name.as_str()), (Some("a b"), None, "f.csv"));
            assert_eq!(file(form).await.unwrap(), b"one\r\n--X\r\n-two", "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn a_form_that_breaks_off_is_an_error() {
        let half = &FORM[..FORM.find("-two").unwrap()];
        let form = Form::read(in_pieces(half, 9), "XX").await.unwrap();
        assert!(file(form).await.is_err());
        assert_eq!(Form::read(in_pieces("--XX--\r\n", 9), "XX").await.err(), Some(FormError::WithoutFile));
        assert_eq!(Form::read(in_pieces("nothing", 9), "XX").await.err(), Some(FormError::Malformed));
    }

    #[tokio::test]
    async fn fields_have_a_limit() {
        let value = "a".repeat(2 * FIELDS_LIMIT);
        let long = format!("--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--XX--\r\n");
        assert_eq!(Form::read(Body::from(long), "XX").await.err(), Some(FormError::TooLong));
    }
}
