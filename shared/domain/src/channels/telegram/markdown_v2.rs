//! Checks whether Telegram accepts a text as MarkdownV2. The reference is the behavior of its
//! server, not its documentation page: text that the server reads leniently (a link without an
//! address, an empty entity, an entity that cannot nest and is dropped) is valid here, and text
//! that it answers with 400 is not.

/// The position of the first error in the markup, counted in characters, and the reason, as a text
/// for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("character {offset}: {why}")]
pub struct Invalid {
    pub offset: usize,
    pub why: &'static str,
}

/// The text without its markup. Telegram's limits apply to this text, not to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visible {
    /// UTF-16 code units.
    pub units: usize,
    pub blank: bool,
}

pub fn check(text: &str) -> Result<(), Invalid> {
    visible(text).map(|_| ())
}

pub fn visible(text: &str) -> Result<Visible, Invalid> {
    let chars: Vec<char> = text.chars().collect();
    let visible = Visible { units: 0, blank: true };
    let mut parser = Parser { chars: &chars, at: 0, open: Vec::new(), in_quote: false, at_line_start: true, visible };
    while let Some(c) = parser.peek(0) {
        parser.step(c)?;
    }
    parser.finish()
}

const RESERVED: &str = "_*[]()~`>#+-=|{}.!";
const MUST_BE_ESCAPED: &str = "this character is reserved and must be escaped with a preceding '\\'";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entity {
    Bold,
    Italic,
    Underline,
    Strikethrough,
    Spoiler,
    Code,
    Pre,
    Link,
    Emoji,
    Quote,
}

impl Entity {
    const fn unclosed(self) -> &'static str {
        match self {
            Self::Bold => "bold text ('*') begins here and does not end",
            Self::Italic => "italic text ('_') begins here and does not end",
            Self::Underline => "underlined text ('__') begins here and does not end",
            Self::Strikethrough => "struck text ('~') begins here and does not end",
            Self::Spoiler => "a spoiler ('||') begins here and does not end",
            Self::Code => "code ('`') begins here and does not end",
            Self::Pre => "a code block ('```') begins here and does not end",
            Self::Link => "a link ('[') begins here and its ']' is missing",
            Self::Emoji => "a custom emoji ('![') begins here and its ']' is missing",
            Self::Quote => "a block quotation ('>') begins here and does not end",
        }
    }
}

struct Parser<'a> {
    chars: &'a [char],
    at: usize,
    /// The open entities with the position where each begins, innermost last.
    open: Vec<(Entity, usize)>,
    /// Whether `open` contains a quotation. It ends with the first line that does not begin with
    /// '>'.
    in_quote: bool,
    /// Whether the line has no visible text before this position, so that a '>' here begins a
    /// quotation.
    at_line_start: bool,
    visible: Visible,
}

impl Parser<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn next_is(&self, ahead: usize, c: char) -> bool {
        self.peek(ahead) == Some(c)
    }

    fn innermost(&self) -> Option<Entity> {
        self.open.last().map(|(entity, _)| *entity)
    }

    fn step(&mut self, c: char) -> Result<(), Invalid> {
        if let Some(escaped) = self.escaped() {
            self.at += 2;
            self.show(escaped);
            self.leave_line_start(escaped, escaped == '\n');
            return Ok(());
        }
        let verbatim = matches!(self.innermost(), Some(Entity::Code | Entity::Pre));
        if c == '\n' && !verbatim {
            return self.line_end();
        }
        if c != '`' && (verbatim || !RESERVED.contains(c)) {
            self.at += 1;
            self.show(c);
            self.leave_line_start(c, false);
            return Ok(());
        }
        match self.innermost() {
            Some(entity) if self.is_end(entity) => self.end(entity),
            _ => self.begin(c),
        }
    }

    /// Returns the character that a backslash at this position escapes. Only ASCII characters can
    /// be escaped; before any other character the backslash is plain text.
    fn escaped(&self) -> Option<char> {
        let next = self.peek(1).filter(|next| ('\u{1}'..='~').contains(next));
        if self.next_is(0, '\\') { next } else { None }
    }

    fn show(&mut self, c: char) {
        self.visible.units += c.len_utf16();
        self.visible.blank &= c.is_whitespace();
    }

    fn leave_line_start(&mut self, shown: char, at_line_start: bool) {
        if shown != '\r' {
            self.at_line_start = at_line_start;
        }
    }

    /// Reads the end of a line. It also ends a quotation that does not continue on the next line;
    /// no entity may be open inside it then. Spoiler marks at the very end of a quotation make it
    /// expandable.
    fn line_end(&mut self) -> Result<(), Invalid> {
        if self.in_quote && !self.next_is(1, '>') {
            if let Some((Entity::Spoiler, begin)) = self.open.last().copied() {
                let inside = self.chars.get(begin + 2..self.at).unwrap_or_default();
                if matches!(inside, [] | ['\r']) {
                    self.open.pop();
                }
            }
            self.end_quote()?;
        }
        self.at += 1;
        self.show('\n');
        self.at_line_start = true;
        Ok(())
    }

    fn end_quote(&mut self) -> Result<(), Invalid> {
        match self.open.pop() {
            Some((Entity::Quote, _)) | None => {
                self.in_quote = false;
                Ok(())
            }
            Some((entity, offset)) => Err(Invalid { offset, why: entity.unclosed() }),
        }
    }

    fn is_end(&self, entity: Entity) -> bool {
        match entity {
            Entity::Bold => self.next_is(0, '*'),
            Entity::Italic => self.next_is(0, '_') && !self.next_is(1, '_'),
            Entity::Underline => self.next_is(0, '_') && self.next_is(1, '_'),
            Entity::Strikethrough => self.next_is(0, '~'),
            Entity::Spoiler => self.next_is(0, '|') && self.next_is(1, '|'),
            Entity::Code => self.next_is(0, '`'),
            Entity::Pre => self.is_fence(),
            Entity::Link | Entity::Emoji => self.next_is(0, ']'),
            Entity::Quote => false,
        }
    }

    fn is_fence(&self) -> bool {
        (0..3).all(|ahead| self.next_is(ahead, '`'))
    }

    fn end(&mut self, entity: Entity) -> Result<(), Invalid> {
        self.open.pop();
        self.at += match entity {
            Entity::Underline | Entity::Spoiler => 2,
            Entity::Pre => 3,
            _ => 1,
        };
        match entity {
            Entity::Link if self.next_is(0, '(') => self.address().map(|_| ()),
            Entity::Emoji => self.emoji_address(),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, c: char) -> Result<(), Invalid> {
        let begin = self.at;
        let (entity, width) = match c {
            '_' if self.next_is(1, '_') => (Entity::Underline, 2),
            '_' => (Entity::Italic, 1),
            '*' => (Entity::Bold, 1),
            '~' => (Entity::Strikethrough, 1),
            '|' if self.next_is(1, '|') => (Entity::Spoiler, 2),
            '`' if self.is_fence() => (Entity::Pre, 3),
            '`' => (Entity::Code, 1),
            '[' => (Entity::Link, 1),
            '!' if self.next_is(1, '[') => (Entity::Emoji, 2),
            '>' if self.at_line_start => (Entity::Quote, 1),
            _ => return Err(Invalid { offset: begin, why: MUST_BE_ESCAPED }),
        };
        self.at += width;
        match entity {
            Entity::Quote if self.in_quote => return Ok(()),
            Entity::Quote => self.in_quote = true,
            Entity::Pre => self.skip_language(),
            _ => {}
        }
        self.open.push((entity, begin));
        Ok(())
    }

    /// Skips the language and one line break after the fence; neither is shown. The word after the
    /// fence is a language if white space follows it.
    fn skip_language(&mut self) {
        let is_end = |c: &char| matches!(c, ' ' | '\t' | '\r' | '\n' | '\0' | '\u{b}' | '`');
        let rest = self.chars.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(is_end).unwrap_or(rest.len());
        if rest.get(length).is_some_and(|c| *c != '`') {
            self.at += length;
        }
        match (self.peek(0), self.peek(1)) {
            (Some('\r'), Some('\n')) | (Some('\n'), Some('\r')) => self.at += 2,
            (Some('\r' | '\n'), _) => self.at += 1,
            _ => {}
        }
    }

    /// Reads `(…)`, where only ')' and '\' need a backslash.
    fn address(&mut self) -> Result<String, Invalid> {
        self.at += 1;
        let begin = self.at;
        let mut address = String::new();
        while let Some(c) = self.peek(0) {
            if let Some(escaped) = self.escaped() {
                address.push(escaped);
                self.at += 2;
                continue;
            }
            self.at += 1;
            if c == ')' {
                return Ok(address);
            }
            address.push(c);
        }
        Err(Invalid { offset: begin, why: "an address begins here and its ')' is missing" })
    }

    fn emoji_address(&mut self) -> Result<(), Invalid> {
        let offset = self.at;
        if !self.next_is(0, '(') {
            return Err(Invalid { offset, why: "a custom emoji must be followed by (tg://emoji?id=…)" });
        }
        let address = self.address()?;
        match is_emoji(&address) || is_time(&address) {
            true => Ok(()),
            false => Err(Invalid { offset, why: "this must be (tg://emoji?id=…) or (tg://time?unix=…)" }),
        }
    }

    fn finish(mut self) -> Result<Visible, Invalid> {
        if self.in_quote {
            if self.open.last() == Some(&(Entity::Spoiler, self.chars.len().saturating_sub(2))) {
                self.open.pop();
            }
            self.end_quote()?;
        }
        match self.open.last() {
            Some((entity, offset)) => Err(Invalid { offset: *offset, why: entity.unclosed() }),
            None => Ok(self.visible),
        }
    }
}

fn is_emoji(address: &str) -> bool {
    let id = parameters(address, "emoji").find(|(key, _)| *key == "id");
    id.is_some_and(|(_, value)| is_emoji_id(value))
}

pub(super) fn is_emoji_id(value: &str) -> bool {
    value.parse().is_ok_and(|id: i64| id != 0 && id.to_string() == value)
}

fn is_time(address: &str) -> bool {
    let is_unix = |value: &str| value.parse().is_ok_and(|unix: i32| unix > 0 && unix.to_string() == value);
    let all = |key: &'static str| parameters(address, "time").filter(move |(k, _)| *k == key).map(|(_, value)| value);
    let format = all("format").last().unwrap_or_default();
    is_date_format(format) && all("unix").next().is_some() && all("unix").all(is_unix)
}

pub(super) fn is_date_format(value: &str) -> bool {
    matches!(value, "r" | "R") || value.chars().all(|c| "tTdDwW".contains(c))
}

/// Returns the query parameters of `tg://host?…`, in every spelling that Telegram accepts. The
/// query is empty if `address` is another address.
fn parameters<'a>(address: &'a str, host: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let query = strip_prefix_in_any_case(address, "tg:")
        .map(|rest| rest.strip_prefix("//").unwrap_or(rest))
        .and_then(|rest| strip_prefix_in_any_case(rest, host))
        .map(|rest| rest.strip_prefix('/').unwrap_or(rest))
        .and_then(|rest| rest.strip_prefix('?'))
        .map(|query| query.split('#').next().unwrap_or_default());
    query.unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn strip_prefix_in_any_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> (usize, &'static str) {
        let invalid = check(text).expect_err(text);
        (invalid.offset, invalid.why)
    }

    #[test]
    fn markdown_that_telegram_accepts_is_valid() {
        let cases = [
            ("", 0),
            ("plain text, 1 < 2 & \"x\" $ % ^ : ; / ? @", 39),
            ("olá, ação ➡️", 12),
            ("👍🏽", 4),
            ("*bold \\*text*", 10),
            ("_italic \\*text_", 12),
            ("__underline__ ~strike~ ||spoiler||", 24),
            ("*bold _italic bold ~italic bold strike ||spoiler||~ __underline italic bold___ bold*", 70),
            ("[inline URL](http://www.example.com/a_(b\\)?x=1#-.!)", 10),
            ("[mention](tg://user?id=123456789)", 7),
            ("[no address]", 10),
            ("[]()", 0),
            ("![👍](tg://emoji?id=5368324170671202286)", 2),
            ("![👍](TG://EMoJI/?test=1231&id=25#id=32)a", 3),
            ("![👍](tg://emoji?id\\=25)", 2),
            ("![22:45](tg://time?unix=1647531900&format=wDT)", 5),
            ("![22:45](tg://time?unix=1&unix=2)", 5),
            ("`inline _*[ code`", 15),
            ("`a\\`b\\\\`", 4),
            ("```\npre #+-=|{}.!\n```", 14),
            ("```python\nx = 1\n```", 6),
            ("```rust fn```", 3),
            ("``````", 0),
            ("```a````b`", 2),
            ("```\r\na```", 1),
            ("```\n\ra```", 1),
            ("```python\r\n\na```", 2),
            ("🏟 🏟`🏟 🏟```", 10),
            ("____", 0),
            ("🏟 🏟_🏟 __🏟___", 10),
            ("🏟 🏟__🏟 _🏟_\\___", 11),
            ("\\\\\\a\\b\\➡️\\", 7),
            (">quote\n>more\nafter", 16),
            (">first\n**>expandable\n>more||", 21),
            (">a||\r\nb", 4),
            (">*a\n>b*", 3),
            (">a\n*b\nc*", 5),
            ("*a\nb*", 3),
            ("\\\n>a", 2),
            (">||", 0),
            ("\r>a", 2),
            ("*a\n>b\n>c\nd*", 7),
            (">`b\n>ld\nld`\n>x", 10),
            ("> \\>\n \\> \n>", 7),
            (">**\n>2", 2),
            ("*>abcd\n*", 5),
        ];
        for (text, units) in cases {
            assert_eq!(visible(text).map(|visible| visible.units), Ok(units), "{text:?}");
        }
    }

    #[test]
    fn a_reserved_character_is_valid_only_if_it_is_escaped() {
        for c in "]()>#+-=|{}.!".chars() {
            assert_eq!(reason(&format!("é{c}")), (1, MUST_BE_ESCAPED), "{c}");
            assert_eq!(check(&format!("é\\{c}")), Ok(()), "{c}");
        }
        for c in "_*[~`".chars() {
            assert_eq!(reason(&format!("é{c}")).0, 1, "{c}");
            assert_eq!(check(&format!("é\\{c}")), Ok(()), "{c}");
        }
        let free = (1..=126u8).map(char::from).filter(|c| !RESERVED.contains(*c));
        for c in free {
            assert_eq!(check(&c.to_string()), Ok(()), "{c:?}");
        }
    }

    #[test]
    fn markdown_that_telegram_refuses_is_refused_at_the_position_of_the_error() {
        let cases = [
            ("🏟 🏟_abacaba", 3, Entity::Italic.unclosed()),
            ("🏟 🏟_abac * asd ", 9, Entity::Bold.unclosed()),
            ("🏟 🏟_abac * asd _", 15, Entity::Italic.unclosed()),
            ("🏟 🏟`", 3, Entity::Code.unclosed()),
            ("🏟 🏟```a ", 3, Entity::Pre.unclosed()),
            ("🏟 🏟```🏟 🏟`", 9, Entity::Code.unclosed()),
            ("🏟 🏟```🏟 🏟\\`", 3, Entity::Pre.unclosed()),
            ("🏟 🏟__🏟 🏟_", 8, Entity::Italic.unclosed()),
            ("🏟 🏟_🏟 🏟__", 7, Entity::Underline.unclosed()),
            ("🏟 🏟__🏟 _🏟___", 11, Entity::Italic.unclosed()),
            ("||test\\|", 0, Entity::Spoiler.unclosed()),
            ("*a _b* c_", 8, Entity::Italic.unclosed()),
            ("[a", 0, Entity::Link.unclosed()),
            ("[a\\]", 0, Entity::Link.unclosed()),
            ("[a](b\\)", 4, "an address begins here and its ')' is missing"),
            ("![👍", 0, Entity::Emoji.unclosed()),
            ("![👍]", 4, "a custom emoji must be followed by (tg://emoji?id=…)"),
            ("![👍](tg://emoji?id=025)", 4, "this must be (tg://emoji?id=…) or (tg://time?unix=…)"),
            ("![👍](tg://emojis?id=25)", 4, "this must be (tg://emoji?id=…) or (tg://time?unix=…)"),
            ("![👍](tg://time?date=25)", 4, "this must be (tg://emoji?id=…) or (tg://time?unix=…)"),
            ("![👍](tg://time?unix=0)", 4, "this must be (tg://emoji?id=…) or (tg://time?unix=…)"),
            ("![👍](tg://time?unix=-1)", 4, "this must be (tg://emoji?id=…) or (tg://time?unix=…)"),
            ("![👍](tg://time?unix=025)", 4, "this must be (tg://emoji?id=…) or (tg://time?unix=…)"),
            ("![👍](tg://time?unix=25&unix=x)", 4, "this must be (tg://emoji?id=…) or (tg://time?unix=…)"),
            ("![👍](é)", 4, "this must be (tg://emoji?id=…) or (tg://time?unix=…)"),
            ("a >b", 2, MUST_BE_ESCAPED),
            ("\\a>b", 2, MUST_BE_ESCAPED),
            (">\n*a*>2", 5, MUST_BE_ESCAPED),
            (">*b\n>ld\nld*", 1, Entity::Bold.unclosed()),
            ("*>abcd*", 6, Entity::Bold.unclosed()),
            (">asd\n>q||e||w||\n||asdad", 16, Entity::Spoiler.unclosed()),
            (">asd\n>q||ew\n||asdad", 7, Entity::Spoiler.unclosed()),
            (">asd\n>q||e||w__\n||asdad", 13, Entity::Underline.unclosed()),
            ("Total: R$ 10.50", 12, MUST_BE_ESCAPED),
            ("a|b", 1, MUST_BE_ESCAPED),
            ("||a|b", 3, MUST_BE_ESCAPED),
        ];
        for (text, offset, why) in cases {
            assert_eq!(reason(text), (offset, why), "{text:?}");
        }
    }

    #[test]
    fn markup_without_visible_text_is_valid_and_blank() {
        for text in ["", " \n", "**", "``", "> ", "\\\n"] {
            assert!(visible(text).expect(text).blank, "{text:?}");
        }
        assert!(!visible("*a*").expect("valid").blank);
    }

    #[test]
    fn many_repeated_marks_are_judged_like_a_few() {
        for unit in ["a", "*", "_", "`", "```", "```a", "[", "[](", ">\n", "||", "![", "\\", "😀", ">`\n", "```a`"] {
            // An even number of marks closes every entity that it opens, in a short text as in a
            // long one.
            let (short, long) = (check(&unit.repeat(120)), check(&unit.repeat(24_000)));
            assert_eq!(short.is_ok(), long.is_ok(), "{unit:?}");
        }
    }

    #[test]
    fn random_text_never_panics_and_escaped_text_is_always_valid() {
        let alphabet: Vec<char> = "_*[]()~`>#+-=|{}.!\\\n\r\0 aé👍\u{200d}tg:/emoji?id=1&".chars().collect();
        let mut seed: u64 = 42;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        for _ in 0..50_000 {
            let text: String = (0..next() % 40).map(|_| alphabet[next() % alphabet.len()]).collect();
            let length = text.chars().count();
            if let Err(invalid) = check(&text) {
                assert!(invalid.offset <= length, "{text:?}");
            }
            let is_escaped = |c: char| c == '\\' || RESERVED.contains(c);
            let escape = |c: char| if is_escaped(c) { vec!['\\', c] } else { vec![c] };
            let escaped: String = text.chars().flat_map(escape).collect();
            assert_eq!(visible(&escaped).map(|v| v.units), Ok(text.encode_utf16().count()), "{text:?}");
        }
    }
}
