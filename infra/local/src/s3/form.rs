//! A multipart form as browsers send it. The fields are read at once, the file is streamed.

use std::io;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};

/// The limit of S3 for everything but the file.
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
    /// Reads up to the file. Parts after it are ignored, as in S3.
    pub(super) async fn read(body: Body, boundary: &str) -> Result<Self, FormError> {
        let mut reader = Reader { body: body.into_data_stream(), buffer: BytesMut::from(&b"\r\n"[..]), read: 0 };
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        let mut fields = Vec::new();
        reader.until(&delimiter).await?;
        loop {
            let rest_of_line = reader.until(b"\r\n").await?;
            if rest_of_line.starts_with(b"--") {
                return Err(FormError::WithoutFile);
            }
            let head = reader.until(b"\r\n\r\n").await?;
            let head = String::from_utf8_lossy(&head);
            let name = parameter(&head, "name").ok_or(FormError::Malformed)?.to_lowercase();
            if name == "file" {
                let file_name = parameter(&head, "filename").unwrap_or_default();
                return Ok(Self { fields, file_name, file: File { reader, delimiter } });
            }
            let value = reader.until(&delimiter).await?;
            fields.push((name, String::from_utf8_lossy(&value).into_owned()));
        }
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields().find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}

/// The unread rest of a form: its file, and parts that are ignored.
pub(super) struct File {
    reader: Reader,
    delimiter: Vec<u8>,
}

impl File {
    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        stream::try_unfold(Some(self), |file| async move {
            let Some(mut file) = file else { return Ok(None) };
            loop {
                if let Some(at) = position(&file.reader.buffer, &file.delimiter) {
                    let last = file.reader.buffer.split_to(at).freeze();
                    // Read to the end, so that the connection can be reused.
                    while file.reader.fill().await.map_err(broken)? {
                        file.reader.buffer.clear();
                    }
                    return Ok(Some((last, None)));
                }
                let sure = file.reader.buffer.len().saturating_sub(file.delimiter.len() - 1);
                if sure > 0 {
                    let piece = file.reader.buffer.split_to(sure).freeze();
                    return Ok(Some((piece, Some(file))));
                }
                if !file.reader.fill().await.map_err(broken)? {
                    return Err(broken(FormError::Malformed));
                }
            }
        })
    }
}

fn broken(_: FormError) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the form breaks off")
}

struct Reader {
    body: BodyDataStream,
    buffer: BytesMut,
    /// Bytes of fields read so far.
    read: usize,
}

impl Reader {
    /// Reads more of the body into the buffer. Returns `false` at its end.
    async fn fill(&mut self) -> Result<bool, FormError> {
        match self.body.next().await {
            Some(Ok(piece)) => {
                self.buffer.extend_from_slice(&piece);
                Ok(true)
            }
            Some(Err(_)) => Err(FormError::Malformed),
            None => Ok(false),
        }
    }

    /// Returns everything before the mark and removes both from the buffer.
    async fn until(&mut self, mark: &[u8]) -> Result<BytesMut, FormError> {
        loop {
            let limit = self.buffer.len().min(FIELDS_LIMIT.saturating_sub(self.read));
            if let Some(at) = position(&self.buffer[..limit], mark) {
                let before = self.buffer.split_to(at);
                let _ = self.buffer.split_to(mark.len());
                self.read += at + mark.len();
                return Ok(before);
            }
            if self.buffer.len() > limit {
                return Err(FormError::TooLong);
            }
            if !self.fill().await? {
                return Err(FormError::Malformed);
            }
        }
    }
}

/// Returns a parameter of the part's `Content-Disposition`, quoted or not.
fn parameter(head: &str, name: &str) -> Option<String> {
    let is_disposition = |line: &&str| line.to_lowercase().starts_with("content-disposition:");
    let line = head.split("\r\n").find(is_disposition)?;
    let pairs = line.split(';').skip(1).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name))?;
    Some(value.trim_matches('"').replace("%22", "\""))
}

/// Returns where the needle begins. Uses Horspool's algorithm, which skips ahead by up to the
/// length of the needle; this matters for a gigabyte.
fn position(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let last = needle.len().checked_sub(1)?;
    let mut steps = [needle.len(); 256];
    for (at, byte) in needle[..last].iter().enumerate() {
        steps[usize::from(*byte)] = last - at;
    }
    let mut at = 0;
    while let Some(window) = hay.get(at..at + needle.len()) {
        if window == needle {
            return Some(at);
        }
        at += steps[usize::from(window[last])];
    }
    None
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
    async fn a_form_is_read_in_chunks_of_any_size() {
        for size in [1, 2, 3, 7, 50, 1_000] {
            let form = Form::read(in_pieces(FORM, size), "XX").await.unwrap();
            assert_eq!(form.fields().collect::<Vec<_>>(), [("key", "a b")]);
            assert_eq!((form.field("key"), form.field("z"), form.file_name.as_str()), (Some("a b"), None, "f.csv"));
            assert_eq!(file(form).await.unwrap(), b"one\r\n--X\r\n-two", "in chunks of {size}");
        }
    }

    #[tokio::test]
    async fn a_truncated_form_is_an_error() {
        let half = &FORM[..FORM.find("-two").unwrap()];
        let form = Form::read(in_pieces(half, 9), "XX").await.unwrap();
        assert!(file(form).await.is_err());
        assert_eq!(Form::read(in_pieces("--XX--\r\n", 9), "XX").await.err(), Some(FormError::WithoutFile));
        assert_eq!(Form::read(in_pieces("nothing", 9), "XX").await.err(), Some(FormError::Malformed));
    }

    #[tokio::test]
    async fn fields_have_a_limit() {
        let long = format!("--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{}", "a".repeat(FIELDS_LIMIT));
        assert_eq!(Form::read(Body::from(long), "XX").await.err(), Some(FormError::TooLong));
    }

    #[test]
    fn a_needle_is_found() {
        assert_eq!(position(b"abcabd", b"abd"), Some(3));
        assert_eq!(position(b"abcab", b"abd"), None);
        assert_eq!(position(b"", b"abd"), None);
    }
}
