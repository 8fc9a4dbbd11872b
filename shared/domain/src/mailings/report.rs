//! The report of a file's rows that did not become recipients, and why, for people and for
//! spreadsheets.

use super::rows::LineRow;
use crate::codes::RowProblem;

/// The reason of a row whose address is in an earlier row.
pub const DUPLICATE: &str = "duplicate";

impl LineRow {
    fn detail(&self) -> String {
        match (RowProblem::parse(&self.reason), self.of_line) {
            (Some(problem), _) => sentence(problem).to_owned(),
            (None, Some(of_line)) => format!("line {of_line} has the same address"),
            (None, None) => String::new(),
        }
    }
}

fn sentence(problem: RowProblem) -> &'static str {
    match problem {
        RowProblem::EmailMissing => "the row has no address",
        RowProblem::EmailMalformed => "the address must be a name and a domain with one @ between them",
        RowProblem::EmailLocalPart => "the part before the @ cannot be delivered to",
        RowProblem::EmailDomain => "the part after the @ is not a domain",
        RowProblem::EmailTooLong => "the address is longer than 254 characters",
        RowProblem::TooManyFields => "the row has more fields than the header has columns",
        RowProblem::RowTooLong => "the row is longer than 64 KB",
    }
}

/// Writes the report as CSV, following RFC 4180.
pub fn csv<'l>(lines: impl IntoIterator<Item = &'l LineRow>) -> String {
    let mut file = "line,reason,of_line,detail\r\n".to_owned();
    for line in lines {
        let of_line = line.of_line.map(|line| line.to_string()).unwrap_or_default();
        let cells = [line.line.to_string(), cell(&line.reason), of_line, cell(&line.detail())];
        file.push_str(&cells.join(","));
        file.push_str("\r\n");
    }
    file
}

/// Writes a text as a cell of a CSV. A spreadsheet evaluates text that looks like a formula, so
/// such text gets an apostrophe before it, which spreadsheets read as "text".
pub fn cell(text: &str) -> String {
    let guard = if is_formula(text) { "'" } else { "" };
    // Some programs also split at semicolons and tabs. Quotes keep the text in one cell.
    if text.contains(['"', ',', ';', '\t', '\r', '\n']) {
        format!("\"{guard}{}\"", text.replace('"', "\"\""))
    } else {
        format!("{guard}{text}")
    }
}

/// Returns whether a spreadsheet may read the text as a formula. It also matches full-width signs,
/// which some programs fold to ASCII, and leading spaces, which some programs trim.
fn is_formula(text: &str) -> bool {
    let spaces = |c: char| c.is_whitespace() || matches!(c, '\u{feff}' | '\u{200b}');
    text.starts_with(['\t', '\r', '\n'])
        || text.trim_start_matches(spaces).starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailings::csv::fields;

    #[test]
    fn a_report_is_a_csv_file_with_an_explanation_in_each_row() {
        let lines = [LineRow::invalid(3, RowProblem::EmailMissing), LineRow::duplicate(7, 2)];
        assert_eq!(
            csv(&lines),
            "line,reason,of_line,detail\r\n3,email_missing,,the row has no address\r\n\
             7,duplicate,2,line 2 has the same address\r\n"
        );
        assert_eq!(csv([]), "line,reason,of_line,detail\r\n");
        let json = serde_json::to_string(&lines[1]).expect("json");
        assert_eq!(json, r#"{"line":7,"reason":"duplicate","of_line":2}"#, "a duplicate line has no state");
    }

    #[test]
    fn every_row_problem_has_a_distinct_explanation() {
        let mut all: Vec<_> = RowProblem::ALL.iter().map(|problem| LineRow::invalid(1, *problem).detail()).collect();
        assert!(all.iter().all(|sentence| !sentence.is_empty()));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), RowProblem::ALL.len());
        assert!(RowProblem::ALL.iter().all(|problem| problem.as_str() != DUPLICATE));
    }

    #[test]
    fn a_cell_that_would_be_a_formula_is_escaped() {
        for (text, written) in [
            ("", ""),
            ("Ana", "Ana"),
            ("a=b+c-d@e", "a=b+c-d@e"),
            ("=1+1", "'=1+1"),
            ("+5511", "'+5511"),
            ("-2", "'-2"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("＝1", "'＝1"),
            ("＋1", "'＋1"),
            ("－1", "'－1"),
            ("＠x", "'＠x"),
            ("  =1", "'  =1"),
            ("\u{a0}\u{feff}=1", "'\u{a0}\u{feff}=1"),
            ("\t=1", "\"'\t=1\""),
            ("\tx", "\"'\tx\""),
            ("\rx", "\"'\rx\""),
            ("\n=1", "\"'\n=1\""),
            ("=HYPERLINK(\"x\",\"y\")", "\"'=HYPERLINK(\"\"x\"\",\"\"y\"\")\""),
            ("a,b", "\"a,b\""),
            ("a;=1", "\"a;=1\""),
            ("a\t=1", "\"a\t=1\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
        ] {
            assert_eq!(cell(text), written, "{text:?}");
        }
    }

    #[test]
    fn a_written_cell_is_read_back() {
        let alphabet: Vec<char> = "a \"',;\t\r\n=+-@＝é".chars().collect();
        let mut dice = fastrand::Rng::with_seed(3);
        for _ in 0..5_000 {
            let text: String = (0..dice.usize(..8)).map(|_| alphabet[dice.usize(..alphabet.len())]).collect();
            let guarded = if is_formula(&text) { format!("'{text}") } else { text.clone() };
            assert_eq!(fields(&format!("x,{},y", cell(&text)), ','), ["x", guarded.as_str(), "y"], "{text:?}");
        }
    }
}
