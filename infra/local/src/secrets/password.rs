//! Generated values of Secrets Manager.

use serde_json::Value;

use crate::model::Generated;

const LETTERS_AND_DIGITS: [&str; 3] = ["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"];
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

pub(super) fn value(how: &Generated) -> String {
    let password = password(how.length, how.punctuation);
    match how.into.clone() {
        Some((mut fields, key)) => {
            fields.insert(key, Value::String(password));
            Value::Object(fields).to_string()
        }
        None => password,
    }
}

/// Returns a random password with at least one character of each kind.
fn password(length: usize, punctuation: bool) -> String {
    let kinds: Vec<_> = LETTERS_AND_DIGITS.into_iter().chain(punctuation.then_some(PUNCTUATION)).collect();
    let all = kinds.concat();
    let one_of_each = kinds.iter().map(|kind| one_of(kind));
    let mut letters: Vec<_> = one_of_each.chain(std::iter::repeat_with(|| one_of(&all))).take(length).collect();
    fastrand::shuffle(&mut letters);
    letters.into_iter().map(char::from).collect()
}

fn one_of(letters: &str) -> u8 {
    letters.as_bytes()[fastrand::usize(..letters.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_has_its_length_and_a_character_of_each_kind() {
        for length in [4, 32, 64] {
            let with = password(length, true);
            assert!(with.len() == length && with.contains(|letter: char| letter.is_ascii_punctuation()), "{with}");
            let without = password(length, false);
            assert!(without.len() == length && without.chars().all(|letter| letter.is_ascii_alphanumeric()));
            for kind in LETTERS_AND_DIGITS {
                assert!(without.contains(|letter| kind.contains(letter)), "{without}");
            }
        }
        assert_ne!(password(32, false), password(32, false));
    }
}
