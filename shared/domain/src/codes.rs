//! The closed list of codes in answers, logs and metrics. A code is part of the API: it is never
//! renamed.

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
        IntentDuplicate = "intent_duplicate",
        Stale = "stale",
        InputMissing = "input_missing",
        InputTooLarge = "input_too_large",
        /// The uploaded file is not the one that the job began with.
        InputChanged = "input_changed",
    }

    /// What an insert did with an entry. Clients branch on these three, so there is no fourth.
    Action {
        Inserted = "inserted",
        Skipped = "skipped",
        Updated = "updated",
    }

    /// The key by which an entry was recognized.
    MatchedBy {
        Primary = "primary",
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
        /// The attempt may or may not have been sent.
        Unknown = "unknown",
        Failed = "failed",
        /// Its `not_after` passed.
        Expired = "expired",
        /// The address is on the suppression list.
        Suppressed = "suppressed",
        Canceled = "canceled",
        /// Canceled while an attempt was under way: there will be no further attempt.
        Recalled = "recalled",
        /// An operator, or the policy for unknown outcomes, ordered to send it again.
        Resent = "resent",
        /// An event of the provider showed that an attempt was sent.
        Reconciled = "reconciled",
        Delivered = "delivered",
        Bounced = "bounced",
        Complained = "complained",
        /// The provider accepted it and then refused to send it.
        Rejected = "rejected",
        /// A check without a message took the intent.
        IntentHeld = "intent_held",
        IntentReleased = "intent_released",
    }

    /// An event, as one line in the log.
    Event {
        OutboundAccepted = "OUTBOUND_ACCEPTED",
        OutboundDeduped = "OUTBOUND_DEDUPED",
        OutboundSent = "OUTBOUND_SENT",
        OutboundRetry = "OUTBOUND_RETRY",
        /// The provider refuses the sender of a message; the message waits until an operator fixes
        /// that.
        OutboundHeld = "OUTBOUND_HELD",
        OutboundUnknown = "OUTBOUND_UNKNOWN",
        OutboundFailed = "OUTBOUND_FAILED",
        OutboundExpired = "OUTBOUND_EXPIRED",
        OutboundSuppressed = "OUTBOUND_SUPPRESSED",
        OutboundCanceled = "OUTBOUND_CANCELED",
        OutboundResent = "OUTBOUND_RESENT",
        OutboundSettled = "OUTBOUND_SETTLED",
        OutboundReconciled = "OUTBOUND_RECONCILED",
        OutboundRecovered = "OUTBOUND_RECOVERED",
        OutboundDelivery = "OUTBOUND_DELIVERY",
        EntryInserted = "ENTRY_INSERTED",
        EntrySkipped = "ENTRY_SKIPPED",
        EntryUpdated = "ENTRY_UPDATED",
        TestModeChanged = "TEST_MODE_CHANGED",
        PolicyChanged = "POLICY_CHANGED",
        BackfillBegun = "BACKFILL_BEGUN",
        BackfillEnded = "BACKFILL_ENDED",
        SuppressionAdded = "SUPPRESSION_ADDED",
        SuppressionRemoved = "SUPPRESSION_REMOVED",
        IntentHeld = "INTENT_HELD",
        IntentReleased = "INTENT_RELEASED",
        IntentExpired = "INTENT_EXPIRED",
        MailingCreated = "MAILING_CREATED",
        MailingImported = "MAILING_IMPORTED",
        MailingImportFailed = "MAILING_IMPORT_FAILED",
        /// Its state changed: paused, resumed, canceled, given content, retried.
        MailingState = "MAILING_STATE",
        /// It paused by itself, because SES accepts no mail from its account or identity.
        MailingHeld = "MAILING_HELD",
        /// A caller uploaded a file again under its own name.
        MailingRepeated = "MAILING_REPEATED",
        MailingCompleted = "MAILING_COMPLETED",
        /// Its shards are finished but have another number of entries than the import created: an
        /// operator must investigate.
        MailingMismatch = "MAILING_MISMATCH",
        /// The outcome of one entry.
        MailingEntry = "MAILING_ENTRY",
        MailingRecovered = "MAILING_RECOVERED",
        MailingUnsubscribed = "MAILING_UNSUBSCRIBED",
        MailingReconciled = "MAILING_RECONCILED",
        /// A provider reported a message, and how it was handled.
        ConversationMessage = "CONVERSATION_MESSAGE",
        /// What a worker did with a batch.
        ConversationBatch = "CONVERSATION_BATCH",
        /// The responder did not answer when asked: a person is needed.
        ConversationNeedsHuman = "CONVERSATION_NEEDS_HUMAN",
        /// The retention period removed messages before they were answered.
        ConversationMessagesExpired = "CONVERSATION_MESSAGES_EXPIRED",
        ConversationHeld = "CONVERSATION_HELD",
        ConversationReleased = "CONVERSATION_RELEASED",
        ConversationRecovered = "CONVERSATION_RECOVERED",
        InstanceChanged = "INSTANCE_CHANGED",
        BotChanged = "BOT_CHANGED",
        DownsellChanged = "DOWNSELL_CHANGED",
        /// The result of a /start, for all downsells of its bot.
        StartScheduled = "[START][DOWNSELLS_SCHEDULED]",
        DownsellScheduledStart = "[DOWNSELL][SCHEDULED][START]",
        DownsellScheduledPix = "[DOWNSELL][SCHEDULED][PIX]",
        /// A sweep found offers whose time is near.
        DownsellDue = "[DOWNSELL][DUE]",
        DownsellEnqueued = "[DOWNSELL][ENQUEUED]",
        DownsellSkip = "[DOWNSELL][SKIP]",
        DownsellSendOk = "[DOWNSELL][SEND][OK]",
        DownsellSendErr = "[DOWNSELL][SEND][ERR]",
        /// The offer may or may not have been sent.
        DownsellSendUnknown = "[DOWNSELL][SEND][UNKNOWN]",
        DownsellCancelPaid = "[DOWNSELL][CANCEL][PAID]",
        DownsellCancelExpired = "[DOWNSELL][CANCEL][EXPIRED]",
        DownsellCancelOther = "[DOWNSELL][CANCEL][OTHER]",
        /// The offer's charge expired; the offer now belongs to the contact's newest unpaid charge.
        DownsellPassedOn = "[DOWNSELL][PASSED_ON]",
        /// The offer's own `not_after` passed.
        DownsellExpired = "[DOWNSELL][EXPIRED]",
        DownsellRecovered = "[DOWNSELL][RECOVERED]",
        /// A payment gateway reported something, and how it was handled.
        PaymentWebhook = "PAYMENT_WEBHOOK",
        /// A payment or an expiry names another owner than the stored transaction has. The stored
        /// owner counted.
        PaymentOwnerDiffers = "PAYMENT_OWNER_DIFFERS",
        /// A payment was stored whose contact is not known yet.
        PaymentOwnerUnknown = "PAYMENT_OWNER_UNKNOWN",
        /// A request to a webhook did not prove its origin.
        WebhookRefused = "WEBHOOK_REFUSED",
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
        AccountSuspended = "account_suspended",
        /// An account in the sandbox sends to verified addresses only.
        AccountInSandbox = "account_in_sandbox",
        /// There is no configuration set of this name.
        ConfigurationMissing = "configuration_missing",
    }

    /// What is wrong with a request: the `code` of a problem+json answer.
    ProblemCode {
        InvalidRequest = "invalid_request",
        InvalidJson = "invalid_json",
        InvalidForm = "invalid_form",
        InvalidIdempotencyKey = "invalid_idempotency_key",
        IdempotencyKeyReused = "idempotency_key_reused",
        UnsupportedMediaType = "unsupported_media_type",
        BodyTooLarge = "body_too_large",
        MissingKey = "missing_key",
        InvalidKey = "invalid_key",
        MissingScope = "missing_scope",
        NotFound = "not_found",
        HeldByAnother = "held_by_another",
        MissingIdentity = "missing_identity",
        NotResendable = "not_resendable",
        NotUnknown = "not_unknown",
        IntentDuplicate = "intent_duplicate",
        /// A file of this name exists, with other content.
        NameTaken = "name_taken",
        /// The contact has as many scheduled messages of an intent type as its guard keeps.
        TooManyScheduled = "too_many_scheduled",
        /// A mailing with another file name has the same content.
        SameContent = "same_content",
        /// The mailing's current state does not allow the request.
        WrongState = "wrong_state",
        /// A webhook request does not prove its origin.
        Unverified = "unverified",
        /// This batch already has another reply.
        AlreadyAnswered = "already_answered",
        Unavailable = "unavailable",
        Internal = "internal",
    }

    /// What is wrong with one field.
    FieldProblem {
        Missing = "missing",
        Malformed = "malformed",
        WrongType = "wrong_type",
        Unknown = "unknown",
        NotAllowed = "not_allowed",
        OutOfRange = "out_of_range",
        Conflicting = "conflicting",
    }

    /// Why a row of a mailing's file is not a recipient.
    RowProblem {
        EmailMissing = "email_missing",
        /// The address is not a local part and a domain with one @ between them.
        EmailMalformed = "email_malformed",
        /// The part before the @ cannot be delivered to.
        EmailLocalPart = "email_local_part",
        /// The part after the @ is not a domain.
        EmailDomain = "email_domain",
        EmailTooLong = "email_too_long",
        /// The row has more fields than the header has columns.
        TooManyFields = "too_many_fields",
        RowTooLong = "row_too_long",
    }

    /// Why a mailing's file cannot be read, or not any further.
    FileProblem {
        Empty = "file_empty",
        NotText = "file_not_text",
        NotUtf8 = "file_not_utf8",
        NotUtf16 = "file_not_utf16",
        QuoteNeverCloses = "quote_never_closes",
        HeaderTooLong = "header_too_long",
        TooManyColumns = "too_many_columns",
        ColumnTwice = "column_twice",
        ColumnTooLong = "column_too_long",
        NoEmailColumn = "no_email_column",
        TwoEmailColumns = "two_email_columns",
        TooManyRows = "too_many_rows",
        /// The mailing's content names a column that the file does not have.
        MissingColumn = "missing_column",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_back_from_its_text_and_no_other_text_is_one() {
        for action in Action::ALL {
            assert_eq!(Action::parse(action.as_str()), Some(*action));
            let json = serde_json::to_string(action).expect("json");
            assert_eq!(serde_json::from_str::<Action>(&json).expect("read back"), *action);
        }
        assert_eq!(Action::parse("Inserted"), None);
        assert!(serde_json::from_str::<Action>("\"deleted\"").is_err());
    }

    #[test]
    fn every_code_has_a_text_of_its_own() {
        let mut texts: Vec<_> = ProblemCode::ALL.iter().map(|code| code.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), ProblemCode::ALL.len());
    }
}
