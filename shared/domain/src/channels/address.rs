//! The channels, and the normal form of an address in each. The keys of suppressions and rate
//! limits contain the normal form, so two spellings of one address must normalize to the same text.

use crate::codes::codes;

const LONGEST_EMAIL: usize = 254;
const LONGEST_LOCAL_PART: usize = 64;
const LONGEST_LABEL: usize = 63;
const LONGEST_GROUP_ID: usize = 40;
const PERSON_JID: &str = "@s.whatsapp.net";
const GROUP_JID: &str = "@g.us";
/// The suffix of a user whose phone number WhatsApp hides.
const HIDDEN_JID: &str = "@lid";

codes! {
    Channel {
        Email = "email",
        Telegram = "telegram",
        Whatsapp = "whatsapp",
    }
}

/// Normalizes an address. The system stores and compares only the normal form. The error text is
/// for the caller and never contains the value.
pub fn normalize_to(channel: Channel, text: &str) -> Result<String, &'static str> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    match channel {
        Channel::Email => email(text),
        Channel::Telegram => telegram(text),
        Channel::Whatsapp => whatsapp(text),
    }
}

/// Returns whether a normalized address belongs to a group. A Telegram @username does not show
/// whether it names a group, so the result for it is `false`.
pub fn is_group(channel: Channel, to: &str) -> bool {
    match channel {
        Channel::Email => false,
        Channel::Telegram => to.starts_with('-'),
        Channel::Whatsapp => to.ends_with(GROUP_JID),
    }
}

/// Returns the other form of a Brazilian mobile number, with or without the ninth digit. WhatsApp
/// knows many numbers by the eight digits that they had before the ninth digit was added. `None` if
/// the number has no other form.
pub fn brazilian_twin(to: &str) -> Option<String> {
    let local = to.strip_prefix("55").filter(|_| is_digits(to))?;
    let (area, number) = local.split_at_checked(2)?;
    match (number.len(), number.strip_prefix('9')) {
        (9, Some(short)) => Some(format!("55{area}{short}")),
        (8, _) => Some(format!("55{area}9{number}")),
        _ => None,
    }
}

/// Keeps dots and +tags: the mail provider decides which mailbox they lead to.
fn email(text: &str) -> Result<String, &'static str> {
    let Some((local, domain)) = text.split_once('@') else { return Err("must have the form name@domain") };
    if domain.contains('@') {
        return Err("must have exactly one @");
    }
    if local.is_empty() || local.len() > LONGEST_LOCAL_PART {
        return Err("must have 1 to 64 characters before the @");
    }
    if local.starts_with('.') || local.ends_with('.') || local.contains("..") {
        return Err("must not have a dot at the ends of the part before the @, nor two in a row");
    }
    if !local.bytes().all(is_local_part) {
        return Err("has a character before the @ that is not allowed");
    }
    if text.len() > LONGEST_EMAIL {
        return Err("must not be longer than 254 characters");
    }
    if !domain.is_ascii() {
        return Err("must have its domain in ASCII (punycode)");
    }
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    if !domain.contains('.') || !domain.split('.').all(is_label) || domain.rsplit('.').next().is_some_and(is_number) {
        return Err("must have a domain such as example.com after the @");
    }
    Ok(text.to_ascii_lowercase())
}

/// Returns whether a byte is a character of an atom, or a dot. Other characters need quotes, and a
/// comma would start a second recipient.
fn is_local_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".!#$%&'*+/=?^_`{|}~-".contains(&byte)
}

fn is_label(label: &str) -> bool {
    (1..=LONGEST_LABEL).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Usernames are case-insensitive, so they are stored in lower case.
fn telegram(text: &str) -> Result<String, &'static str> {
    if let Some(name) = text.strip_prefix('@') {
        let shaped = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && name.starts_with(|c: char| c.is_ascii_alphabetic());
        return match shaped && (5..=32).contains(&name.len()) {
            true => Ok(text.to_ascii_lowercase()),
            false => Err("must be @ and 5 to 32 letters, digits and underscores that begin with a letter"),
        };
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("must be a chat id or an @username");
    }
    match text.parse::<i64>() {
        Ok(0) => Err("must not be zero"),
        Ok(id) => Ok(id.to_string()),
        Err(_) => Err("must be a chat id of at most 64 bits"),
    }
}

/// Normalizes a person's number to its digits, in any notation. A group, or a user without a
/// number, keeps the JID.
fn whatsapp(text: &str) -> Result<String, &'static str> {
    let text = text.to_ascii_lowercase();
    if let Some(id) = text.strip_suffix(GROUP_JID) {
        let shaped = id.len() <= LONGEST_GROUP_ID && id.split('-').count() <= 2 && id.split('-').all(is_digits);
        return if shaped { Ok(text) } else { Err("must have only digits and one dash before @g.us") };
    }
    if let Some(id) = text.strip_suffix(HIDDEN_JID) {
        let shaped = id.len() <= LONGEST_GROUP_ID && is_digits(id);
        return if shaped { Ok(text) } else { Err("must have only digits before @lid") };
    }
    let digits: String = match text.strip_suffix(PERSON_JID) {
        Some(number) => number.to_owned(),
        None => {
            let number = text.strip_prefix('+').unwrap_or(&text);
            number.chars().filter(|c| !matches!(c, ' ' | '-' | '(' | ')')).collect()
        }
    };
    match is_digits(&digits) && (8..=15).contains(&digits.len()) {
        true => Ok(digits),
        false => Err("must be a phone number of 8 to 15 digits with its country code, or a WhatsApp JID"),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_brazilian_mobile_number_has_a_form_with_and_without_the_ninth_digit() {
        assert_eq!(brazilian_twin("5511912345678").as_deref(), Some("551112345678"));
        assert_eq!(brazilian_twin("551112345678").as_deref(), Some("5511912345678"));
        for to in ["351912345678", "5511812345678", "55119", "55", "120363@g.us", "5511@lid"] {
            assert_eq!(brazilian_twin(to), None, "{to}");
        }
    }

    #[test]
    fn a_user_without_a_phone_number_is_addressed_by_jid() {
        assert_eq!(normalize_to(Channel::Whatsapp, "123456@LID"), Ok("123456@lid".to_owned()));
        assert!(normalize_to(Channel::Whatsapp, "12a@lid").is_err());
    }

    #[test]
    fn a_channel_has_the_same_name_in_text_and_json() {
        for channel in Channel::ALL {
            assert_eq!(Channel::parse(channel.as_str()), Some(*channel));
            assert_eq!(serde_json::to_value(channel).expect("json"), channel.as_str());
        }
        for text in ["", "Email", "sms", " email"] {
            assert_eq!(Channel::parse(text), None, "{text}");
        }
    }

    /// Returns an address of `length` bytes. Each of its parts is within its own limit.
    fn email_of_length(length: usize) -> String {
        let beginning = format!("{}@{}.{}.", "a".repeat(64), "b".repeat(63), "c".repeat(63));
        format!("{beginning}{}", "d".repeat(length - beginning.len()))
    }

    #[test]
    fn all_spellings_of_an_address_normalize_to_one_form() {
        let long_local = format!("{}@example.com", "a".repeat(64));
        let long_email = email_of_length(254);
        let long_group = format!("{}@g.us", "1".repeat(40));
        let long_hidden = format!("{}@lid", "1".repeat(40));
        let cases = [
            (Channel::Email, " Ana.Maria+x@Example.COM\r\n", "ana.maria+x@example.com"),
            (Channel::Email, "\u{feff}a@b.co", "a@b.co"),
            (Channel::Email, "o'neil@sub.xn--bcher-kva.example", "o'neil@sub.xn--bcher-kva.example"),
            (Channel::Email, "a@example.xn--90a3ac", "a@example.xn--90a3ac"),
            (Channel::Email, long_local.as_str(), long_local.as_str()),
            (Channel::Email, long_email.as_str(), long_email.as_str()),
            (Channel::Telegram, " 123456789 ", "123456789"),
            (Channel::Telegram, "007", "7"),
            (Channel::Telegram, "-1001234567890", "-1001234567890"),
            (Channel::Telegram, "-9223372036854775808", "-9223372036854775808"),
            (Channel::Telegram, "@Some_User1", "@some_user1"),
            (Channel::Whatsapp, "+55 (11) 91234-5678", "5511912345678"),
            (Channel::Whatsapp, "5511912345678@S.WhatsApp.net", "5511912345678"),
            (Channel::Whatsapp, "120363025246125486@g.us", "120363025246125486@g.us"),
            (Channel::Whatsapp, "5511912345678-1600000000@g.us", "5511912345678-1600000000@g.us"),
            (Channel::Whatsapp, long_group.as_str(), long_group.as_str()),
            (Channel::Whatsapp, long_hidden.as_str(), long_hidden.as_str()),
        ];
        for (channel, text, form) in cases {
            let normal = normalize_to(channel, text);
            assert_eq!(normal.as_deref(), Ok(form), "{text}");
            assert_eq!(normalize_to(channel, form).as_deref(), Ok(form), "{form} is already normalized");
        }
    }

    #[test]
    fn a_malformed_address_is_refused() {
        let long_local = format!("{}@example.com", "a".repeat(65));
        let long_label = format!("a@{}.com", "b".repeat(64));
        let long_email = email_of_length(255);
        let long_group = format!("{}@g.us", "1".repeat(41));
        let long_hidden = format!("{}@lid", "1".repeat(41));
        let emails = [
            "",
            "@",
            "a",
            "a@",
            "@b.co",
            "a@b",
            "a@@b.co",
            "a@b@c.co",
            "a b@c.co",
            "a@b .co",
            "a@b..co",
            "a@.co",
            "a@b.co.",
            "a@-b.co",
            "a@b-.co",
            "a@b_c.co",
            "a@192.0.2.1",
            ".a@b.co",
            "a.@b.co",
            "a..c@b.co",
            "a@bücher.example",
            "ü@b.co",
            "a,c@b.co",
            "a\r\nbcc:x@b.co",
            "a\0@b.co",
            "<a@b.co>",
            "\"a\"@b.co",
            "a@b.co\nx",
            "😀@😀.😀",
            &long_local,
            &long_label,
            &long_email,
        ];
        let telegrams = [
            "",
            "0",
            "-0",
            "+5",
            "-",
            "--5",
            "1.5",
            "9223372036854775808",
            "12 34",
            "@",
            "@abcd",
            "@1abcd",
            "@_abcd",
            "@abc-def",
            "@a2345678901234567890123456789012x",
            "abcdef",
            "@áéíóú",
            "٣٤٥",
        ];
        let whatsapps = [
            "",
            "+",
            "1234567",
            "1234567890123456",
            "++5511912345678",
            "55x11912345678",
            "abc@s.whatsapp.net",
            "+5511912345678@s.whatsapp.net",
            "@s.whatsapp.net",
            "@g.us",
            "-@g.us",
            "1-@g.us",
            "1-2-3@g.us",
            "a@g.us",
            "5511912345678@c.us",
            "٥٥١١٩١٢٣٤٥٦٧٨",
            &long_group,
            &long_hidden,
        ];
        for (channel, texts) in [
            (Channel::Email, emails.as_slice()),
            (Channel::Telegram, telegrams.as_slice()),
            (Channel::Whatsapp, whatsapps.as_slice()),
        ] {
            for text in texts {
                assert!(normalize_to(channel, text).is_err(), "{channel} {text:?}");
            }
        }
    }

    #[test]
    fn a_group_is_recognized_by_its_address() {
        assert!(is_group(Channel::Telegram, "-100123"));
        assert!(is_group(Channel::Whatsapp, "1-2@g.us"));
        assert!(!is_group(Channel::Telegram, "100123"));
        assert!(!is_group(Channel::Telegram, "@some_group"));
        assert!(!is_group(Channel::Whatsapp, "5511912345678"));
        assert!(!is_group(Channel::Email, "-@g.us"));
    }

    #[test]
    fn random_text_never_panics_and_normalizing_twice_changes_nothing() {
        let alphabet: Vec<char> = "aZ09@.-+_ ()\r\n\0é😀\u{feff}gus<>".chars().collect();
        let mut seed: u64 = 7;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..(seed >> 40) % 24 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push(alphabet[(seed >> 33) as usize % alphabet.len()]);
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            for channel in Channel::ALL {
                if let Ok(form) = normalize_to(*channel, &text) {
                    assert_eq!(normalize_to(*channel, &form), Ok(form.clone()), "{text:?}");
                }
            }
        }
    }
}
