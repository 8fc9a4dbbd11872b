//! The words of ingest: each has one text, in requests, rows and answers.

use crate::codes::codes;

codes! {
    /// Where entries live. A schema has its own table, its own policies and its own ids.
    Schema {
        Pkm = "pkm",
        PkmTest = "pkm_test",
    }
}

codes! {
    /// Where an entry came from: `source.system`.
    System {
        Telegram = "telegram",
        Email = "email",
    }
}

codes! {
    ContentType {
        Thought = "thought",
        /// A thought by another name: keyed as one.
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
    /// What happens to an entry that is known already.
    ConflictAction {
        Skip = "skip",
        Update = "update",
    }
}

codes! {
    /// What an update may change. Ids, times of creation, policy and keys are not among them: they
    /// never change.
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

impl ContentType {
    /// The policy that keys this type.
    pub const fn policy(self) -> PolicyKey {
        match self {
            Self::Thought | Self::Note => PolicyKey::TelegramThoughtV1,
            Self::Link => PolicyKey::TelegramLinkV1,
            Self::Newsletter => PolicyKey::EmailNewsletterV1,
            Self::CorrespondenceThread => PolicyKey::EmailCorrespondenceThreadV1,
        }
    }
}
