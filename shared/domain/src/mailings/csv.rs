//! Finds where fields and records end (RFC 4180, and how spreadsheets deviate from it). The same
//! state machine finds the end of a record in the file's code units and the fields in its text, so
//! the two cannot disagree. Why this is not `csv-core`: `docs/decisions/0023`.

use super::encoding::Encoding;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    FieldStart,
    Plain,
    Quoted,
    /// After a quote inside of quotes: either the first of a doubled quote, or the closing one.
    QuoteInQuoted,
}

/// What a unit of the file is, given the units before it.
enum UnitRole {
    /// The unit belongs to the field.
    Text,
    /// The unit is a quote that is syntax, not part of the field.
    Quote,
    FieldEnd,
    RecordEnd,
}

const QUOTE: u32 = '"' as u32;
const LF: u32 = '\n' as u32;
const CR: u32 = '\r' as u32;

impl State {
    fn advance(&mut self, unit: u32, separator: u32) -> UnitRole {
        let (next, role) = match (*self, unit) {
            (Self::Quoted, QUOTE) => (Self::QuoteInQuoted, UnitRole::Quote),
            (Self::Quoted, _) => (Self::Quoted, UnitRole::Text),
            (Self::QuoteInQuoted, QUOTE) => (Self::Quoted, UnitRole::Text),
            (_, LF | CR) => (Self::FieldStart, UnitRole::RecordEnd),
            (_, unit) if unit == separator => (Self::FieldStart, UnitRole::FieldEnd),
            (Self::FieldStart, QUOTE) => (Self::Quoted, UnitRole::Quote),
            _ => (Self::Plain, UnitRole::Text),
        };
        *self = next;
        role
    }
}

/// The result of a search for the end of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The bytes of the record, without and with its end.
    At { text: usize, whole: usize },
    /// The bytes end before the record does, in this state.
    Open(State),
    /// The bytes end with a CR, which an LF may follow.
    Unclear,
}

/// Finds the end of the record that `bytes` begin with. `last` says that the file ends with them.
pub(super) fn record_end(bytes: &[u8], encoding: Encoding, separator: char, last: bool) -> End {
    let mut state = State::FieldStart;
    let mut units = encoding.units(bytes).enumerate();
    while let Some((at, unit)) = units.next() {
        if !matches!(state.advance(unit.into(), separator.into()), UnitRole::RecordEnd) {
            continue;
        }
        let text = at * encoding.width();
        return match units.next() {
            Some((_, next)) if u32::from(unit) == CR && u32::from(next) == LF => {
                End::At { text, whole: text + 2 * encoding.width() }
            }
            None if u32::from(unit) == CR && !last => End::Unclear,
            _ => End::At { text, whole: text + encoding.width() },
        };
    }
    End::Open(state)
}

/// Finds the end of the line, ignoring quotes.
pub(super) fn line_end(bytes: &[u8], encoding: Encoding, last: bool) -> End {
    let plain = |unit: &u16| !matches!(u32::from(*unit), LF | CR);
    let text = encoding.units(bytes).take_while(plain).count() * encoding.width();
    match record_end(&bytes[text..], encoding, '\n', last) {
        End::At { whole, .. } => End::At { text, whole: text + whole },
        other => other,
    }
}

/// Counts the line ends in the bytes of a record, including its own.
pub(super) fn lines(bytes: &[u8], encoding: Encoding) -> u64 {
    let mut after_cr = false;
    let mut count = 0;
    for unit in encoding.units(bytes).map(u32::from) {
        count += u64::from(unit == CR || (unit == LF && !after_cr));
        after_cr = unit == CR;
    }
    count
}

/// Splits a record's text into fields.
pub(super) fn fields(text: &str, separator: char) -> Vec<String> {
    let (mut state, mut all, mut field) = (State::FieldStart, Vec::new(), String::new());
    for c in text.chars() {
        match state.advance(c.into(), separator.into()) {
            UnitRole::Text => field.push(c),
            UnitRole::Quote => {}
            UnitRole::FieldEnd | UnitRole::RecordEnd => all.push(std::mem::take(&mut field)),
        }
    }
    all.push(field);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_split_as_spreadsheets_write_them() {
        let cases: [(&str, &[&str]); 9] = [
            ("a,b,c", &["a", "b", "c"]),
            ("", &[""]),
            (",", &["", ""]),
            ("\"a,b\",c", &["a,b", "c"]),
            ("\"a\r\nb\",c", &["a\r\nb", "c"]),
            ("\"say \"\"hi\"\"\",\"\"", &["say \"hi\"", ""]),
            ("5\" disk,b", &["5\" disk", "b"]),
            ("\"a\" b,c", &["a b", "c"]),
            ("a;b\tc", &["a;b\tc"]),
        ];
        for (text, cut) in cases {
            assert_eq!(fields(text, ','), cut, "{text:?}");
        }
    }

    #[test]
    fn a_record_ends_at_a_line_end_outside_of_quotes() {
        let end = |text: &str, last| record_end(text.as_bytes(), Encoding::Utf8, ',', last);
        assert_eq!(end("ab\ncd", false), End::At { text: 2, whole: 3 });
        assert_eq!(end("ab\r\ncd", false), End::At { text: 2, whole: 4 });
        assert_eq!(end("ab\rcd", false), End::At { text: 2, whole: 3 });
        assert_eq!(end("\"a\nb\"\n", false), End::At { text: 5, whole: 6 });
        assert_eq!(end("ab\r", false), End::Unclear);
        assert_eq!(end("ab\r", true), End::At { text: 2, whole: 3 });
        assert_eq!(end("ab,\"", true), End::Open(State::Quoted));
        assert_eq!(line_end(b"\"ab\ncd", Encoding::Utf8, false), End::At { text: 3, whole: 4 });
        assert_eq!(lines(b"\"a\r\nb\nc\rd\"\r\n", Encoding::Utf8), 4);
    }

    #[test]
    fn half_of_a_utf16_character_is_not_a_separator() {
        // U+2C0A and U+0A2C each contain the byte of a comma and that of a line end.
        let text: Vec<u8> = "\u{2c0a}\u{a2c},b\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(record_end(&text, Encoding::Utf16Le, ',', true), End::At { text: 8, whole: 10 });
    }
}
