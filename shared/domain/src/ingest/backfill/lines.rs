//! Reads JSON lines from pieces of a file, starting at any line.

use serde_json::Value;

use super::request::BackfillOptions;
use crate::codes::FieldProblem;
use crate::fields::FieldError;
use crate::ingest::entry::Normalized;
use crate::ingest::words::System;
use crate::ingest::{normalize_email, normalize_telegram};
use crate::uploaded::Position;

/// Limit in bytes, the same as for a request with one item.
pub const LONGEST_LINE: usize = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    pub number: u64,
    /// The line without its end, or the reason why it cannot be read.
    pub text: Result<&'a str, &'static str>,
    pub after: Position,
}

/// Iterates over the whole lines of a piece of a file. An incomplete last line is not consumed,
/// unless the file ends there or the line is already too long. Continue at [`Lines::position`].
#[derive(Debug)]
pub struct Lines<'a> {
    rest: &'a [u8],
    at: Position,
    at_end: bool,
}

impl<'a> Lines<'a> {
    /// `piece` begins at `at`. `at_end` is true if the file ends with this piece.
    pub fn of(piece: &'a [u8], at: Position, at_end: bool) -> Self {
        Self { rest: piece, at, at_end }
    }

    pub fn position(&self) -> Position {
        self.at
    }

    fn consume(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(bytes);
        (self.rest, self.at) = (rest, self.at.further(bytes));
        taken
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let first = self.at == Position::START;
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let taken = match end {
            Some(end) => self.consume(end + 1),
            None if self.at_end && (!self.rest.is_empty() || self.at.skipping) => self.consume(self.rest.len()),
            None => {
                if self.at.skipping || self.rest.len() > LONGEST_LINE {
                    self.at.skipping = true;
                    self.consume(self.rest.len());
                }
                return None;
            }
        };
        let number = self.at.next_line;
        let text = if self.at.skipping || taken.len() > LONGEST_LINE {
            Err("is longer than 256 KB")
        } else {
            std::str::from_utf8(taken).map_err(|_| "is not UTF-8")
        };
        let text = text.map(|text| if first { text.trim_start_matches('\u{feff}') } else { text }.trim());
        self.at = Position { next_line: number + 1, next_byte: self.at.next_byte, skipping: false };
        Some(Line { number, text, after: self.at })
    }
}

/// Reads a line and returns the normalized entry. `Ok(None)` if the line is blank.
pub fn read_line(
    line: &Line<'_>,
    source: System,
    options: &BackfillOptions,
) -> Result<Option<Normalized>, Vec<FieldError>> {
    let wrong = |detail: &str| vec![FieldError::new("line", FieldProblem::Malformed, detail)];
    let text = line.text.map_err(wrong)?;
    if text.is_empty() {
        return Ok(None);
    }
    let Ok(Value::Object(mut body)) = serde_json::from_str(text) else { return Err(wrong("is not a JSON object")) };
    if let Some(content_type) = options.content_type
        && body.get("content_type").is_none_or(Value::is_null)
    {
        body.insert("content_type".to_owned(), content_type.as_str().into());
    }
    if !options.metadata.is_empty() {
        let own = body.entry("metadata").or_insert(Value::Null);
        if own.is_null() {
            *own = Value::Object(options.metadata.clone());
        } else if let Value::Object(own) = own {
            for (name, value) in &options.metadata {
                own.entry(name).or_insert_with(|| value.clone());
            }
        }
    }
    let normalized = match source {
        System::Telegram => normalize_telegram(&body),
        System::Email => normalize_email(&body),
    };
    normalized.map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn all(file: &[u8]) -> Vec<(u64, Result<String, &'static str>)> {
        Lines::of(file, Position::START, true).map(|line| (line.number, line.text.map(str::to_owned))).collect()
    }

    /// Reads as a worker does: in pieces of this size, and in larger ones only where a line does
    /// not fit.
    fn in_pieces(file: &[u8], size: usize) -> Vec<(u64, Result<String, &'static str>)> {
        let (mut at, mut read, mut wanted) = (Position::START, Vec::new(), size);
        while (at.next_byte as usize) < file.len() || at.skipping {
            let from = at.next_byte as usize;
            let to = (from + wanted).min(file.len());
            let mut lines = Lines::of(&file[from..to], at, to == file.len());
            read.extend(lines.by_ref().map(|line| (line.number, line.text.map(str::to_owned))));
            wanted = if lines.position() == at { wanted + size } else { size };
            at = lines.position();
        }
        read
    }

    #[test]
    fn lines_are_numbered_from_one_and_the_last_line_needs_no_line_end() {
        let lines = all("\u{feff}{\"a\":1}\r\n\n b \nlast".as_bytes());
        let texts = ["{\"a\":1}", "", "b", "last"].map(|text| Ok(text.to_owned()));
        assert_eq!(lines, (1..=4).zip(texts).collect::<Vec<_>>());
        assert_eq!(all(b""), []);
        assert_eq!(all(b"\n").len(), 1);
    }

    #[test]
    fn a_line_that_cannot_be_read_fails_alone() {
        let mut file = b"one\n\xff\xfe\n".to_vec();
        file.extend(vec![b'x'; LONGEST_LINE + 10]);
        file.extend(b"\nfour");
        let lines: Vec<_> = all(&file).into_iter().map(|(_, text)| text).collect();
        let expected = [Ok("one".to_owned()), Err("is not UTF-8"), Err("is longer than 256 KB"), Ok("four".to_owned())];
        assert_eq!(lines, expected);
    }

    #[test]
    fn chunks_of_any_size_give_the_same_lines() {
        let mut file = "é\n{}\r\n\n".repeat(3).into_bytes();
        file.extend(vec![b'x'; 3 * LONGEST_LINE]);
        file.extend(b"\nlast\n");
        for size in [1, 2, 3, 7, 1000].map(|size| if size == 1 { LONGEST_LINE } else { size * 20_000 }) {
            assert_eq!(in_pieces(&file, size), all(&file), "{size}");
        }
        let small = "é\n{}\r\n\nab\u{2028}c\nlast".as_bytes();
        for size in 1..small.len() + 1 {
            assert_eq!(in_pieces(small, size), all(small), "{size}");
        }
        let mut endless = b"a\n".to_vec();
        endless.extend(vec![b'x'; 2 * LONGEST_LINE]);
        assert_eq!(in_pieces(&endless, 100_000), all(&endless), "the last line may be too long");
    }

    #[test]
    fn options_apply_to_the_fields_that_a_line_leaves_out() {
        let options: BackfillOptions =
            serde_json::from_value(json!({"content_type": "newsletter", "metadata": {"a": 1, "b": 1}}))
                .expect("options");
        let read = |body: Value| {
            let text = body.to_string();
            let line = Line { number: 1, text: Ok(&text), after: Position::START };
            read_line(&line, System::Email, &options).expect("read").expect("an entry")
        };
        let mail = json!({"raw_text": "x", "from": "a@b.co", "subject": "s", "source": {"message_id": "<a@b>"}});
        let plain = read(mail.clone());
        assert_eq!(plain.entry.content_type.as_str(), "newsletter");
        assert_eq!(Value::Object(plain.metadata), json!({"a": 1, "b": 1}));
        let mut own = mail;
        own["content_type"] = json!("correspondence_thread");
        own["metadata"] = json!({"b": 2});
        let own = read(own);
        assert_eq!(own.entry.content_type.as_str(), "correspondence_thread");
        assert_eq!(Value::Object(own.metadata), json!({"a": 1, "b": 2}));
    }

    #[test]
    fn an_invalid_line_is_refused_like_an_invalid_request() {
        let read = |text| {
            let line = Line { number: 1, text, after: Position::START };
            let read = read_line(&line, System::Telegram, &BackfillOptions::default());
            read.map_err(|errors| errors.into_iter().map(|error| error.field).collect::<Vec<_>>())
        };
        assert_eq!(read(Ok("")), Ok(None));
        for text in ["{", "[]", "5", "{} {}"] {
            assert_eq!(read(Ok(text)), Err(vec!["line".to_owned()]), "{text}");
        }
        assert_eq!(read(Err("is not UTF-8")), Err(vec!["line".to_owned()]));
        assert_eq!(read(Ok(r#"{"text": 5}"#)), Err(vec!["text".to_owned()]));
    }
}
