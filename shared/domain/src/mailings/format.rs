//! The format of a file: its encoding and separator, its columns, and which column holds the
//! address.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::csv::{self, End};
use super::encoding::Encoding;
use super::records::{LONGEST_RECORD, UnreadableFile};
use crate::codes::{FileProblem, codes};
use crate::uploaded::Position;

pub const MOST_COLUMNS: usize = 100;
/// The most bytes of a column's name. The name is stored with every recipient.
const LONGEST_COLUMN_NAME: usize = 200;

/// Names of the address column if the caller gives none, as [`column_name`] writes them, without
/// `-`, `_` and spaces.
const EMAIL_NAMES: [&str; 8] =
    ["email", "mail", "emailaddress", "enderecodeemail", "endereçodeemail", "correo", "correoelectronico", "emailid"];

codes! {
    Separator {
        Comma = "comma",
        Semicolon = "semicolon",
        Tab = "tab",
    }
}

impl Separator {
    pub const fn char(self) -> char {
        match self {
            Self::Comma => ',',
            Self::Semicolon => ';',
            Self::Tab => '\t',
        }
    }
}

/// What the caller says about a file.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportOptions {
    pub encoding: Option<Encoding>,
    /// The name of the address column.
    pub email_column: Option<String>,
}

/// The format of a file. It is detected once, at the file's beginning, and stored with the
/// checkpoint: a reader that resumes does not detect it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    pub encoding: Encoding,
    pub separator: Separator,
    /// The names of the columns, as templates use them. A column without a name has an empty one.
    pub columns: Vec<String>,
    /// The index of the address column.
    pub email: usize,
    /// Where the first record with a recipient begins.
    pub start: Position,
}

impl Format {
    /// Detects the format of a file. `head` is the whole file, or at least its first
    /// [`LONGEST_RECORD`] bytes; `at_end` says which.
    pub fn detect(head: &[u8], at_end: bool, options: &ImportOptions) -> Result<Self, UnreadableFile> {
        let (encoding, mark) = Encoding::of(head, options.encoding);
        let mut at = Position::START.further(mark);
        let (mut rest, mut named) = (&head[mark..], None);
        while let End::At { text, whole } = csv::line_end(rest, encoding, at_end) {
            if !is_blank(&rest[..text], encoding) {
                match named_separator(&rest[..text], encoding) {
                    Some(separator) if named.is_none() => named = Some(separator),
                    _ => break,
                }
            }
            (rest, at) = (&rest[whole..], Position { next_line: at.next_line + 1, ..at.further(whole) });
        }
        let refused = |problem| UnreadableFile { line: at.next_line, problem };
        if is_blank(rest, encoding) {
            return Err(refused(FileProblem::Empty));
        }
        let (mut readings, mut failed) = (Vec::new(), None);
        for separator in Separator::ALL.iter().copied().filter(|separator| named.is_none_or(|it| it == *separator)) {
            match First::read(rest, encoding, separator, at_end) {
                Ok(first) => {
                    let email = email_column(&first.columns(), options.email_column.as_deref());
                    readings.push((separator, first, email));
                }
                Err(problem) => failed = failed.or(Some(problem)),
            }
        }
        // Prefer the separator with which the header names the address column, then the one that
        // gives the most fields.
        let found = |email: &Result<usize, FileProblem>| *email != Err(FileProblem::NoEmailColumn);
        readings.sort_by_key(|(_, first, email)| std::cmp::Reverse((found(email), first.fields.len())));
        let best = readings.into_iter().next().filter(|(_, _, email)| failed.is_none() || found(email));
        let Some((separator, first, email)) = best else {
            return Err(refused(failed.unwrap_or(FileProblem::NoEmailColumn)));
        };
        if !found(&email) && options.email_column.is_none() && first.is_one_address() {
            return Ok(Self { encoding, separator, columns: vec!["email".to_owned()], email: 0, start: at });
        }
        let email = email.map_err(refused)?;
        let columns = first.columns();
        check_columns(&columns).map_err(refused)?;
        let start = Position { next_line: at.next_line + first.lines, ..at.further(first.whole) };
        Ok(Self { encoding, separator, columns, email, start })
    }

    /// Returns the name of the address column. A template may use this name or `email`.
    pub fn email_name(&self) -> &str {
        self.columns.get(self.email).map_or("", String::as_str)
    }

    /// Returns the variables that a template may use.
    pub fn variables(&self) -> BTreeSet<&str> {
        let named = self.columns.iter().map(String::as_str).filter(|name| !name.is_empty());
        named.chain(["email"]).collect()
    }
}

/// Normalizes a column's name to the form that templates use, because people write headers by hand.
pub(super) fn column_name(text: &str) -> String {
    text.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}').to_lowercase()
}

/// The first record of a file, read with one of the separators.
struct First {
    fields: Vec<String>,
    whole: usize,
    lines: u64,
}

impl First {
    fn read(rest: &[u8], encoding: Encoding, separator: Separator, at_end: bool) -> Result<Self, FileProblem> {
        let window = &rest[..rest.len().min(LONGEST_RECORD)];
        let last = at_end && window.len() == rest.len();
        let (text, whole) = match csv::record_end(window, encoding, separator.char(), last) {
            End::At { text, whole } => (text, whole),
            End::Open(csv::State::Quoted) => return Err(FileProblem::QuoteNeverCloses),
            End::Open(_) if last => (window.len(), window.len()),
            End::Open(_) | End::Unclear => return Err(FileProblem::HeaderTooLong),
        };
        let fields = csv::fields(&encoding.decode(&window[..text])?, separator.char());
        Ok(Self { fields, whole, lines: csv::lines(&window[..whole], encoding) })
    }

    fn columns(&self) -> Vec<String> {
        self.fields.iter().map(|field| column_name(field)).collect()
    }

    /// Returns whether the record is a single address: a file of nothing but addresses needs no
    /// header. Empty cells beside the address are ignored.
    fn is_one_address(&self) -> bool {
        let blank = |field: &String| field.trim().is_empty();
        self.fields.split_first().is_some_and(|(first, more)| first.contains('@') && more.iter().all(blank))
    }
}

fn is_blank(bytes: &[u8], encoding: Encoding) -> bool {
    encoding.units(bytes).all(|unit| matches!(unit, 0x09 | 0x0a | 0x0d | 0x20))
}

/// Reads a first line such as `sep=;`, which names the separator for spreadsheets and is not a row.
fn named_separator(line: &[u8], encoding: Encoding) -> Option<Separator> {
    const LONGEST: usize = 16;
    if line.len() > LONGEST {
        return None;
    }
    let text = encoding.decode(line).ok()?;
    let (word, separator) = text.trim_matches('"').split_once('=')?;
    let named = |it: &Separator| word.eq_ignore_ascii_case("sep") && separator.chars().eq([it.char()]);
    Separator::ALL.iter().copied().find(named)
}

fn email_column(columns: &[String], asked: Option<&str>) -> Result<usize, FileProblem> {
    let is_email = |name: &str| match asked {
        Some(asked) => name == column_name(asked),
        None => {
            let bare: String = name.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).collect();
            EMAIL_NAMES.contains(&bare.as_str())
        }
    };
    let mut found = (0..).zip(columns).filter(|(_, name)| is_email(name)).map(|(at, _)| at);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(_), Some(_)) => Err(FileProblem::TwoEmailColumns),
        (None, _) => Err(FileProblem::NoEmailColumn),
    }
}

/// Checks the header. Names must be unique, because a template's variable refers to one column.
fn check_columns(columns: &[String]) -> Result<(), FileProblem> {
    if columns.len() > MOST_COLUMNS {
        return Err(FileProblem::TooManyColumns);
    }
    if columns.iter().any(|name| name.len() > LONGEST_COLUMN_NAME) {
        return Err(FileProblem::ColumnTooLong);
    }
    let mut seen = BTreeSet::new();
    let twice = columns.iter().filter(|name| !name.is_empty()).any(|name| !seen.insert(name));
    if twice { Err(FileProblem::ColumnTwice) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(file: &str) -> Result<Format, FileProblem> {
        Format::detect(file.as_bytes(), true, &ImportOptions::default()).map_err(|unreadable| unreadable.problem)
    }

    #[test]
    fn the_column_of_the_address_is_found_in_the_header() {
        for (file, separator, email, line) in [
            ("Nome,E-Mail\nAna,a@b.co", Separator::Comma, 1, 2),
            ("\u{feff}email\r\na@b.co", Separator::Comma, 0, 2),
            ("\r\n \nnome;email;valor, em reais\n", Separator::Semicolon, 1, 4),
            ("nome\t\"Email Address\"\n", Separator::Tab, 1, 2),
            ("email;tamanho,\"pol\n", Separator::Semicolon, 0, 2),
            ("\"nome\ncompleto\",EMAIL", Separator::Comma, 1, 2),
            ("\"nome\ncompleto\",EMAIL\n", Separator::Comma, 1, 3),
        ] {
            let format = detect(file).expect(file);
            assert_eq!((format.separator, format.email, format.start.next_line), (separator, email, line), "{file:?}");
        }
    }

    #[test]
    fn a_file_with_only_addresses_needs_no_header() {
        let format = detect("\na@b.co\nc@d.co").expect("a format");
        assert_eq!((format.columns.as_slice(), format.start.next_line), (["email".to_owned()].as_slice(), 2));
        assert_eq!(format.start.next_byte, 1);
        assert_eq!(detect("a@b.co;;\nc@d.co;;\n").map(|format| format.separator), Ok(Separator::Semicolon));
        assert_eq!(detect("a@b.co,Ana\n"), Err(FileProblem::NoEmailColumn));
        assert_eq!(detect("Dear Sir\nor Madam"), Err(FileProblem::NoEmailColumn));
    }

    #[test]
    fn a_sep_line_for_spreadsheets_names_the_separator_and_is_not_a_row() {
        for (file, separator, line) in [
            ("sep=;\r\nemail;nome, sobrenome\r\n", Separator::Semicolon, 3),
            ("SEP=,\nnome,email\n", Separator::Comma, 3),
            ("\"sep=\t\"\n\nemail\tnome;x\n", Separator::Tab, 4),
            ("sep=;\na@b.co\n", Separator::Semicolon, 2),
        ] {
            let format = detect(file).expect(file);
            assert_eq!((format.separator, format.start.next_line), (separator, line), "{file:?}");
            let utf16: Vec<u8> = format!("\u{feff}{file}").encode_utf16().flat_map(u16::to_le_bytes).collect();
            let format = Format::detect(&utf16, true, &ImportOptions::default()).expect(file);
            assert_eq!((format.separator, format.start.next_line), (separator, line), "{file:?} in UTF-16");
        }
        assert_eq!(detect("sep=;\nnome,email\n"), Err(FileProblem::NoEmailColumn), "the sep line decides");
        assert_eq!(detect("sep=|\nnome,email\n"), Err(FileProblem::NoEmailColumn));
        assert_eq!(detect("sep=;\nsep=;\nnome;email\n"), Err(FileProblem::NoEmailColumn));
        assert_eq!(detect("sep=;\n\n"), Err(FileProblem::Empty));
    }

    #[test]
    fn the_caller_may_name_the_column_of_the_address() {
        let options = ImportOptions { email_column: Some("Contato ".to_owned()), encoding: None };
        let format = Format::detect(b"email;contato\n", true, &options).expect("a format");
        assert_eq!((format.separator, format.email), (Separator::Semicolon, 1));
        assert!(Format::detect(b"a@b.co\n", true, &options).is_err(), "a named column needs its header");
    }

    #[test]
    fn a_file_that_is_not_a_list_is_refused_with_its_reason() {
        let many = format!("email{}", ",x".repeat(MOST_COLUMNS));
        let long = "x".repeat(LONGEST_RECORD + 1);
        for (file, problem) in [
            ("", FileProblem::Empty),
            ("\u{feff}\r\n \n", FileProblem::Empty),
            ("PK\u{3}\u{4}\0\0", FileProblem::NotText),
            ("\"email\na@b.co\n", FileProblem::QuoteNeverCloses),
            ("nome,\"email\na@b.co\n", FileProblem::QuoteNeverCloses),
            ("email,e-mail\n", FileProblem::TwoEmailColumns),
            ("email,nome,Nome \n", FileProblem::ColumnTwice),
            (many.as_str(), FileProblem::TooManyColumns),
            (&format!("email,{}", "x".repeat(LONGEST_COLUMN_NAME + 1)), FileProblem::ColumnTooLong),
            (long.as_str(), FileProblem::HeaderTooLong),
        ] {
            assert_eq!(detect(file), Err(problem), "{:.20}", file);
        }
        let latin = Format::detect(b"email,endere\xe7o\n", true, &ImportOptions::default());
        assert_eq!(latin, Err(UnreadableFile { line: 1, problem: FileProblem::NotUtf8 }));
        let asked = ImportOptions { encoding: Some(Encoding::Latin1), email_column: None };
        let latin = Format::detect(b"email,endere\xe7o\n", true, &asked).expect("a format");
        assert_eq!(latin.columns, ["email", "endereço"]);
        assert_eq!(latin.variables().into_iter().collect::<Vec<_>>(), ["email", "endereço"]);
    }
}
