//! Normalizes text, so that names that look the same are the same.

use icu_normalizer::ComposingNormalizerBorrowed;

/// Returns the text in Unicode's composed form (NFC). Some systems write `é` as one character and
/// others as `e` followed by an accent.
pub fn composed(text: &str) -> String {
    ComposingNormalizerBorrowed::new_nfc().normalize(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accent_is_part_of_its_letter() {
        assert_eq!(composed("relato\u{301}rio.csv"), "relatório.csv");
        assert_eq!(composed("relatório.csv"), "relatório.csv");
        assert_eq!(composed("ﬁ ①"), "ﬁ ①", "what only looks alike stays");
    }
}
