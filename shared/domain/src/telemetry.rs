//! The closed lists of log events and metrics. Operators search for these names and build alarms on
//! them. `docs/reference/logs.md` and `docs/reference/metrics.md` describe each; a test compares
//! the pages with these lists.

use crate::codes::codes;

codes! {
    /// The `event` of a log line: a thing, and what happened to it or the state that it reached.
    Event {
        RequestAnswered = "REQUEST_ANSWERED",
        KeyChecked = "KEY_CHECKED",
        RecordHandled = "RECORD_HANDLED",
        RecordPostponed = "RECORD_POSTPONED",
        RecordFailed = "RECORD_FAILED",
        RecordUnreadable = "RECORD_UNREADABLE",
        RecordNotHidden = "RECORD_NOT_HIDDEN",
        RecordNotSetAside = "RECORD_NOT_SET_ASIDE",
        OutboundSwept = "OUTBOUND_SWEPT",
        DownsellsSwept = "DOWNSELLS_SWEPT",
        RecoveryRan = "RECOVERY_RAN",

        FunctionNotStarted = "FUNCTION_NOT_STARTED",
        FunctionPanicked = "FUNCTION_PANICKED",
        WriteConflicted = "WRITE_CONFLICTED",
        IndexNotRead = "INDEX_NOT_READ",
        RowNotHandled = "ROW_NOT_HANDLED",
        RateLimitNotStored = "RATE_LIMIT_NOT_STORED",
        RateLimitNotRead = "RATE_LIMIT_NOT_READ",
        CredentialsNotRead = "CREDENTIALS_NOT_READ",
        SecretNotRead = "SECRET_NOT_READ",
        LeaseNotRenewed = "LEASE_NOT_RENEWED",

        IntentHeld = "INTENT_HELD",
        IntentReleased = "INTENT_RELEASED",
        IntentExpired = "INTENT_EXPIRED",

        OutboundAccepted = "OUTBOUND_ACCEPTED",
        OutboundDeduped = "OUTBOUND_DEDUPED",
        OutboundSent = "OUTBOUND_SENT",
        OutboundRetryScheduled = "OUTBOUND_RETRY_SCHEDULED",
        OutboundDeferred = "OUTBOUND_DEFERRED",
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
        OutboundDeliveryReported = "OUTBOUND_DELIVERY_REPORTED",
        OutboundNotPostponed = "OUTBOUND_NOT_POSTPONED",
        SuppressionAdded = "SUPPRESSION_ADDED",
        SuppressionRemoved = "SUPPRESSION_REMOVED",

        EntryInserted = "ENTRY_INSERTED",
        EntrySkipped = "ENTRY_SKIPPED",
        EntryUpdated = "ENTRY_UPDATED",
        TestModeChanged = "TEST_MODE_CHANGED",
        TestModeHistoryNotPruned = "TEST_MODE_HISTORY_NOT_PRUNED",
        PolicyChanged = "POLICY_CHANGED",
        BackfillCreated = "BACKFILL_CREATED",
        BackfillCompleted = "BACKFILL_COMPLETED",
        BackfillFailed = "BACKFILL_FAILED",

        MailingCreated = "MAILING_CREATED",
        /// A caller uploaded a file again under its own name.
        MailingRepeated = "MAILING_REPEATED",
        MailingImported = "MAILING_IMPORTED",
        MailingImportFailed = "MAILING_IMPORT_FAILED",
        MailingContentMissing = "MAILING_CONTENT_MISSING",
        /// It was paused, resumed, canceled, given content or retried.
        MailingChanged = "MAILING_CHANGED",
        /// It paused by itself, because SES accepts no mail from its account or identity.
        MailingHeld = "MAILING_HELD",
        MailingTurnEnded = "MAILING_TURN_ENDED",
        MailingTurnFailed = "MAILING_TURN_FAILED",
        MailingRecipientNotSent = "MAILING_RECIPIENT_NOT_SENT",
        MailingDeliveryReported = "MAILING_DELIVERY_REPORTED",
        MailingReconciled = "MAILING_RECONCILED",
        MailingCompleted = "MAILING_COMPLETED",
        /// Its shards are finished but have another number of entries than the import created: an
        /// operator must investigate.
        MailingMismatched = "MAILING_MISMATCHED",
        MailingRecovered = "MAILING_RECOVERED",
        MailingUnsubscribed = "MAILING_UNSUBSCRIBED",
        UnsubscribeFailed = "UNSUBSCRIBE_FAILED",
        UploadNotDeleted = "UPLOAD_NOT_DELETED",

        ConversationMessageReceived = "CONVERSATION_MESSAGE_RECEIVED",
        ConversationBatchAdvanced = "CONVERSATION_BATCH_ADVANCED",
        /// The responder did not answer when asked: a person is needed.
        ConversationNeedsHuman = "CONVERSATION_NEEDS_HUMAN",
        /// The retention period removed messages before they were answered.
        ConversationMessagesExpired = "CONVERSATION_MESSAGES_EXPIRED",
        ConversationMessagesKept = "CONVERSATION_MESSAGES_KEPT",
        ConversationHeld = "CONVERSATION_HELD",
        ConversationReleased = "CONVERSATION_RELEASED",
        ConversationRecovered = "CONVERSATION_RECOVERED",
        InstanceChanged = "INSTANCE_CHANGED",
        WebhookRefused = "WEBHOOK_REFUSED",

        BotChanged = "BOT_CHANGED",
        DownsellChanged = "DOWNSELL_CHANGED",
        StartHandled = "START_HANDLED",
        DownsellScheduled = "DOWNSELL_SCHEDULED",
        DownsellEnqueued = "DOWNSELL_ENQUEUED",
        DownsellSent = "DOWNSELL_SENT",
        DownsellRetryScheduled = "DOWNSELL_RETRY_SCHEDULED",
        DownsellFailed = "DOWNSELL_FAILED",
        DownsellUnknown = "DOWNSELL_UNKNOWN",
        DownsellSkipped = "DOWNSELL_SKIPPED",
        DownsellCanceled = "DOWNSELL_CANCELED",
        /// The offer's charge expired; the offer now belongs to the contact's newest unpaid charge.
        DownsellPassedOn = "DOWNSELL_PASSED_ON",
        /// The offer's own `not_after` passed.
        DownsellExpired = "DOWNSELL_EXPIRED",
        DownsellRecovered = "DOWNSELL_RECOVERED",
        PaymentReported = "PAYMENT_REPORTED",
        /// A payment or an expiry names another owner than the stored transaction has. The stored
        /// owner counted.
        PaymentOwnerDiffers = "PAYMENT_OWNER_DIFFERS",
        /// A payment was stored whose contact is not known yet.
        PaymentOwnerUnknown = "PAYMENT_OWNER_UNKNOWN",
    }

    /// A metric in CloudWatch: a plural noun for a count; a unit at the end for a duration.
    Metric {
        HttpRequests = "HttpRequests",

        IntentsHeld = "IntentsHeld",
        IntentsDeduped = "IntentsDeduped",
        IntentsReleased = "IntentsReleased",
        IntentsExpired = "IntentsExpired",
        IntentExpiryLatenessSeconds = "IntentExpiryLatenessSeconds",

        OutboundEvents = "OutboundEvents",
        OutboundOrders = "OutboundOrders",
        OutboundWaitSeconds = "OutboundWaitSeconds",
        OutboundEnqueued = "OutboundEnqueued",
        OutboundNotEnqueued = "OutboundNotEnqueued",
        OutboundRecovered = "OutboundRecovered",
        OutboundUnknown = "OutboundUnknown",
        OutboundHeld = "OutboundHeld",
        CredentialsMissing = "CredentialsMissing",
        Suppressions = "Suppressions",
        DeliveryEvents = "DeliveryEvents",

        Entries = "Entries",
        BackfillLines = "BackfillLines",

        MailingsCreated = "MailingsCreated",
        MailingsRepeated = "MailingsRepeated",
        MailingRows = "MailingRows",
        MailingEntries = "MailingEntries",
        MailingsHeld = "MailingsHeld",
        MailingMismatches = "MailingMismatches",
        MailingUnsubscribes = "MailingUnsubscribes",

        ConversationMessages = "ConversationMessages",
        ConversationBatches = "ConversationBatches",
        ConversationsNeedHuman = "ConversationsNeedHuman",
        ConversationMessagesExpired = "ConversationMessagesExpired",
        ConversationsRecovered = "ConversationsRecovered",
        OldestUnansweredSeconds = "OldestUnansweredSeconds",
        WebhooksRefused = "WebhooksRefused",
        WebhooksIgnored = "WebhooksIgnored",

        DownsellsScheduledStart = "DownsellsScheduledStart",
        DownsellsScheduledPix = "DownsellsScheduledPix",
        DownsellsEnqueued = "DownsellsEnqueued",
        DownsellsNotEnqueued = "DownsellsNotEnqueued",
        DownsellsSent = "DownsellsSent",
        DownsellsFailed = "DownsellsFailed",
        DownsellsUnknown = "DownsellsUnknown",
        DownsellsSkippedGate = "DownsellsSkippedGate",
        DownsellsSkippedOther = "DownsellsSkippedOther",
        DownsellsCanceledPaid = "DownsellsCanceledPaid",
        DownsellsCanceledExpired = "DownsellsCanceledExpired",
        DownsellsCanceledOther = "DownsellsCanceledOther",
        DownsellsPassedOn = "DownsellsPassedOn",
        DownsellsExpired = "DownsellsExpired",
        DownsellsRecovered = "DownsellsRecovered",
        DownsellLatenessMs = "DownsellLatenessMs",
        PaymentsOwnerUnknown = "PaymentsOwnerUnknown",
    }
}
