//! The content of a message as it is stored in its row.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::channels::Channel;
use crate::codes::codes;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "channel", rename_all = "lowercase")]
pub enum Content {
    Email(Email),
    Telegram(Telegram),
    Whatsapp(Whatsapp),
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Email {
    /// An address, or `Name <address>`.
    pub from: String,
    pub subject: String,
    pub text: Option<String>,
    pub html: Option<String>,
    pub reply_to: Option<String>,
    /// Headers that the product itself adds: a caller cannot set any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

/// If there is `media`, `text` is its caption.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telegram {
    pub text: Option<String>,
    pub parse_mode: Option<ParseMode>,
    pub media: Option<TelegramMedia>,
    pub buttons: Option<Vec<Vec<Button>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TelegramMedia {
    pub kind: TelegramMediaKind,
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Button {
    pub text: String,
    pub url: String,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whatsapp {
    pub text: Option<String>,
    pub media: Option<WhatsappMedia>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatsappMedia {
    pub kind: WhatsappMediaKind,
    pub url: String,
    pub mimetype: Option<String>,
    pub file_name: Option<String>,
}

codes! {
    /// The values of the Bot API.
    ParseMode {
        MarkdownV2 = "MarkdownV2",
        Html = "HTML",
    }

    TelegramMediaKind {
        Photo = "photo",
        Video = "video",
    }

    WhatsappMediaKind {
        Image = "image",
        Video = "video",
        Document = "document",
        Audio = "audio",
    }
}

impl Content {
    /// Returns the text of the message, or the caption of its media.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Email(email) => email.text.as_deref(),
            Self::Telegram(telegram) => telegram.text.as_deref(),
            Self::Whatsapp(whatsapp) => whatsapp.text.as_deref(),
        }
    }

    pub const fn channel(&self) -> Channel {
        match self {
            Self::Email(_) => Channel::Email,
            Self::Telegram(_) => Channel::Telegram,
            Self::Whatsapp(_) => Channel::Whatsapp,
        }
    }
}
