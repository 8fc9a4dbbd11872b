//! The stored form of texts, and the detection of newsletters by their text.

/// Returns a text in its canonical form. Lines end with `\n` and have no trailing spaces, and the
/// text has no leading or trailing whitespace. Control characters and byte order marks are removed:
/// they are invisible and break readers.
pub fn clean_text(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let seen: String =
        text.chars().filter(|c| matches!(c, '\n' | '\t') || !(c.is_control() || *c == '\u{feff}')).collect();
    let lines: Vec<_> = seen.lines().map(str::trim_end).collect();
    lines.join("\n").trim().to_owned()
}

/// Returns a text as one line, with single spaces.
pub fn one_line(text: &str) -> String {
    let seen: String = text.chars().filter(|c| c.is_whitespace() || !c.is_control()).collect();
    let words: Vec<_> = seen.split_whitespace().collect();
    words.join(" ")
}

/// Phrases that occur only in a newsletter's footer, in lower case.
const MARKS: &[&str] = &[
    "view in browser",
    "view in your browser",
    "view this email in your browser",
    "view this email online",
    "you are receiving this email because",
    "you're receiving this email because",
    "you received this email because",
    "manage your preferences",
    "manage your subscription",
    "manage preferences",
    "update your preferences",
    "email preferences",
    "click here to unsubscribe",
    "unsubscribe here",
    "unsubscribe from this list",
    "unsubscribe from these emails",
    "ver no navegador",
    "ver este e-mail no navegador",
    "você está recebendo este e-mail porque",
    "cancelar inscrição",
    "cancelar a inscrição",
    "cancele sua inscrição",
    "descadastre-se",
    "clique aqui para se descadastrar",
];

/// Returns whether a text has the marks of a newsletter. Quoted lines do not count: a reply that
/// quotes a newsletter is not a newsletter.
pub fn looks_like_newsletter(text: &str) -> bool {
    text.lines().map(str::trim_start).filter(|line| !line.starts_with('>')).any(|line| {
        let line = line.to_lowercase();
        MARKS.iter().any(|mark| line.contains(mark)) || offers_to_unsubscribe(&line)
    })
}

/// Returns whether a line offers to unsubscribe. A person may write the word, too, so the line must
/// begin with the word or also have a URL.
fn offers_to_unsubscribe(line: &str) -> bool {
    let begins = line.trim_start_matches(|c: char| !c.is_alphanumeric()).starts_with("unsubscribe");
    begins || (line.contains("unsubscribe") && (line.contains("http://") || line.contains("https://")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_a_text_normalize_to_one_form() {
        let cases = [
            ("a\r\nb\rc", "a\nb\nc"),
            ("\u{feff} a \t\n\n b  ", "a\n\n b"),
            ("a\u{0}b\u{7}", "ab"),
            ("\u{0} \u{1b}", ""),
            ("👩\u{200d}💻", "👩\u{200d}💻"),
        ];
        for (text, clean) in cases {
            assert_eq!(clean_text(text), clean, "{text:?}");
            assert_eq!(clean_text(clean), clean, "{clean:?} is already clean");
        }
        assert_eq!(one_line(" a\r\n\tb\u{0}  c "), "a b c");
    }

    #[test]
    fn a_clean_text_is_never_longer_and_cleaning_twice_changes_nothing() {
        let parts = ["\r", "\n", "\t", " ", "a", "\u{85}", "\u{2028}", "\u{feff}", "\u{0}", "é", "\u{b}"];
        let mut dice = fastrand::Rng::with_seed(13);
        for _ in 0..20_000 {
            let text: String = (0..dice.usize(0..12)).map(|_| parts[dice.usize(0..parts.len())]).collect();
            let clean = clean_text(&text);
            assert!(clean.len() <= text.len(), "{text:?}");
            assert_eq!(clean_text(&clean), clean, "{text:?}");
            assert_eq!(one_line(&one_line(&text)), one_line(&text), "{text:?}");
        }
    }

    #[test]
    fn a_newsletter_is_recognized_by_its_footer() {
        for text in [
            "News\n\nUnsubscribe: https://example.com/u/1",
            "News\n\n[Unsubscribe](https://example.com/u/1)",
            "To unsubscribe go to https://example.com/u/1",
            "View this email in your browser\nNews",
            "…\nVer no navegador",
            "x | Manage your preferences | y",
        ] {
            assert!(looks_like_newsletter(text), "{text}");
        }
        for text in [
            "Lunch?",
            "How do I unsubscribe from that thing?",
            "Look at this:\n> Unsubscribe: https://example.com/u/1\n> View in browser",
            "",
        ] {
            assert!(!looks_like_newsletter(text), "{text}");
        }
    }
}
