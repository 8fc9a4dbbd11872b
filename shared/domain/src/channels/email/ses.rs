//! SES v2 `SendEmail`: the tags of a message, the encoding of a mailbox, and the meaning of a
//! refusal.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::codes::{SendingHold, texts};
use crate::delivery;
use crate::delivery::{Outcome, ThrottleScope};

/// The tags that link an event to its message and attempt. SES allows letters, digits, dashes and
/// underscores in a tag.
pub const MESSAGE_TAG: &str = "message_id";
pub const ATTEMPT_TAG: &str = "attempt";

texts! {
    code {
        /// SES rejected the mail.
        MESSAGE_REJECTED = "message_rejected",
    }
}

/// The wait after SES reports that a quota is used up. The daily quota recovers gradually, so more
/// frequent retries do not help.
const QUOTA_WAIT_MS: i64 = 5 * 60 * 1_000;

/// A refusal of a mail by SES.
#[derive(Debug, Clone, Copy)]
pub struct SesRefusal<'a> {
    pub status: u16,
    pub code: Option<&'a str>,
    pub text: &'a str,
    /// The recipient of the mail.
    pub to: &'a str,
}

/// Classifies a refusal by SES. If SES answers with one of its 4xx errors, it has sent nothing.
pub fn classify(refusal: &SesRefusal<'_>) -> Outcome {
    let SesRefusal { status, code, text, .. } = *refusal;
    let permanent = |code| Outcome::Permanent { code, suppress: false };
    let later = |retry_after_ms| Outcome::Throttled { retry_after_ms, scope: ThrottleScope::Bot };
    match code {
        Some("TooManyRequestsException" | "ThrottlingException" | "Throttling") => {
            // The daily quota recovers without an operator, so this is not a hold.
            let of_the_day = text.to_ascii_lowercase().contains("daily");
            later(if of_the_day { QUOTA_WAIT_MS } else { delivery::DEFAULT_RETRY_AFTER_MS })
        }
        Some("LimitExceededException") => later(QUOTA_WAIT_MS),
        Some("SendingPausedException") => Outcome::Held { why: SendingHold::SendingPaused },
        Some("AccountSuspendedException") => Outcome::Held { why: SendingHold::AccountSuspended },
        Some("MailFromDomainNotVerifiedException") => Outcome::Held { why: SendingHold::MailFromNotVerified },
        Some("MessageRejected" | "MessageRejectedException") if text.contains("not verified") => {
            Outcome::Held { why: unverified(refusal) }
        }
        Some("MessageRejected" | "MessageRejectedException") => permanent(code::MESSAGE_REJECTED),
        Some("NotFoundException") => Outcome::Held { why: SendingHold::ConfigurationMissing },
        Some("AccessDeniedException" | "AccessDenied") => Outcome::Held { why: SendingHold::NotAuthorized },
        Some("BadRequestException" | "ValidationException") => permanent(delivery::code::REJECTED),
        // For example, the credentials have expired: the next attempt uses new ones.
        _ if status == 403 => Outcome::Transient { code: delivery::code::REJECTED },
        _ if status == 429 => later(delivery::DEFAULT_RETRY_AFTER_MS),
        _ => delivery::of_unexpected(status),
    }
}

/// Finds out whose address is not verified. SES lists the identities that failed at the end of its
/// text. If only the recipient's address failed, the account is in the sandbox.
fn unverified(refusal: &SesRefusal<'_>) -> SendingHold {
    let failed = refusal.text.rsplit_once(": ").map_or("", |(_, identities)| identities);
    let mut failed = failed.split(',').map(str::trim).filter(|identity| !identity.is_empty()).peekable();
    let only_recipient = failed.peek().is_some() && failed.all(|identity| identity.eq_ignore_ascii_case(refusal.to));
    if only_recipient { SendingHold::AccountInSandbox } else { SendingHold::IdentityNotVerified }
}

/// The number of bytes of a name that fit into one encoded word of at most 75 characters.
const WORD_BYTES: usize = 45;

/// Encodes a mailbox for a header: a name that is not ASCII becomes encoded words (RFC 2047).
pub fn mailbox(text: &str) -> String {
    let text = text.trim();
    if text.is_ascii() {
        return text.to_owned();
    }
    let Some((name, address)) = text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) else {
        return text.to_owned();
    };
    let name = name.trim();
    let name = name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name);
    let mut words = vec![String::new()];
    for c in name.chars() {
        if words.last().is_some_and(|word| word.len() + c.len_utf8() > WORD_BYTES) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(c);
        }
    }
    let words: Vec<_> = words.iter().map(|word| format!("=?UTF-8?B?{}?=", BASE64_STANDARD.encode(word))).collect();
    format!("{} <{}>", words.join(" "), address.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ascii_name_is_kept_and_any_other_name_is_encoded() {
        assert_eq!(mailbox("Loja <loja@example.com>"), "Loja <loja@example.com>");
        assert_eq!(mailbox("loja@example.com"), "loja@example.com");
        assert_eq!(mailbox("João <joao@example.com>"), "=?UTF-8?B?Sm/Do28=?= <joao@example.com>");
        assert_eq!(mailbox("\"João, Ana\" <joao@example.com>"), "=?UTF-8?B?Sm/Do28sIEFuYQ==?= <joao@example.com>");
    }

    #[test]
    fn a_long_name_is_encoded_in_several_words_that_do_not_split_a_character() {
        let encoded = mailbox(&format!("{} <a@example.com>", "ação".repeat(20)));
        let words: Vec<_> = encoded.split(' ').filter(|word| word.starts_with("=?")).collect();
        assert!(words.len() > 1 && words.iter().all(|word| word.len() <= 75));
        let decoded: String = words
            .iter()
            .map(|word| word.trim_start_matches("=?UTF-8?B?").trim_end_matches("?="))
            .map(|word| String::from_utf8(BASE64_STANDARD.decode(word).expect("base64")).expect("whole characters"))
            .collect();
        assert_eq!(decoded, "ação".repeat(20));
    }

    #[test]
    fn a_name_of_45_bytes_is_one_word_and_a_longer_name_is_two() {
        for (length, words) in [(45, 1), (46, 2)] {
            let encoded = mailbox(&format!("é{} <a@example.com>", "a".repeat(length - 2)));
            assert_eq!(encoded.matches("=?UTF-8?B?").count(), words, "{encoded}");
        }
    }

    fn refused(status: u16, code: &str, text: &str) -> Outcome {
        classify(&SesRefusal { status, code: Some(code), text, to: "ana@example.com" })
    }

    #[test]
    fn an_email_that_ses_refuses_was_not_sent() {
        let permanent = |code| Outcome::Permanent { code, suppress: false };
        let later = |ms| Outcome::Throttled { retry_after_ms: ms, scope: ThrottleScope::Bot };
        assert_eq!(refused(429, "TooManyRequestsException", "Maximum sending rate exceeded."), later(1_000));
        assert_eq!(refused(429, "TooManyRequestsException", "Daily message quota exceeded."), later(300_000));
        assert_eq!(refused(429, "SomethingNew", ""), later(1_000));
        assert_eq!(refused(400, "LimitExceededException", ""), later(300_000));
        assert_eq!(refused(400, "MessageRejected", "Virus."), permanent("message_rejected"));
        assert_eq!(refused(400, "BadRequestException", ""), permanent("provider_rejected"));
        let expired = Outcome::Transient { code: "provider_rejected" };
        assert_eq!(refused(403, "ExpiredTokenException", ""), expired);
    }

    #[test]
    fn a_refusal_of_the_account_or_its_identity_holds_sending() {
        let failed = "Email address is not verified. The following identities failed the check in region SA-EAST-1: ";
        let both = format!("{failed}loja@example.com, ana@example.com");
        let denied = "User `arn:aws:sts::1:assumed-role/x/y' is not authorized to perform `ses:SendEmail' on resource \
                      `arn:aws:ses:sa-east-1:1:identity/example.com'";
        let cases = [
            ("SendingPausedException", "", "sending_paused"),
            ("AccountSuspendedException", "", "account_suspended"),
            ("MailFromDomainNotVerifiedException", "", "mail_from_not_verified"),
            ("NotFoundException", "Configuration set <x> does not exist.", "configuration_missing"),
            ("AccessDeniedException", denied, "not_authorized"),
            ("MessageRejected", "Email address is not verified.", "identity_not_verified"),
            ("MessageRejected", &format!("{failed}loja@example.com"), "identity_not_verified"),
            ("MessageRejected", &both, "identity_not_verified"),
            ("MessageRejected", &format!("{failed}Ana@example.com"), "account_in_sandbox"),
        ];
        for (code, text, why) in cases {
            let why = SendingHold::parse(why).expect("a code");
            assert_eq!(refused(400, code, text), Outcome::Held { why }, "{code}: {text}");
        }
    }

    #[test]
    fn an_unexplained_error_of_ses_is_unknown() {
        assert_eq!(refused(500, "InternalFailure", ""), Outcome::Unknown { code: "provider_server_error" });
        let silent = SesRefusal { status: 400, code: None, text: "", to: "ana@example.com" };
        assert_eq!(classify(&silent), Outcome::Unknown { code: "provider_answer_unexpected" });
    }
}
