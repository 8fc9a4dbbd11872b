//! The encoding of a file. Only a byte order mark is detected, nothing else is guessed: a guess
//! that is wrong once in a thousand files would corrupt the names in that file without notice.

use encoding_rs::WINDOWS_1252;

use crate::codes::{FileProblem, codes};

codes! {
    /// The encoding of a file. A file without a byte order mark is UTF-8, unless the caller names
    /// another encoding.
    Encoding {
        Utf8 = "utf-8",
        Utf16Le = "utf-16le",
        Utf16Be = "utf-16be",
        /// Windows-1252, which is what spreadsheets write as Latin-1.
        Latin1 = "latin1",
    }
}

impl Encoding {
    /// Returns the encoding of a file with this beginning, and the length of its byte order mark. A
    /// mark overrides the requested encoding.
    pub fn of(head: &[u8], asked: Option<Self>) -> (Self, usize) {
        match head {
            [0xef, 0xbb, 0xbf, ..] => (Self::Utf8, 3),
            [0xff, 0xfe, ..] => (Self::Utf16Le, 2),
            [0xfe, 0xff, ..] => (Self::Utf16Be, 2),
            _ => (asked.unwrap_or(Self::Utf8), 0),
        }
    }

    /// Returns the bytes of one code unit. Separators and line ends are one unit in each encoding,
    /// and that unit is never part of another character.
    pub(super) const fn width(self) -> usize {
        match self {
            Self::Utf8 | Self::Latin1 => 1,
            Self::Utf16Le | Self::Utf16Be => 2,
        }
    }

    pub(super) fn units(self, bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
        bytes.chunks_exact(self.width()).map(move |unit| match (self, unit) {
            (Self::Utf16Le, [low, high]) => u16::from_le_bytes([*low, *high]),
            (Self::Utf16Be, [high, low]) => u16::from_be_bytes([*high, *low]),
            (_, unit) => unit.first().copied().map_or(0, u16::from),
        })
    }

    /// Decodes a record. A NUL is refused, because no text file contains one: the file is a
    /// spreadsheet in its own format, or UTF-16 without a byte order mark.
    pub(super) fn decode(self, bytes: &[u8]) -> Result<String, FileProblem> {
        let text = match self {
            Self::Utf8 | Self::Latin1 if bytes.contains(&0) => Err(FileProblem::NotText),
            Self::Utf8 => std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| FileProblem::NotUtf8),
            Self::Latin1 => Ok(WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned()),
            Self::Utf16Le | Self::Utf16Be if !bytes.len().is_multiple_of(2) => Err(FileProblem::NotUtf16),
            Self::Utf16Le | Self::Utf16Be => {
                char::decode_utf16(self.units(bytes)).collect::<Result<String, _>>().map_err(|_| FileProblem::NotUtf16)
            }
        }?;
        if text.contains('\0') { Err(FileProblem::NotText) } else { Ok(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_overrides_the_requested_encoding() {
        assert_eq!(Encoding::of(b"\xef\xbb\xbfa", Some(Encoding::Latin1)), (Encoding::Utf8, 3));
        assert_eq!(Encoding::of(b"\xff\xfea\0", None), (Encoding::Utf16Le, 2));
        assert_eq!(Encoding::of(b"\xfe\xff\0a", None), (Encoding::Utf16Be, 2));
        assert_eq!(Encoding::of(b"a", None), (Encoding::Utf8, 0));
        assert_eq!(Encoding::of(b"", Some(Encoding::Latin1)), (Encoding::Latin1, 0));
    }

    #[test]
    fn text_is_decoded_in_each_encoding_and_invalid_bytes_are_refused() {
        assert_eq!(Encoding::Utf8.decode("ação".as_bytes()).as_deref(), Ok("ação"));
        assert_eq!(Encoding::Utf8.decode(b"a\xe7\xe3o"), Err(FileProblem::NotUtf8));
        assert_eq!(Encoding::Latin1.decode(b"a\xe7\xe3o \x80\x9f").as_deref(), Ok("ação €Ÿ"));
        assert_eq!(Encoding::Utf16Le.decode(b"\xe7\0=\xd8\0\xde").as_deref(), Ok("ç😀"));
        assert_eq!(Encoding::Utf16Be.decode(b"\0\xe7\xd8=\xde\0").as_deref(), Ok("ç😀"));
        assert_eq!(Encoding::Utf16Be.decode(b"\xd8="), Err(FileProblem::NotUtf16));
        for encoding in [Encoding::Utf8, Encoding::Latin1] {
            assert_eq!(encoding.decode(b"a\0\xff"), Err(FileProblem::NotText), "{encoding}");
        }
    }
}
