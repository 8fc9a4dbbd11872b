//! The canonical form of a recipient's address. Entries, suppressions and tokens are keyed by it,
//! so two spellings of one address must result in the same form. Dots and +tags stay: only the
//! provider knows which mailbox they lead to.

use url::Host;

use crate::channels::{Channel, normalize_to};
use crate::codes::RowProblem;
use crate::unicode::visible;

const LONGEST: usize = 254;

/// Normalizes an address as spreadsheets and people write it. The error says why it is not valid.
pub fn normalize_email(text: &str) -> Result<String, RowProblem> {
    let text = visible(text);
    let text = text.trim_matches(|c: char| c.is_whitespace() || is_quote(c));
    if text.is_empty() {
        return Err(RowProblem::EmailMissing);
    }
    let (local, domain) = text.split_once('@').ok_or(RowProblem::EmailMalformed)?;
    if domain.contains('@') {
        return Err(RowProblem::EmailMalformed);
    }
    // The dot is the DNS root, or the end of a sentence.
    let domain = ascii_domain(domain.strip_suffix('.').unwrap_or(domain))?;
    // The rules for sending decide. They refuse with a sentence, not with a code, so check again to
    // find out which part they refuse.
    normalize_to(Channel::Email, &format!("{local}@{domain}")).map_err(|_| {
        if normalize_to(Channel::Email, &format!("{local}@example.com")).is_err() {
            RowProblem::EmailLocalPart
        } else if local.len() + 1 + domain.len() > LONGEST {
            RowProblem::EmailTooLong
        } else {
            RowProblem::EmailDomain
        }
    })
}

/// Returns the domain in the form that DNS uses.
fn ascii_domain(domain: &str) -> Result<String, RowProblem> {
    if domain.is_ascii() {
        return Ok(domain.to_owned());
    }
    // A URL's host may contain %-escapes; an address may not.
    match Host::parse(domain) {
        Ok(Host::Domain(domain_in_ascii)) if !domain.contains('%') => Ok(domain_in_ascii),
        _ => Err(RowProblem::EmailDomain),
    }
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | '“' | '”' | '„' | '‘' | '’' | '«' | '»')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_an_address_normalize_to_one_form() {
        let cases = [
            ("User@Example.com", "user@example.com"),
            ("\u{feff}a@b.co", "a@b.co"),
            (" \t\u{a0}a@b.co\r\n", "a@b.co"),
            ("\"a@b.co\"", "a@b.co"),
            ("“a@b.co”", "a@b.co"),
            ("'a@b.co", "a@b.co"),
            ("a\u{200b}@b\u{ad}.co\u{200d}", "a@b.co"),
            ("a@b.co.", "a@b.co"),
            ("Ana.Maria+promo@GMail.com", "ana.maria+promo@gmail.com"),
            ("o'neil@b.co", "o'neil@b.co"),
            ("a@Bücher.example", "a@xn--bcher-kva.example"),
            ("a@XN--BCHER-KVA.example", "a@xn--bcher-kva.example"),
            ("a@Bücher。example", "a@xn--bcher-kva.example"),
        ];
        for (text, form) in cases {
            assert_eq!(normalize_email(text).as_deref(), Ok(form), "{text:?}");
        }
    }

    #[test]
    fn the_error_for_an_invalid_address_names_its_invalid_part() {
        use RowProblem::{EmailDomain, EmailLocalPart, EmailMalformed, EmailMissing, EmailTooLong};
        let long_local = format!("{}@b.co", "a".repeat(65));
        let long = format!("a@{}com", "bcd.".repeat(70));
        let cases = [
            ("", EmailMissing),
            (" \u{feff}\"\" ", EmailMissing),
            ("a", EmailMalformed),
            ("a@b@c.co", EmailMalformed),
            ("a@b.co, c@d.co", EmailMalformed),
            ("@b.co", EmailLocalPart),
            ("a b@c.co", EmailLocalPart),
            ("ü@b.co", EmailLocalPart),
            ("Ana <a@b.co>", EmailLocalPart),
            ("a\r\nbcc:x@b.co", EmailLocalPart),
            ("a\0@b.co", EmailLocalPart),
            (long_local.as_str(), EmailLocalPart),
            ("a@", EmailDomain),
            ("a@b", EmailDomain),
            ("a@b..co", EmailDomain),
            ("a@b.co..", EmailDomain),
            ("a@b_c.co", EmailDomain),
            ("a@%C3%BC.co", EmailDomain),
            ("a@ü%2e.co", EmailDomain),
            ("a@ü", EmailDomain),
            ("a@１.２.３.４", EmailDomain),
            (long.as_str(), EmailTooLong),
        ];
        for (text, problem) in cases {
            assert_eq!(normalize_email(text), Err(problem), "{text:?}");
        }
    }

    #[test]
    fn random_text_never_panics_and_normalizing_twice_changes_nothing() {
        let alphabet: Vec<char> = "aZ09@@..-+_ \"'\r\n\0éß😀\u{feff}\u{200b}。％%x".chars().collect();
        let mut dice = fastrand::Rng::with_seed(7);
        for _ in 0..30_000 {
            let text: String = (0..dice.usize(..16)).map(|_| alphabet[dice.usize(..alphabet.len())]).collect();
            if let Ok(form) = normalize_email(&text) {
                assert_eq!(normalize_email(&form), Ok(form.clone()), "{text:?}");
                assert_eq!(normalize_to(Channel::Email, &form), Ok(form.clone()), "the sender's form is the same");
            }
        }
    }
}
