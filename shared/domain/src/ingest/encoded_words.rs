//! Encoded words (RFC 2047): how a header encodes text that is not ASCII.

/// Decodes the encoded words of a header. A word in an unknown charset or encoding stays unchanged.
/// So does a text that is not ASCII: it has been decoded already.
pub fn decode_words(header: &str) -> String {
    if !header.is_ascii() || !header.contains("=?") {
        return header.to_owned();
    }
    // The parser expects a whole header, in one line.
    let line: String = header.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match mailparse::parse_header(format!("Subject: {line}").as_bytes()) {
        Ok((parsed, _)) => parsed.get_value(),
        Err(_) => header.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_words_are_decoded_in_common_charsets() {
        let cases = [
            ("=?utf-8?b?T2zDoQ==?=", "Olá"),
            ("=?UTF-8?Q?Ol=C3=A1_mundo?=", "Olá mundo"),
            ("=?iso-8859-1?q?Ol=E1?=", "Olá"),
            ("=?windows-1252?Q?=93Ol=E1=94?=", "“Olá”"),
            ("Re: =?utf-8?b?T2zDoQ==?= mundo", "Re: Olá mundo"),
            ("=?utf-8?q?Ol=C3=A1?= =?utf-8?q?_mundo?=", "Olá mundo"),
            ("=?utf-8?q?Ol=C3=A1?=\r\n =?utf-8?q?_mundo?=", "Olá mundo"),
            ("=?iso-2022-jp?B?GyRCJDMbKEI=?=", "こ"),
        ];
        for (header, text) in cases {
            assert_eq!(decode_words(header), text, "{header}");
        }
    }

    #[test]
    fn a_word_that_cannot_be_decoded_is_kept() {
        for header in [
            "=?x-unknown?q?Ol=E1?=",
            "=?utf-8?x?abc?=",
            "=?utf-8?b?a",
            "a =? b",
            "1 =? 2 ?= 3",
            "Olá =?utf-8?q?x?=",
            "",
        ] {
            assert_eq!(decode_words(header), header);
        }
    }

    #[test]
    fn random_headers_never_panic_and_grow_at_most_threefold() {
        let parts =
            ["=?", "?=", "?", "utf-8", "iso-8859-1", "q", "b", "=C3", "=E9", "T2zD", "_", " ", "\r\n", "á", "\u{0}"];
        let mut dice = fastrand::Rng::with_seed(47);
        for _ in 0..20_000 {
            let text: String = (0..dice.usize(0..12)).map(|_| parts[dice.usize(0..parts.len())]).collect();
            assert!(decode_words(&text).len() <= 3 * text.len(), "{text:?}");
        }
    }
}
