//! The enumerations of ingest. Each value has one text form in requests, rows and responses.

use crate::codes::codes;

codes! {
    /// Where entries are stored. A schema has its own table, its own policies and its own ids.
    Schema {
        Pkm = "pkm",
        PkmTest = "pkm_test",
    }
}

codes! {
    /// The system that an entry came from: `source.system`.
    System {
        Telegram = "telegram",
        Email = "email",
    }
}

codes! {
    ContentType {
        Thought = "thought",
        /// Another name for a thought, with the same kind of key.
        Note = "note",
        Link = "link",
        Newsletter = "newsletter",
        CorrespondenceThread = "correspondence_thread",
    }
}

codes! {
    PolicyKey {
        TelegramThoughtV1 = "telegram_thought_v1",
        TelegramLinkV1 = "telegram_link_v1",
        EmailNewsletterV1 = "email_newsletter_v1",
        EmailCorrespondenceThreadV1 = "email_correspondence_thread_v1",
    }
}

codes! {
    /// The action for an entry that already exists.
    ConflictAction {
        Skip = "skip",
        Update = "update",
    }
}

codes! {
    /// The columns that an update may change. Ids, creation times, policy and keys are not among
    /// them: they never change.
    Column {
        Source = "source",
        ContentType = "content_type",
        CleanText = "clean_text",
        Url = "url",
        CanonicalUrl = "canonical_url",
        From = "from",
        FromAddr = "from_addr",
        Subject = "subject",
        SubjectBase = "subject_base",
        Metadata = "metadata",
    }
}

impl PolicyKey {
    /// Returns the system whose entries the policy is for.
    pub const fn system(self) -> System {
        match self {
            Self::TelegramThoughtV1 | Self::TelegramLinkV1 => System::Telegram,
            Self::EmailNewsletterV1 | Self::EmailCorrespondenceThreadV1 => System::Email,
        }
    }
}

impl ContentType {
    /// Returns the policy that derives the keys of this type.
    pub const fn policy(self) -> PolicyKey {
        match self {
            Self::Thought | Self::Note => PolicyKey::TelegramThoughtV1,
            Self::Link => PolicyKey::TelegramLinkV1,
            Self::Newsletter => PolicyKey::EmailNewsletterV1,
            Self::CorrespondenceThread => PolicyKey::EmailCorrespondenceThreadV1,
        }
    }
}
