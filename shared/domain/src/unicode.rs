//! Normalizes names, so that two names that look the same are the same.

use icu_normalizer::ComposingNormalizerBorrowed;
use icu_properties::CodePointSetData;
use icu_properties::props::DefaultIgnorableCodePoint;

/// Returns the form in which names are compared: without invisible characters, and in Unicode's
/// composed form (NFC), because some systems write `é` as one character and others as `e` followed
/// by an accent. What people read keeps the name as it was given.
pub fn comparable(name: &str) -> String {
    ComposingNormalizerBorrowed::new_nfc().normalize(&visible(name)).into_owned()
}

/// Returns the text without its invisible characters.
pub fn visible(text: &str) -> String {
    text.chars().filter(|c| !is_invisible(*c)).collect()
}

/// Returns whether Unicode says that a character has no shape of its own: zero-width spaces and
/// joiners, soft hyphens, direction marks, byte order marks, variation selectors.
fn is_invisible(c: char) -> bool {
    CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combining_accents_are_composed_with_their_letters() {
        assert_eq!(comparable("relato\u{301}rio.csv"), "relatório.csv");
        assert_eq!(comparable("relatório.csv"), "relatório.csv");
        assert_eq!(comparable("ﬁ ①"), "ﬁ ①", "characters that only look alike are kept");
    }

    #[test]
    fn invisible_characters_do_not_change_a_name() {
        for invisible in [
            "\u{ad}", "\u{61c}", "\u{200b}", "\u{200c}", "\u{200d}", "\u{200e}", "\u{200f}", "\u{202a}", "\u{202e}",
            "\u{2060}", "\u{2066}", "\u{2069}", "\u{fe0f}", "\u{feff}",
        ] {
            assert_eq!(comparable(&format!("{invisible}rela{invisible}tório.csv")), "relatório.csv", "{invisible:?}");
            let apart = format!("relato{invisible}\u{301}rio.csv");
            assert_eq!(comparable(&apart), "relatório.csv", "{invisible:?}");
        }
        assert_eq!(comparable("a b\u{a0}c\td😀"), "a b\u{a0}c\td😀", "spaces and symbols are visible");
    }
}
