//! Checks whether a file can be read to its end, and explains to the file's author why not.

use super::format::{Format, ImportOptions};
use super::records::{Records, UnreadableFile};
use crate::codes::{FieldProblem, FileProblem};
use crate::fields::FieldError;

pub const MOST_ROWS: u64 = 10_000_000;

/// A file that can be imported to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub format: Format,
    /// The number of records, including those that are not recipients.
    pub rows: u64,
}

/// Reads a whole file, so that a file that would fail on its last line leaves nothing behind.
pub fn check_file(file: &[u8], options: &ImportOptions) -> Result<Checked, UnreadableFile> {
    let format = Format::detect(file, true, options)?;
    let start = usize::try_from(format.start.next_byte).unwrap_or(usize::MAX);
    let mut rows = 0;
    for record in Records::of(file.get(start..).unwrap_or_default(), &format, format.start, true) {
        let record = record?;
        rows += 1;
        if rows > MOST_ROWS {
            return Err(UnreadableFile { line: record.line, problem: FileProblem::TooManyRows });
        }
    }
    match rows {
        0 => Err(UnreadableFile { line: format.start.next_line, problem: FileProblem::Empty }),
        _ => Ok(Checked { format, rows }),
    }
}

/// Returns the error for a file that came within its request.
pub fn file_error(unreadable: UnreadableFile) -> FieldError {
    let code = match unreadable.problem {
        FileProblem::Empty => FieldProblem::Missing,
        FileProblem::HeaderTooLong | FileProblem::TooManyColumns | FileProblem::TooManyRows => FieldProblem::OutOfRange,
        _ => FieldProblem::Malformed,
    };
    FieldError::new("file", code, unreadable.sentence())
}

impl UnreadableFile {
    /// Explains the problem to the file's author: where it is, what is wrong, and how to fix it
    /// where that is not obvious.
    pub fn sentence(&self) -> String {
        let what = match self.problem {
            FileProblem::Empty => return "the file has no rows".to_owned(),
            FileProblem::NotText => {
                "the file has NUL bytes, so it is not text; save a spreadsheet as CSV, and UTF-16 with its byte order mark"
            }
            FileProblem::NotUtf8 => {
                "the file is not UTF-8; save it as UTF-8, or pass encoding=latin1 if it is Latin-1 or Windows-1252"
            }
            FileProblem::NotUtf16 => {
                "the file is not UTF-16, although its byte order mark or the parameter encoding says so"
            }
            FileProblem::QuoteNeverCloses => "a quote is never closed",
            FileProblem::HeaderTooLong => "the header is longer than 64 KB",
            FileProblem::TooManyColumns => "the header has more than 100 columns",
            FileProblem::ColumnTooLong => "a column of the header has a name of more than 200 bytes",
            FileProblem::ColumnTwice => "two columns of the header have the same name",
            FileProblem::NoEmailColumn => {
                "no column of the header is called email; pass email_column= with the name of the one that holds the address"
            }
            FileProblem::TwoEmailColumns => {
                "more than one column of the header may hold the address; pass email_column= with the name of the right one"
            }
            FileProblem::MissingColumn => "the content names a column that the header does not have",
            FileProblem::TooManyRows => "the file has more than 10,000,000 rows",
        };
        format!("line {}: {what}", self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_its_end_before_it_is_accepted() {
        let check = |file: &[u8]| check_file(file, &ImportOptions::default());
        let checked = check(b"sep=;\nnome;email\nAna;a@b.co\n\nZe;nobody\nAna;a@b.co\n").expect("read");
        assert_eq!((checked.rows, checked.format.email, checked.format.start.next_line), (3, 1, 3));
        assert_eq!(check(b"a@b.co").map(|checked| checked.rows), Ok(1));
        for (file, sentence) in [
            (&b""[..], "the file has no rows"),
            (b"nome,email\n\n , \n", "the file has no rows"),
            (b"email\na@b.co\n\"c@d.co\ne@f.co\n", "line 3: a quote is never closed"),
            (b"email,n\na@b.co,x\nc@d.co,\0\n", "line 3: the file has NUL bytes"),
            (b"email,n\na@b.co,a\xe7\xe3o\n", "line 2: the file is not UTF-8"),
            (b"nome,valor\nAna,7\n", "line 1: no column of the header is called email"),
        ] {
            let error = file_error(check(file).expect_err("refused"));
            assert!(error.field == "file" && error.detail.starts_with(sentence), "{}", error.detail);
        }
        let latin = file_error(check(b"email,n\na@b.co,a\xe7\xe3o\n").expect_err("refused"));
        assert!(latin.detail.contains("encoding=latin1"), "{}", latin.detail);
    }

    #[test]
    fn every_problem_of_a_file_has_a_distinct_message() {
        let sentence = |problem: &FileProblem| file_error(UnreadableFile { line: 7, problem: *problem }).detail;
        let mut all: Vec<_> = FileProblem::ALL.iter().map(sentence).collect();
        assert!(all.iter().all(|text| text.starts_with("line 7: ") || text.starts_with("the file ")), "{all:?}");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), FileProblem::ALL.len());
    }
}
