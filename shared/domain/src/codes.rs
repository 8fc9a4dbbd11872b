//! The closed list of codes that answers, logs and metrics carry. A code is a word of the product:
//! it is never renamed.

/// Defines an enum whose variants have one fixed text each.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
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
    };
}
pub(crate) use codes;

codes! {
    /// Why something was not done.
    Reason {
        IntentDuplicate = "intent_duplicate",
        Stale = "stale",
        InputMissing = "input_missing",
        InputTooLarge = "input_too_large",
        /// What was uploaded is not what the job began with.
        InputChanged = "input_changed",
    }
}

codes! {
    /// What became of an entry. Clients branch on these three, so there is no fourth.
    Action {
        Inserted = "inserted",
        Skipped = "skipped",
        Updated = "updated",
    }
}

codes! {
    /// Which of its keys an entry was known by.
    MatchedBy {
        Primary = "primary",
        Secondary = "secondary",
    }
}

codes! {
    /// What was decided about a message, as its ledger and `GET /explain` tell it.
    Decision {
        /// Taken in, to be sent at once or at its time.
        Accepted = "accepted",
        /// Not taken in: its intention had been sent, or was about to be.
        Deduped = "deduped",
        /// Its time has come: handed to its queue.
        Due = "due",
        /// It was not heard of for too long: handed to its queue again.
        Recovered = "recovered",
        /// An attempt was begun.
        Claimed = "claimed",
        /// The provider took it.
        Sent = "sent",
        /// The attempt is known not to have been sent; there will be another.
        Retry = "retry",
        /// The provider said to wait.
        Throttled = "throttled",
        /// The attempt may have been sent or not.
        Unknown = "unknown",
        Failed = "failed",
        /// Its `not_after` passed.
        Expired = "expired",
        /// The address is on the suppression list.
        Suppressed = "suppressed",
        Canceled = "canceled",
        /// Canceled while an attempt was under way: there will be no other.
        Recalled = "recalled",
        /// An operator, or the policy for unknown outcomes, said to send it again.
        Resent = "resent",
        /// The provider's events told that an attempt was sent.
        Reconciled = "reconciled",
        Delivered = "delivered",
        Bounced = "bounced",
        Complained = "complained",
        /// The provider took it and then refused to send it.
        Rejected = "rejected",
        /// An intent was taken by a check that has no message.
        IntentHeld = "intent_held",
        IntentReleased = "intent_released",
    }
}

codes! {
    /// What happened, as one line in the log.
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
        /// It paused by itself, because SES takes no mails of its account or identity.
        MailingHeld = "MAILING_HELD",
        /// A file was uploaded again under its own name.
        MailingRepeated = "MAILING_REPEATED",
        MailingCompleted = "MAILING_COMPLETED",
        /// Its shards are finished and have other entries than were imported: somebody must look.
        MailingMismatch = "MAILING_MISMATCH",
        /// What became of one entry.
        MailingEntry = "MAILING_ENTRY",
        MailingRecovered = "MAILING_RECOVERED",
        MailingUnsubscribed = "MAILING_UNSUBSCRIBED",
        MailingReconciled = "MAILING_RECONCILED",
        /// A provider told of a message, and what became of it.
        ConversationMessage = "CONVERSATION_MESSAGE",
        /// What a worker did with a batch.
        ConversationBatch = "CONVERSATION_BATCH",
        /// The responder was asked in vain: a person is needed.
        ConversationNeedsHuman = "CONVERSATION_NEEDS_HUMAN",
        /// Messages were removed by their retention period before anybody answered them.
        ConversationMessagesExpired = "CONVERSATION_MESSAGES_EXPIRED",
        ConversationHeld = "CONVERSATION_HELD",
        ConversationReleased = "CONVERSATION_RELEASED",
        ConversationRecovered = "CONVERSATION_RECOVERED",
        InstanceChanged = "INSTANCE_CHANGED",
        BotChanged = "BOT_CHANGED",
        DownsellChanged = "DOWNSELL_CHANGED",
        /// What a /start came to, for all downsells of its bot.
        StartScheduled = "[START][DOWNSELLS_SCHEDULED]",
        DownsellScheduledStart = "[DOWNSELL][SCHEDULED][START]",
        DownsellScheduledPix = "[DOWNSELL][SCHEDULED][PIX]",
        /// A sweep found offers whose time is near.
        DownsellDue = "[DOWNSELL][DUE]",
        DownsellEnqueued = "[DOWNSELL][ENQUEUED]",
        DownsellSkip = "[DOWNSELL][SKIP]",
        DownsellSendOk = "[DOWNSELL][SEND][OK]",
        DownsellSendErr = "[DOWNSELL][SEND][ERR]",
        /// It may have been sent or not.
        DownsellSendUnknown = "[DOWNSELL][SEND][UNKNOWN]",
        DownsellCancelPaid = "[DOWNSELL][CANCEL][PAID]",
        DownsellCancelExpired = "[DOWNSELL][CANCEL][EXPIRED]",
        DownsellCancelOther = "[DOWNSELL][CANCEL][OTHER]",
        /// Its charge expired, and it is the offer of the contact's newest unpaid charge now.
        DownsellPassedOn = "[DOWNSELL][PASSED_ON]",
        /// Its own `not_after` passed.
        DownsellExpired = "[DOWNSELL][EXPIRED]",
        DownsellRecovered = "[DOWNSELL][RECOVERED]",
        /// What a payment gateway told, and what became of it.
        PaymentWebhook = "PAYMENT_WEBHOOK",
        /// A payment or an expiry names another owner than the stored transaction has; the stored
        /// one counted.
        PaymentOwnerDiffers = "PAYMENT_OWNER_DIFFERS",
        /// A payment was stored whose contact is not known yet.
        PaymentOwnerUnknown = "PAYMENT_OWNER_UNKNOWN",
        /// A request to a webhook that did not prove where it came from.
        WebhookRefused = "WEBHOOK_REFUSED",
    }
}

codes! {
    /// Why SES takes no mail at all from an account or an identity. Nothing is wrong with a mail
    /// that meets one of these: mailings pause by themselves under its name until a person has put
    /// it right and resumes them.
    SendingHold {
        /// The address or domain that the mail is from is not verified.
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
}

codes! {
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
        /// A file of this name is there, with other content.
        NameTaken = "name_taken",
        /// A contact has as many scheduled messages of an intent type as its guard keeps.
        TooManyScheduled = "too_many_scheduled",
        /// A mailing with another file name has the same content.
        SameContent = "same_content",
        /// It cannot be asked of a mailing that stands as this one does.
        WrongState = "wrong_state",
        /// A webhook that does not prove where it comes from.
        Unverified = "unverified",
        /// There is another reply to this batch.
        AlreadyAnswered = "already_answered",
        Unavailable = "unavailable",
        Internal = "internal",
    }
}

codes! {
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
}

codes! {
    /// Why a row of a mailing's file is no recipient.
    RowProblem {
        EmailMissing = "email_missing",
        /// Not one name and one domain with an @ between them.
        EmailMalformed = "email_malformed",
        /// What stands before the @ cannot be delivered to.
        EmailLocalPart = "email_local_part",
        /// What stands after the @ is no domain.
        EmailDomain = "email_domain",
        EmailTooLong = "email_too_long",
        /// It says more than the header has columns for.
        TooManyFields = "too_many_fields",
        RowTooLong = "row_too_long",
    }
}

codes! {
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
        /// What the mailing says names a column that the file does not have.
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
