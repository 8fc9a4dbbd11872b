//! The closed lists of codes in answers. A code is part of the API: it is never renamed.

/// Defines enums whose variants have one fixed text each.
macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.as_str() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| serde::de::Error::custom(concat!("not a ", stringify!($name))))
            }
        }
    )+};
}
pub(crate) use codes;

/// Defines a module of named texts, and `ALL`, the list of them.
macro_rules! texts {
    ($(#[$meta:meta])* $module:ident { $($(#[$doc:meta])* $name:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        pub mod $module {
            $($(#[$doc])* pub const $name: &str = $text;)+

            pub const ALL: &[&str] = &[$($name),+];
        }
    };
}
pub(crate) use texts;

codes! {
    /// Why the system did not do something.
    Reason {
        /// The intent was already sent, or is about to be sent, within its window.
        IntentDuplicate = "intent_duplicate",
        /// The item is older than the stored entry.
        Stale = "stale",
        /// The uploaded file does not exist any more.
        InputMissing = "input_missing",
        /// The uploaded file is larger than allowed.
        InputTooLarge = "input_too_large",
        /// The uploaded file is not the one that the job began with.
        InputChanged = "input_changed",
    }

    /// What an insert did with an entry. Clients branch on these three, so there is no fourth.
    Action {
        /// A new entry was stored.
        Inserted = "inserted",
        /// The entry was known, and was left as it was.
        Skipped = "skipped",
        /// The entry was known, and the item was merged into it.
        Updated = "updated",
    }

    /// The key by which an entry was recognized.
    MatchedBy {
        /// The primary key of the item.
        Primary = "primary",
        /// The secondary key of the item.
        Secondary = "secondary",
    }

    /// A decision about a message, as the ledger and `GET /explain` show it.
    Decision {
        /// Accepted, to be sent at once or at its time.
        Accepted = "accepted",
        /// Not accepted: its intent was already sent or about to be sent.
        Deduped = "deduped",
        /// Its time has come: enqueued.
        Due = "due",
        /// There was no progress for too long: enqueued again.
        Recovered = "recovered",
        /// An attempt began.
        Claimed = "claimed",
        /// The provider accepted it.
        Sent = "sent",
        /// The attempt was definitely not sent; there will be another.
        Retry = "retry",
        /// The provider asked to wait.
        Throttled = "throttled",
        /// It waits until the window of another send of its intent is over.
        Deferred = "deferred",
        /// The attempt may or may not have been sent.
        Unknown = "unknown",
        /// It was not sent and will not be sent.
        Failed = "failed",
        /// Its `not_after` passed.
        Expired = "expired",
        /// The address is on the suppression list.
        Suppressed = "suppressed",
        /// An operator canceled it before an attempt began.
        Canceled = "canceled",
        /// Canceled while an attempt was under way: there will be no further attempt.
        Recalled = "recalled",
        /// An operator, or the policy for unknown outcomes, ordered to send it again.
        Resent = "resent",
        /// An event of the provider showed that an attempt was sent.
        Reconciled = "reconciled",
        /// SES reports that the mail was delivered.
        Delivered = "delivered",
        /// SES reports that the mail bounced.
        Bounced = "bounced",
        /// SES reports that the recipient complained.
        Complained = "complained",
        /// The provider accepted it and then refused to send it.
        Rejected = "rejected",
        /// A check without a message took the intent.
        IntentHeld = "intent_held",
        /// The intent was released.
        IntentReleased = "intent_released",
    }

    /// Why SES accepts no mail at all from an account or an identity. The mail itself is not at
    /// fault: mailings pause by themselves, with this code as the reason, until a person has fixed
    /// the problem and resumes them.
    SendingHold {
        /// The from address or its domain is not verified.
        IdentityNotVerified = "identity_not_verified",
        /// The custom MAIL FROM domain of the identity is not verified.
        MailFromNotVerified = "mail_from_not_verified",
        /// The role that sends has no permission for the identity or the configuration set.
        NotAuthorized = "not_authorized",
        /// Sending is paused for the account or for the configuration set.
        SendingPaused = "sending_paused",
        /// AWS suspended sending for the account.
        AccountSuspended = "account_suspended",
        /// An account in the sandbox sends to verified addresses only.
        AccountInSandbox = "account_in_sandbox",
        /// There is no configuration set of this name.
        ConfigurationMissing = "configuration_missing",
    }

    /// What is wrong with a request: the `code` of a problem+json answer.
    ProblemCode {
        /// A field or a query parameter is invalid; `errors` names each.
        InvalidRequest = "invalid_request",
        /// The body is not a JSON object.
        InvalidJson = "invalid_json",
        /// The body is not a multipart form that can be read.
        InvalidForm = "invalid_form",
        /// The `Idempotency-Key` has characters or a length that are not allowed.
        InvalidIdempotencyKey = "invalid_idempotency_key",
        /// The `Idempotency-Key` was used before, with another body.
        IdempotencyKeyReused = "idempotency_key_reused",
        /// The route does not take this content type.
        UnsupportedMediaType = "unsupported_media_type",
        /// The body is larger than the route takes.
        BodyTooLarge = "body_too_large",
        /// The request has no API key.
        MissingKey = "missing_key",
        /// The API key does not exist, or was revoked.
        InvalidKey = "invalid_key",
        /// The API key does not have the scope of the route.
        MissingScope = "missing_scope",
        /// There is no such route or resource.
        NotFound = "not_found",
        /// Another holder has the intent.
        HeldByAnother = "held_by_another",
        /// The request needs an `Idempotency-Key` or an `id`.
        MissingIdentity = "missing_identity",
        /// The message is neither FAILED nor UNKNOWN, or another attempt followed.
        NotResendable = "not_resendable",
        /// The outcome is not UNKNOWN, so there is nothing to settle.
        NotUnknown = "not_unknown",
        /// The intent was already sent, or is about to be sent, within its window.
        IntentDuplicate = "intent_duplicate",
        /// A file of this name exists, with other content.
        NameTaken = "name_taken",
        /// The contact has as many scheduled messages of an intent type as its guard keeps.
        TooManyScheduled = "too_many_scheduled",
        /// The contact has as many open charges as are kept.
        TooManyCharges = "too_many_charges",
        /// A mailing with another file name has the same content.
        SameContent = "same_content",
        /// The mailing's current state does not allow the request.
        WrongState = "wrong_state",
        /// A webhook request does not prove its origin.
        Unverified = "unverified",
        /// This batch already has another reply.
        AlreadyAnswered = "already_answered",
        /// A service that the request needs does not answer; retry later.
        Unavailable = "unavailable",
        /// An internal fault. Retry with the same `Idempotency-Key`.
        Internal = "internal",
    }

    /// What is wrong with one field.
    FieldProblem {
        /// The field is required.
        Missing = "missing",
        /// The value does not have the required form.
        Malformed = "malformed",
        /// The value has another JSON type.
        WrongType = "wrong_type",
        /// The route knows no such field.
        Unknown = "unknown",
        /// The value is not one of those allowed.
        NotAllowed = "not_allowed",
        /// The value is too small, too large, too long or too short.
        OutOfRange = "out_of_range",
        /// The value conflicts with another field or with the stored data.
        Conflicting = "conflicting",
    }

    /// Why a row of a mailing's file is not a recipient.
    RowProblem {
        /// The row has no address.
        EmailMissing = "email_missing",
        /// The address is not a local part and a domain with one @ between them.
        EmailMalformed = "email_malformed",
        /// The part before the @ cannot be delivered to.
        EmailLocalPart = "email_local_part",
        /// The part after the @ is not a domain.
        EmailDomain = "email_domain",
        /// The address is longer than 254 characters.
        EmailTooLong = "email_too_long",
        /// The row has more fields than the header has columns.
        TooManyFields = "too_many_fields",
        /// The row is longer than 64 KB.
        RowTooLong = "row_too_long",
    }

    /// Why a mailing's file cannot be read, or not any further.
    FileProblem {
        /// The file has no recipients.
        Empty = "file_empty",
        /// The file is not text.
        NotText = "file_not_text",
        /// The file is not valid UTF-8; name its `encoding`.
        NotUtf8 = "file_not_utf8",
        /// The file is not valid UTF-16.
        NotUtf16 = "file_not_utf16",
        /// A quoted field has no end.
        QuoteNeverCloses = "quote_never_closes",
        /// The header is longer than 64 KB.
        HeaderTooLong = "header_too_long",
        /// The file has more than 100 columns.
        TooManyColumns = "too_many_columns",
        /// Two columns have the same name.
        ColumnTwice = "column_twice",
        /// The name of a column is too long.
        ColumnTooLong = "column_too_long",
        /// No column has the addresses; name it with `email_column`.
        NoEmailColumn = "no_email_column",
        /// Several columns may have the addresses; name one with `email_column`.
        TwoEmailColumns = "two_email_columns",
        /// The file has more than 10 million rows.
        TooManyRows = "too_many_rows",
        /// The mailing's content names a column that the file does not have.
        MissingColumn = "missing_column",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_parsed_only_from_its_own_text() {
        for action in Action::ALL {
            assert_eq!(Action::parse(action.as_str()), Some(*action));
            let json = serde_json::to_string(action).expect("json");
            assert_eq!(serde_json::from_str::<Action>(&json).expect("read back"), *action);
        }
        assert_eq!(Action::parse("Inserted"), None);
        assert!(serde_json::from_str::<Action>("\"deleted\"").is_err());
    }

    #[test]
    fn every_problem_code_has_a_distinct_text() {
        let mut texts: Vec<_> = ProblemCode::ALL.iter().map(|code| code.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), ProblemCode::ALL.len());
    }
}
