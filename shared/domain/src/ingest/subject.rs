//! The base of a subject: the subject without what mail programs and lists put in front of it.
//!
//! The keys of threads and newsletters are derived from it, and those keys are stored. This is
//! version 1 and must not change. Prefixes of other languages (`AW:`, `RES:`) would be a version 2,
//! with policies of its own.

/// Prefixes that mail programs put in front of a subject, each followed by a colon.
const PREFIXES: [&str; 3] = ["re", "fwd", "fw"];

/// Returns the subject in lower case, with single spaces, without leading `re:`, `fw:`, `fwd:` and
/// `[tags]`. The result may be empty.
pub fn subject_base(subject: &str) -> String {
    let words: Vec<_> = subject.split_whitespace().collect();
    let text = words.join(" ").to_lowercase();
    let mut rest = text.as_str();
    while let Some(next) = without_tag(rest).or_else(|| without_prefix(rest)) {
        rest = next.trim_start();
    }
    rest.to_owned()
}

fn without_tag(text: &str) -> Option<&str> {
    let (_, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some(rest)
}

fn without_prefix(text: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)?.trim_start().strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_tags_are_removed_in_any_order_and_number() {
        let cases = [
            ("Re: Re : RE:[a][b] Fwd:x", "x"),
            ("[unclosed tag", "[unclosed tag"),
            ("tag [at the] end", "tag [at the] end"),
            ("Re", "re"),
            ("re: [only] fw:", ""),
            ("Fwd\u{a0}: no-break\u{2003}space", "no-break space"),
            ("folded\r\n subject", "folded subject"),
            ("İstanbul", "i\u{307}stanbul"),
            ("ΟΔΟΣ", "οδος"),
        ];
        for (subject, base) in cases {
            assert_eq!(subject_base(subject), base, "{subject}");
        }
    }

    #[test]
    fn prefixes_of_other_languages_are_kept() {
        for subject in ["aw: x", "res: x", "re[2]: x", "regarding: x", "(fwd) x"] {
            assert_eq!(subject_base(subject), subject);
        }
    }

    #[test]
    fn normalizing_a_subject_twice_changes_nothing() {
        let parts = [
            "Re:", "FW :", "fwd:", "[list]", "[", "]", " ", "\t", "\r\n ", "é", "İ", "Σ", "K", "ﬀ", "hello", ":", "re",
            "\u{a0}", "\u{200b}", "😀", "(fwd)",
        ];
        let mut dice = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let subject: String = (0..dice.usize(0..10)).map(|_| parts[dice.usize(0..parts.len())]).collect();
            let base = subject_base(&subject);
            assert_eq!(subject_base(&base), base, "{subject:?}");
        }
    }
}
