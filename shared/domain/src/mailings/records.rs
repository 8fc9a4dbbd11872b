//! Reads the recipients of a file from pieces of it, starting at any record.
//!
//! A checkpoint is a [`Position`] with the file's [`Format`]: between two records the parser has no
//! other state. The result does not depend on how the file is cut into pieces.

use std::collections::BTreeMap;

use super::csv::{self, End, State};
use super::format::Format;
use super::recipient::normalize_email;
use crate::codes::{FileProblem, RowProblem};
use crate::uploaded::Position;

/// The most bytes of a record. If a quoted field is longer than this, its closing quote is missing.
pub const LONGEST_RECORD: usize = 64 * 1024;

/// A recipient as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecipient {
    /// Normalized.
    pub email: String,
    /// The other columns by name. A column that the row leaves out is empty.
    pub variables: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The line where the record begins.
    pub line: u64,
    pub recipient: Result<FileRecipient, RowProblem>,
    pub after: Position,
}

/// The file cannot be read, or not beyond this line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{problem} in line {line}")]
pub struct UnreadableFile {
    pub line: u64,
    pub problem: FileProblem,
}

/// Iterates over the complete records of a piece, without blank lines. It does not consume the rest
/// after the last complete record, unless the file ends there: continue at [`Records::place`] with
/// a longer piece. A piece that is four bytes longer than [`LONGEST_RECORD`] always makes progress.
#[derive(Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    format: &'a Format,
    at: Position,
    at_end: bool,
}

impl<'a> Records<'a> {
    /// Reads `piece`, which begins at `at`. `at_end` says whether the file ends with it.
    pub fn of(piece: &'a [u8], format: &'a Format, at: Position, at_end: bool) -> Self {
        Self { rest: piece, format, at, at_end }
    }

    pub fn place(&self) -> Position {
        self.at
    }

    fn consume(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(bytes);
        (self.rest, self.at) = (rest, self.at.further(bytes));
        taken
    }

    fn record(&mut self, text: usize, whole: usize) -> Result<Option<Record>, FileProblem> {
        let line = self.at.next_line;
        let text = self.format.encoding.decode(&self.rest[..text])?;
        let taken = self.consume(whole);
        self.at.next_line += csv::lines(taken, self.format.encoding);
        let fields = csv::fields(&text, self.format.separator.char());
        let blank = fields.iter().all(|field| field.trim().is_empty());
        Ok((!blank).then(|| Record { line, recipient: recipient(fields, self.format), after: self.at }))
    }

    /// Skips to the end of a line that is too long. `None` if this piece does not contain it.
    fn skip(&mut self) -> Option<Record> {
        let end = csv::line_end(self.rest, self.format.encoding, self.at_end);
        let whole = match end {
            End::At { whole, .. } => whole,
            End::Open(_) if self.at_end => self.rest.len(),
            End::Open(_) => {
                self.consume(self.rest.len() - self.rest.len() % self.format.encoding.width());
                return None;
            }
            End::Unclear => return None,
        };
        let line = self.at.next_line;
        self.consume(whole);
        self.at = Position { next_line: line + 1, skipping: false, ..self.at };
        Some(Record { line, recipient: Err(RowProblem::RowTooLong), after: self.at })
    }

    fn unreadable(&mut self, problem: FileProblem) -> Option<Result<Record, UnreadableFile>> {
        (self.rest, self.at_end) = (&[], false);
        Some(Err(UnreadableFile { line: self.at.next_line, problem }))
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, UnreadableFile>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.at.skipping && (self.at_end || !self.rest.is_empty()) {
                return self.skip().map(Ok);
            }
            if self.rest.is_empty() {
                return None;
            }
            let window = &self.rest[..self.rest.len().min(LONGEST_RECORD)];
            let (all, encoding) = (window.len() == self.rest.len(), self.format.encoding);
            let end = csv::record_end(window, encoding, self.format.separator.char(), all && self.at_end);
            let (text, whole) = match end {
                End::At { text, whole } => (text, whole),
                End::Open(_) | End::Unclear if window.len() < LONGEST_RECORD && !self.at_end => return None,
                End::Open(State::Quoted) => return self.unreadable(FileProblem::QuoteNeverCloses),
                End::Open(_) if all && self.at_end => (window.len(), window.len()),
                // A line end that lies on the border is skipped with the rest of its record.
                End::Open(_) | End::Unclear => {
                    let text = LONGEST_RECORD - usize::from(end == End::Unclear) * encoding.width();
                    let taken = self.consume(text);
                    self.at.next_line += csv::lines(taken, encoding);
                    self.at.skipping = true;
                    continue;
                }
            };
            match self.record(text, whole) {
                Ok(Some(record)) => return Some(Ok(record)),
                Ok(None) => {}
                Err(problem) => return self.unreadable(problem),
            }
        }
    }
}

fn recipient(fields: Vec<String>, format: &Format) -> Result<FileRecipient, RowProblem> {
    // Spreadsheets pad rows with empty cells.
    if fields.iter().skip(format.columns.len()).any(|field| !field.trim().is_empty()) {
        return Err(RowProblem::TooManyFields);
    }
    let email = normalize_email(fields.get(format.email).map_or("", String::as_str))?;
    let mut fields = fields.into_iter();
    let mut variables = BTreeMap::new();
    for (at, name) in format.columns.iter().enumerate() {
        let value = fields.next().unwrap_or_default();
        if at != format.email && !name.is_empty() {
            variables.insert(name.clone(), value.trim().to_owned());
        }
    }
    Ok(FileRecipient { email, variables })
}

#[cfg(test)]
mod tests;
