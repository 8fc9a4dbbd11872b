//! Checks whether Telegram accepts a text as HTML. The reference is the behavior of its server, not
//! its documentation page: text that the server reads leniently (an unknown attribute, a link
//! without an address, an unknown character reference, `</>`) is valid here, and text that it
//! answers with 400 is not.

use crate::channels::telegram::markdown_v2::{Invalid, Visible, is_date_format, is_emoji_id};

pub fn visible(text: &str) -> Result<Visible, Invalid> {
    let chars: Vec<char> = text.chars().collect();
    let visible = Visible { units: 0, blank: true };
    let mut parser = Parser { chars: &chars, at: 0, open: Vec::new(), visible };
    while let Some(c) = chars.get(parser.at) {
        parser.step(*c)?;
    }
    match parser.open.last() {
        Some(open) => Err(Invalid { offset: open.offset, why: NOT_CLOSED }),
        None => Ok(parser.visible),
    }
}

const TAGS: [&str; 17] = [
    "a",
    "b",
    "blockquote",
    "code",
    "del",
    "em",
    "i",
    "ins",
    "pre",
    "s",
    "span",
    "strike",
    "strong",
    "tg-emoji",
    "tg-spoiler",
    "tg-time",
    "u",
];

const NOT_A_TAG: &str = "Telegram has no such tag; a '<' that begins none must be written '&lt;'";
const UNFINISHED: &str = "a tag begins here and its '>' is missing; a '<' that begins none must be written '&lt;'";
const NOT_CLOSED: &str = "this tag is not closed";
const NOTHING_TO_CLOSE: &str = "there is no open tag to close";
const CLOSES_ANOTHER: &str = "this does not close the tag that was opened last";
const NAMELESS: &str = "expected the name of an attribute, or '>'";
const UNQUOTED: &str = "a value without quotation marks has only letters, digits, '.' and '-'";
const UNENDED_VALUE: &str = "a value begins here and its closing quotation mark is missing";
const NOT_A_SPOILER: &str = "a span must have the class \"tg-spoiler\"";
const NOT_AN_EMOJI: &str = "the emoji-id of a custom emoji must be its number";
const NOT_A_FORMAT: &str = "the format of a time must be 'r', or letters of 'tTdDwW'";
const SURROGATE: &str = "this refers to half of a surrogate pair, which is not a character";

/// A tag that is open.
struct Open {
    tag: &'static str,
    offset: usize,
    /// The length of the visible text before it, in UTF-16 code units.
    units: usize,
    /// The problem of this tag. It counts only if the tag contains visible text: Telegram ignores a
    /// tag around nothing.
    unfit: Option<&'static str>,
}

struct Parser<'a> {
    chars: &'a [char],
    at: usize,
    /// The innermost tag is the last one.
    open: Vec<Open>,
    visible: Visible,
}

impl Parser<'_> {
    fn step(&mut self, c: char) -> Result<(), Invalid> {
        let offset = self.at;
        match c {
            '<' if self.chars.get(offset + 1) == Some(&'/') => self.end_tag(),
            '<' => self.begin_tag(),
            _ => {
                let shown = match self.reference() {
                    Some(code) => char::from_u32(code).ok_or(Invalid { offset, why: SURROGATE })?,
                    None => {
                        self.at += 1;
                        c
                    }
                };
                self.visible.units += shown.len_utf16();
                self.visible.blank &= shown.is_whitespace();
                Ok(())
            }
        }
    }

    /// Reads a character reference at the current position. `None` if the text does not decode as
    /// one: it is plain text then.
    fn reference(&mut self) -> Option<u32> {
        let (code, width) = decode(self.chars.get(self.at..)?)?;
        self.at += width;
        if self.peek() == Some(';') {
            self.at += 1;
        }
        Some(code)
    }

    fn begin_tag(&mut self) -> Result<(), Invalid> {
        let offset = self.at;
        self.at += 1;
        let name = self.take_until(|c| is_space(c) || c == '>');
        if self.peek().is_none() {
            return Err(Invalid { offset, why: UNFINISHED });
        }
        let tag = TAGS.into_iter().find(|tag| name.eq_ignore_ascii_case(tag));
        let tag = tag.ok_or(Invalid { offset, why: NOT_A_TAG })?;
        let argument = self.attributes(tag, offset)?;
        let unfit = match tag {
            "span" if argument != "spoiler" => return Err(Invalid { offset, why: NOT_A_SPOILER }),
            "tg-emoji" if !is_emoji_id(&argument) => Some(NOT_AN_EMOJI),
            "tg-time" if !is_date_format(&argument) => Some(NOT_A_FORMAT),
            _ => None,
        };
        self.open.push(Open { tag, offset, units: self.visible.units, unfit });
        Ok(())
    }

    /// Reads up to and including the tag's '>'. Returns the attribute value that decides whether
    /// the tag is valid; if the attribute repeats, the last value counts.
    fn attributes(&mut self, tag: &str, offset: usize) -> Result<String, Invalid> {
        let mut argument = String::new();
        loop {
            self.skip_space();
            match self.peek() {
                None => return Err(Invalid { offset, why: UNFINISHED }),
                Some('>') => {
                    self.at += 1;
                    return Ok(argument);
                }
                Some(_) => {}
            }
            let name = self.take_until(|c| is_space(c) || matches!(c, '=' | '>' | '/' | '"' | '\''));
            if name.is_empty() {
                return Err(Invalid { offset: self.at, why: NAMELESS });
            }
            self.skip_space();
            if self.peek() != Some('=') {
                continue;
            }
            self.at += 1;
            self.skip_space();
            let value = self.value()?;
            match (tag, name.as_str()) {
                ("tg-emoji", "emoji-id") | ("tg-time", "format") => argument = value,
                ("span", "class") => argument = value.strip_prefix("tg-").map_or(argument, str::to_owned),
                _ => {}
            }
        }
    }

    /// Reads an attribute value. A value without quotation marks is case-insensitive.
    fn value(&mut self) -> Result<String, Invalid> {
        let offset = self.at;
        if let Some(mark @ ('"' | '\'')) = self.peek() {
            return self.quoted(mark);
        }
        let word = self.take_until(|c| !c.is_ascii_alphanumeric() && c != '.' && c != '-');
        match self.peek() {
            Some(c) if !is_space(c) && c != '>' => Err(Invalid { offset, why: UNQUOTED }),
            _ => Ok(word.to_ascii_lowercase()),
        }
    }

    fn quoted(&mut self, mark: char) -> Result<String, Invalid> {
        let offset = self.at;
        self.at += 1;
        let mut value = String::new();
        while let Some(c) = self.peek() {
            if c == mark {
                self.at += 1;
                return Ok(value);
            }
            match self.reference() {
                Some(code) => value.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)),
                None => {
                    self.at += 1;
                    value.push(c);
                }
            }
        }
        Err(Invalid { offset, why: UNENDED_VALUE })
    }

    fn end_tag(&mut self) -> Result<(), Invalid> {
        let offset = self.at;
        let open = self.open.pop().ok_or(Invalid { offset, why: NOTHING_TO_CLOSE })?;
        self.at += 2;
        let name = self.take_until(|c| is_space(c) || c == '>');
        self.skip_space();
        if self.peek() != Some('>') {
            return Err(Invalid { offset, why: UNFINISHED });
        }
        self.at += 1;
        if !name.is_empty() && !name.eq_ignore_ascii_case(open.tag) {
            return Err(Invalid { offset, why: CLOSES_ANOTHER });
        }
        match open.unfit {
            Some(why) if self.visible.units > open.units => Err(Invalid { offset: open.offset, why }),
            _ => Ok(()),
        }
    }

    /// Returns the current character. Within a tag, a NUL ends the text, as it does on Telegram's
    /// server.
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied().filter(|c| *c != '\0')
    }

    fn take_until(&mut self, is_end: impl Fn(char) -> bool) -> String {
        let mut taken = String::new();
        while let Some(c) = self.peek().filter(|c| !is_end(*c)) {
            taken.push(c);
            self.at += 1;
        }
        taken
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.at += 1;
        }
    }
}

/// Returns whether Telegram treats a character as white space within a tag. Unlike in HTML, the
/// form feed is not white space.
const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{b}')
}

/// Decodes a character reference at the beginning of `text`. Returns its code and its width without
/// the ';', which may be missing.
fn decode(text: &[char]) -> Option<(u32, usize)> {
    match text {
        ['&', '#', 'x', digits @ ..] => number(digits, 16, 6).map(|(code, width)| (code, width + 3)),
        ['&', '#', digits @ ..] => number(digits, 10, 7).map(|(code, width)| (code, width + 2)),
        ['&', letters @ ..] => {
            let name: String = letters.iter().take_while(|c| c.is_ascii_alphabetic()).collect();
            let code = match name.as_str() {
                "lt" => '<',
                "gt" => '>',
                "amp" => '&',
                "quot" => '"',
                _ => return None,
            };
            Some((code.into(), name.len() + 1))
        }
        _ => None,
    }
}

/// Parses the digits of a reference. `None` if there are more than `most` digits, leading zeros
/// included.
fn number(digits: &[char], radix: u32, most: usize) -> Option<(u32, usize)> {
    let digits: String = digits.iter().take_while(|c| c.is_digit(radix)).collect();
    let code = u32::from_str_radix(&digits, radix).ok()?;
    // Telegram's server does not accept the last code point.
    (digits.len() <= most && (1..0x10_ffff).contains(&code)).then_some((code, digits.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> (usize, &'static str) {
        let invalid = visible(text).expect_err(text);
        (invalid.offset, invalid.why)
    }

    #[test]
    fn html_that_telegram_accepts_is_valid() {
        let cases = [
            ("", 0),
            ("plain > text, \"x\" 'y' * _ [ ] ( ) ~ ` # + - = | { } . !", 55),
            ("olá, ação ➡️", 12),
            ("👍🏽", 4),
            ("<b>bold</b> <strong>bold</strong>", 9),
            ("<i>a</i><em>b</em><u>c</u><ins>d</ins><s>e</s><strike>f</strike><del>g</del>", 7),
            ("<b>bold <i>italic <s>strike <tg-spoiler>x</tg-spoiler></s> <u>under</u></i> bold</b>", 31),
            ("<B>any<I\n>case</i></b\t>", 7),
            ("🏟 🏟<i>🏟 &lt🏟</i>", 11),
            ("🏟 🏟<i>🏟 &gt;<b aba   =   caba>&lt🏟</b></i>", 12),
            ("<i    aba  =  190azAz-.   >a</i><i aba=190azAz-.>a</i>", 2),
            ("<i    aba  =  \"&lt;&gt;&quot;\">a</i><i aba='<\">'>a</>", 2),
            ("<i x=>a</i><i x= >a</i><i x=\"\"y=''z>a</i><i é=1>a</i>", 4),
            ("<b></b>", 0),
            ("<i>a</    ><i>b</>", 2),
            ("<i>\t</i>", 1),
            ("<a href=telegram.org>x</a>", 1),
            ("<a   href=  'https://telegram.org?a=1&b=2&lt;&#xD800;'   >x</a>", 1),
            ("<a href=\"tg://user?id=123456789\">mention</a>", 7),
            ("<a>telegram.org</a><a href>x</a><a HREF=\"\">y</a>", 14),
            ("<span class=\"tg-spoiler\">x</span><span class = tg-Spoiler>y</span>", 2),
            ("<span class='tg-spoiler' class='x'>x</span><span class='&#116;g-spoiler'>y</span>", 2),
            ("<tg-emoji emoji-id=\"5368324170671202286\">👍</tg-emoji>", 2),
            ("<tg-emoji emoji-id=-1>👍</tg-emoji><tg-emoji></tg-emoji>", 2),
            ("<tg-time unix=\"1647531900\" format=\"wDT\">22:45</tg-time>", 5),
            ("<tg-time unix = \"12345\", format = \"r\">x</tg-time><tg-time unix=x>y</tg-time>", 2),
            ("<tg-time format=rt></tg-time>", 0),
            ("<pre><code class=\"language-python\">x = 1\n</code></pre>", 6),
            ("<code class=\"language-fift\"><pre>x</></>", 1),
            ("<blockquote>a</blockquote>\n<blockquote expandable>b</blockquote>", 3),
            ("<blockquote   cite=\"\" askdlbas nasjdbaj nj12b3>a&lt;<pre  >b;</></>", 4),
            ("<blockquote   expandable=false>a<blockquote>b</></>", 2),
            ("a\0b", 3),
        ];
        for (text, units) in cases {
            assert_eq!(visible(text).map(|visible| visible.units), Ok(units), "{text:?}");
        }
    }

    #[test]
    fn a_character_reference_counts_as_its_character_and_an_invalid_one_as_text() {
        let cases = [
            ("&lt;&gt;&amp;&quot;", 4),
            ("&lt&gt&amp&quot", 4),
            ("&lt;;", 2),
            ("&lt5&#65g&#x41g", 6),
            ("&ltx; &LT; &nbsp; &apos; &Or; &", 31),
            ("&#128077;&#x1F44D;&#x1f44d", 6),
            ("&#0000065;&#x000041;", 2),
            ("&#00000065;&#x0000041;", 22),
            ("&#0; &#; &#x; &#X41; &#-1;", 26),
            ("&#1114110;&#x10fffe;", 4),
            ("&#1114111;&#x10ffff;&#12345678;", 31),
            ("&#99999999999999999999;", 23),
            ("&#60;b&#62;", 3),
        ];
        for (text, units) in cases {
            assert_eq!(visible(text).map(|visible| visible.units), Ok(units), "{text:?}");
        }
    }

    #[test]
    fn html_that_telegram_refuses_is_refused_at_the_position_of_the_error() {
        let cases = [
            ("<b>Oferta", 0, NOT_CLOSED),
            ("é<b>a <i>b", 6, NOT_CLOSED),
            ("🏟 🏟&lt;<i    aba>", 7, NOT_CLOSED),
            ("🏟 🏟&lt;<abacaba", 7, UNFINISHED),
            ("a <", 2, UNFINISHED),
            ("<3", 0, UNFINISHED),
            ("<b ", 0, UNFINISHED),
            ("<b\0>a</b>", 0, UNFINISHED),
            ("<a href", 0, UNFINISHED),
            ("🏟 🏟&lt;<i    aba  =  ", 7, UNFINISHED),
            ("<a href=x", 0, UNFINISHED),
            ("<a href=\"x\"", 0, UNFINISHED),
            ("1 < 2 > 1", 2, NOT_A_TAG),
            ("<>", 0, NOT_A_TAG),
            ("a<br>b", 1, NOT_A_TAG),
            ("<br/>", 0, NOT_A_TAG),
            ("<p>a</p>", 0, NOT_A_TAG),
            ("<!-- a -->", 0, NOT_A_TAG),
            ("<b\u{c}>a</b>", 0, NOT_A_TAG),
            ("🏟 🏟&lt;<abac aba>", 7, NOT_A_TAG),
            ("🏟 🏟&lt;<i   =aba>", 12, NAMELESS),
            ("<b />", 3, NAMELESS),
            ("<a href=\"x\"/>", 11, NAMELESS),
            ("<b x\"y\">", 4, NAMELESS),
            ("🏟 🏟&lt;<i    aba  =  190azAz-.,", 21, UNQUOTED),
            ("<a href=https://x.co>x</a>", 8, UNQUOTED),
            ("<a href=x/>x</a>", 8, UNQUOTED),
            ("<a href=é>x</a>", 8, UNQUOTED),
            ("🏟 🏟&lt;<i    aba  =  \"&lt;&gt;&quot;>", 21, UNENDED_VALUE),
            ("<a href='x\">x</a>", 8, UNENDED_VALUE),
            ("<span>x</span>", 0, NOT_A_SPOILER),
            ("<span class>x</span>", 0, NOT_A_SPOILER),
            ("<span CLASS=tg-spoiler>x</span>", 0, NOT_A_SPOILER),
            ("<span class=\"tg-Spoiler\">x</span>", 0, NOT_A_SPOILER),
            ("<span class='tg-spoiler' class='tg-x'></span>", 0, NOT_A_SPOILER),
            ("<b><tg-emoji>👍</tg-emoji></b>", 3, NOT_AN_EMOJI),
            ("<tg-emoji emoji-id=\"025\">👍</tg-emoji>", 0, NOT_AN_EMOJI),
            ("<tg-emoji emoji-id=0>👍</tg-emoji>", 0, NOT_AN_EMOJI),
            ("<tg-time unix=12345 format=rt>x</tg-time>", 0, NOT_A_FORMAT),
            ("<tg-time format=ts>x</tg-time>", 0, NOT_A_FORMAT),
            ("🏟 🏟&lt;</", 7, NOTHING_TO_CLOSE),
            ("🏟 🏟&lt;<b></b></", 14, NOTHING_TO_CLOSE),
            ("a</b>", 1, NOTHING_TO_CLOSE),
            ("🏟 🏟&lt;<i>a</i   ", 11, UNFINISHED),
            ("<i>a</i x>", 4, UNFINISHED),
            ("<i>a</i", 4, UNFINISHED),
            ("🏟 🏟&lt;<i>a</em   >", 11, CLOSES_ANOTHER),
            ("<b>a <i>b</b> c</i>", 9, CLOSES_ANOTHER),
            ("<b>a</ b>", 4, UNFINISHED),
            ("é&#57311;", 1, SURROGATE),
            ("&#xDFDF", 0, SURROGATE),
            ("&#xD83D;&#xDC4D;", 0, SURROGATE),
        ];
        for (text, offset, why) in cases {
            assert_eq!(reason(text), (offset, why), "{text:?}");
        }
    }

    #[test]
    fn tags_are_case_insensitive_and_another_tag_does_not_close_them() {
        for tag in TAGS {
            let attribute = match tag {
                "span" => " class=tg-spoiler",
                "tg-emoji" => " emoji-id=1",
                _ => "",
            };
            let upper = tag.to_uppercase();
            for end in [tag, &upper, ""] {
                let text = format!("<{upper}{attribute}>x</{end}>");
                assert_eq!(visible(&text), Ok(Visible { units: 1, blank: false }), "{text}");
            }
            assert_eq!(reason(&format!("<{tag}{attribute}>x</x{tag}>")).1, CLOSES_ANOTHER, "{tag}");
            assert_eq!(reason(&format!("<x{tag}{attribute}>x</x{tag}>")), (0, NOT_A_TAG), "{tag}");
        }
    }

    #[test]
    fn markup_without_visible_text_is_valid_and_blank() {
        for text in ["", " \n", "<b></b>", "<b> </b>", "<a href=\"https://x.co\">\n</a>", "&#32;&#xA0;"] {
            assert!(visible(text).expect(text).blank, "{text:?}");
        }
        for text in ["<b>a</b>", "&lt;", "&nbsp;", ">"] {
            assert!(!visible(text).expect(text).blank, "{text:?}");
        }
    }

    #[test]
    fn many_repeated_marks_are_judged_like_a_few() {
        for unit in
            ["a", "<", "<b>", "<b></b>", "</b>", "<b ", "<a x=\"", "&", "&#", "&#1", "&lt", "&amp;", "😀", "<b x "]
        {
            let (short, long) = (visible(&unit.repeat(120)), visible(&unit.repeat(24_000)));
            assert_eq!(short.is_ok(), long.is_ok(), "{unit:?}");
        }
    }

    #[test]
    fn random_text_never_panics_and_escaped_text_is_always_valid() {
        let marks = "<|>|/|</|</>|<b>|</b>|<a href=|</a>|<span class=|<tg-emoji emoji-id=|</i|=|\"|'|tg-spoiler|B";
        let others = "&|#|x|;|lt|&lt|&#x|D83D|1|-|.| |\n|\0|é|👍|\u{200d}";
        let pieces: Vec<&str> = marks.split('|').chain(others.split('|')).collect();
        let mut seed: u64 = 42;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        for _ in 0..50_000 {
            let text: String = (0..next() % 30).map(|_| pieces[next() % pieces.len()]).collect();
            match visible(&text) {
                Ok(visible) => assert!(visible.units <= text.encode_utf16().count(), "{text:?}"),
                Err(invalid) => assert!(invalid.offset <= text.chars().count(), "{text:?}"),
            }
            let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
            let units = text.encode_utf16().count();
            assert_eq!(visible(&escaped).map(|visible| visible.units), Ok(units), "{text:?}");
        }
    }
}
