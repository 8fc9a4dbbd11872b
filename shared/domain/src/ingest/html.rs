//! The text of a mail that has only HTML.
//!
//! The same HTML always gives the same text. No key is derived from the text, but whether a mail is
//! a newsletter may depend on it.

use html5gum::emitters::default::DefaultEmitter;
use html5gum::{Token, Tokenizer};

/// Elements whose text is not shown to a reader.
const UNSEEN: [&str; 4] = ["script", "style", "template", "title"];
/// Elements that begin and end with a blank line.
const PARAGRAPHS: [&str; 13] = ["blockquote", "dl", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "ol", "p", "pre", "ul"];
/// Elements that begin and end with a line break.
const LINES: [&str; 17] = [
    "address", "article", "aside", "body", "br", "center", "dd", "div", "dt", "footer", "form", "header", "li", "main",
    "section", "table", "tr",
];
const CELLS: [&str; 2] = ["td", "th"];

/// Derives the text of an HTML document: the text that a reader sees, in lines, without the targets
/// of links.
pub fn text_of_html(html: &str) -> String {
    let mut emitter = DefaultEmitter::default();
    // Text that looks like a tag inside a script is not a tag.
    emitter.naively_switch_states(true);
    let mut text = Text::default();
    let mut unseen: Option<&str> = None;
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        match token {
            Token::EndTag(tag) => {
                let name = String::from_utf8_lossy(&tag.name);
                match unseen {
                    Some(open) if open == name => unseen = None,
                    Some(_) => {}
                    None => text.tag(&name),
                }
            }
            _ if unseen.is_some() => {}
            Token::StartTag(tag) => {
                let name = String::from_utf8_lossy(&tag.name);
                unseen = UNSEEN.into_iter().find(|unseen| *unseen == name).filter(|_| !tag.self_closing);
                text.tag(&name);
                if let Some(alt) = tag.attributes.get(b"alt".as_slice()).filter(|_| name == "img") {
                    text.say(&String::from_utf8_lossy(alt));
                }
            }
            Token::String(said) => text.say(&String::from_utf8_lossy(&said)),
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    text.written
}

/// A text under construction. Spaces and line ends are written together with the word that follows.
#[derive(Default)]
struct Text {
    written: String,
    has_space: bool,
    line_ends: usize,
}

impl Text {
    fn tag(&mut self, name: &str) {
        if PARAGRAPHS.contains(&name) {
            self.line_ends = 2;
        } else if LINES.contains(&name) {
            self.line_ends = self.line_ends.max(1);
        } else if CELLS.contains(&name) {
            self.has_space = true;
        }
    }

    fn say(&mut self, said: &str) {
        self.has_space |= said.starts_with(char::is_whitespace);
        for word in said.split_whitespace() {
            match (self.written.is_empty(), self.line_ends, self.has_space) {
                (true, ..) => {}
                (_, 0, true) => self.written.push(' '),
                (_, line_ends, _) => self.written.extend(std::iter::repeat_n('\n', line_ends)),
            }
            self.written.push_str(word);
            (self.line_ends, self.has_space) = (0, true);
        }
        let ends_in_a_word = !said.is_empty() && !said.ends_with(char::is_whitespace);
        if ends_in_a_word {
            self.has_space = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_html_is_what_a_reader_sees() {
        let cases = [
            ("<p>Hi &amp; bye</p>", "Hi & bye"),
            ("<p>one</p><p>two</p>", "one\n\ntwo"),
            ("a<br>b<br class=x>c", "a\nb\nc"),
            ("<div>a</div><div>b</div>", "a\nb"),
            ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", "a b\nc"),
            ("<ul><li>a</li><li>b</li></ul>c", "a\nb\n\nc"),
            ("<b>bo</b>ld, <i>it</i>alic", "bold, italic"),
            ("a\n  b&nbsp;c", "a b c"),
            ("<style type=\"text/css\">p > a {x: y}</style><script>if (a<b) {}</script>x", "x"),
            ("<html><head><title>No</title><meta charset=utf-8></head><body>Yes</body></html>", "Yes"),
            ("<head><title>No</title>never closed<body>Yes", "never closed\nYes"),
            ("<!-- no --><!doctype html>x", "x"),
            ("<img alt=\"A dog\" src=x><a href=\"https://a.example/\">link</a>", "A doglink"),
            ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
            ("&lt;b&gt;", "<b>"),
            ("<img src=x>", ""),
            ("", ""),
        ];
        for (html, text) in cases {
            assert_eq!(text_of_html(html), text, "{html}");
        }
    }

    #[test]
    fn random_html_never_panics_and_its_text_is_at_most_twice_as_long() {
        let parts = [
            "<", ">", "</", "p", "div", "<p>", "</p>", "<style>", "</style>", "<!--", "-->", "&amp;", "&nGt;", "é",
            " ", "\n",
        ];
        let mut dice = fastrand::Rng::with_seed(53);
        for _ in 0..20_000 {
            let html: String = (0..dice.usize(0..12)).map(|_| parts[dice.usize(0..parts.len())]).collect();
            assert!(text_of_html(&html).len() <= 2 * html.len(), "{html:?}");
        }
    }

    #[test]
    fn many_nested_tags_are_read_in_linear_time() {
        let html = "<div><a href=x>".repeat(12_000);
        assert_eq!(text_of_html(&html), "");
    }
}
