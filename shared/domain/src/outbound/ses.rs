//! SES v2 `SendEmail`: what a message is tagged with, how a mailbox is written, and what a refusal means.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::outcome::{self, Outcome, ThrottleScope};

/// The tags by which events find their message and attempt. SES takes letters, digits, dashes and underscores.
pub const MESSAGE_TAG: &str = "message_id";
pub const ATTEMPT_TAG: &str = "attempt";

pub mod code {
    pub const MESSAGE_REJECTED: &str = "message_rejected";
    pub const IDENTITY_NOT_VERIFIED: &str = "identity_not_verified";
    pub const SENDING_PAUSED: &str = "sending_paused";
    pub const CONFIGURATION_MISSING: &str = "configuration_missing";

    pub const ALL: &[&str] = &[MESSAGE_REJECTED, IDENTITY_NOT_VERIFIED, SENDING_PAUSED, CONFIGURATION_MISSING];
}

/// A day's quota comes back by and by; asking more often helps nobody.
const QUOTA_WAIT_MS: i64 = 5 * 60 * 1_000;

/// What a refusal by SES means, by its status, code and text. SES sends nothing that it answers with one of its 4xx.
pub fn classify(status: u16, code: Option<&str>, text: &str) -> Outcome {
    let permanent = |code| Outcome::Permanent { code, suppress: false };
    let later = |retry_after_ms| Outcome::Throttled { retry_after_ms, scope: ThrottleScope::Bot };
    match code {
        Some("TooManyRequestsException" | "ThrottlingException" | "Throttling") => {
            let of_the_day = text.to_ascii_lowercase().contains("daily");
            later(if of_the_day { QUOTA_WAIT_MS } else { outcome::DEFAULT_RETRY_AFTER_MS })
        }
        Some("LimitExceededException") => later(QUOTA_WAIT_MS),
        // Nothing is wrong with the message, and what is wrong can be put right in time.
        Some("SendingPausedException" | "AccountSuspendedException") => {
            Outcome::Transient { code: code::SENDING_PAUSED }
        }
        Some("MailFromDomainNotVerifiedException") => permanent(code::IDENTITY_NOT_VERIFIED),
        Some("MessageRejected" | "MessageRejectedException") if text.contains("not verified") => {
            permanent(code::IDENTITY_NOT_VERIFIED)
        }
        Some("MessageRejected" | "MessageRejectedException") => permanent(code::MESSAGE_REJECTED),
        Some("NotFoundException") => Outcome::Transient { code: code::CONFIGURATION_MISSING },
        Some("BadRequestException" | "ValidationException") => permanent(outcome::code::REJECTED),
        // Refused for want of a permission, which a deployment can put right.
        _ if status == 403 => Outcome::Transient { code: outcome::code::REJECTED },
        _ if status == 429 => later(outcome::DEFAULT_RETRY_AFTER_MS),
        _ => outcome::of_unexpected(status),
    }
}

/// Bytes of a name that fit one encoded word of at most 75 characters.
const WORD_BYTES: usize = 45;

/// A mailbox as it may stand in a header: a name that is not ASCII becomes encoded words (RFC 2047).
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
    fn a_name_in_ascii_stays_and_any_other_is_encoded() {
        assert_eq!(mailbox("Loja <loja@example.com>"), "Loja <loja@example.com>");
        assert_eq!(mailbox("loja@example.com"), "loja@example.com");
        assert_eq!(mailbox("João <joao@example.com>"), "=?UTF-8?B?Sm/Do28=?= <joao@example.com>");
        assert_eq!(mailbox("\"João, Ana\" <joao@example.com>"), "=?UTF-8?B?Sm/Do28sIEFuYQ==?= <joao@example.com>");
    }

    #[test]
    fn a_long_name_is_several_words_none_of_which_cuts_a_character() {
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
    fn what_ses_refuses_is_known_not_sent() {
        let permanent = |code| Outcome::Permanent { code, suppress: false };
        let later = |ms| Outcome::Throttled { retry_after_ms: ms, scope: ThrottleScope::Bot };
        assert_eq!(classify(429, Some("TooManyRequestsException"), "Maximum sending rate exceeded."), later(1_000));
        assert_eq!(classify(429, Some("TooManyRequestsException"), "Daily message quota exceeded."), later(300_000));
        assert_eq!(classify(400, Some("LimitExceededException"), ""), later(300_000));
        assert_eq!(
            classify(400, Some("MessageRejected"), "Email address is not verified."),
            permanent("identity_not_verified")
        );
        assert_eq!(classify(400, Some("MessageRejected"), "Virus."), permanent("message_rejected"));
        assert_eq!(classify(400, Some("BadRequestException"), ""), permanent("provider_rejected"));
        assert_eq!(classify(400, Some("SendingPausedException"), ""), Outcome::Transient { code: "sending_paused" });
        assert_eq!(classify(403, Some("AccessDeniedException"), ""), Outcome::Transient { code: "provider_rejected" });
    }

    #[test]
    fn what_ses_does_not_explain_is_unknown() {
        assert_eq!(classify(500, Some("InternalFailure"), ""), Outcome::Unknown { code: "provider_server_error" });
        assert_eq!(classify(400, None, ""), Outcome::Unknown { code: "provider_answer_unexpected" });
    }
}
