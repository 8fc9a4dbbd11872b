//! Typed ids. An id is a prefix that names its kind, followed by the lower-case hex digits of a
//! hash. The id does not reveal its input, and the same input always makes the same id.

/// The text is not an id of the requested kind. The error leaves the text out, because it may come
/// from a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be {prefix:?} followed by {digits} lower-case hex digits")]
pub struct InvalidId {
    pub prefix: &'static str,
    pub digits: usize,
}

/// Returns whether `text` has exactly this many hex digits, all in lower case.
pub fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Defines an id type: `hash_id! { /// A message.  MessageId = "msg_", 32 }`.
///
/// Each invocation defines a separate type, so an id of one kind does not fit where another is
/// expected. An id is serialized as its text. Deserializing checks the text as `parse` does, so a
/// value of the type is always valid.
macro_rules! hash_id {
    ($(#[$meta:meta])* $name:ident = $prefix:literal, $digits:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// Hashes `text` into an id. The type's own constructors define which inputs are valid,
            /// and in which form.
            pub(crate) fn hash(text: &str) -> Self {
                Self(format!("{}{}", $prefix, &crate::keys::short_hash(text)[..$digits]))
            }

            /// Parses an id. `None` if the text is not a valid id of this kind.
            pub fn parse(text: &str) -> Option<Self> {
                Self::try_from(text.to_owned()).ok()
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = crate::id::InvalidId;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                match text.strip_prefix($prefix) {
                    Some(hash) if crate::id::is_hex(hash, $digits) => Ok(Self(text)),
                    _ => Err(crate::id::InvalidId { prefix: $prefix, digits: $digits }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
pub(crate) use hash_id;

#[cfg(test)]
mod tests {
    hash_id! {
        /// An id for these tests.
        TicketId = "tck_", 32
    }

    hash_id! {
        /// A shorter id, without a prefix.
        BareId = "", 16
    }

    #[test]
    fn an_id_consists_of_its_prefix_and_the_start_of_a_hash() {
        // sha256("abc") begins with these digits.
        assert_eq!(TicketId::hash("abc").as_str(), "tck_ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(BareId::hash("abc").as_str(), "ba7816bf8f01cfea");
        assert_ne!(TicketId::hash("abc"), TicketId::hash("abd"));
    }

    #[test]
    fn only_the_canonical_form_of_an_id_is_parsed() {
        let id = TicketId::hash("abc");
        assert_eq!(TicketId::parse(id.as_str()), Some(id.clone()));
        let (longer, upper) = (format!("{id}0"), id.as_str().to_uppercase());
        for text in ["", "tck_", "tck_ba78", &id.as_str()[4..], &longer, &upper, "msg_ba7816bf8f01cfea414140de5dae2223"]
        {
            assert_eq!(TicketId::parse(text), None, "{text}");
        }
        for text in ["ba7816bf8f01cfe", "ba7816bf8f01cfeg", "ba7816bf8f01cfea0", "ba7816bf8f01cféa"] {
            assert_eq!(BareId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_id_is_serialized_as_text_and_validated_when_it_is_deserialized() {
        let id = TicketId::hash("abc");
        let json = serde_json::to_string(&id).expect("serializes");
        assert_eq!(json, r#""tck_ba7816bf8f01cfea414140de5dae2223""#);
        assert_eq!(serde_json::from_str::<TicketId>(&json).expect("an id"), id);
        let error =
            serde_json::from_str::<TicketId>(r#""off_ba7816bf8f01cfea414140de5dae2223""#).expect_err("another kind");
        assert_eq!(error.to_string(), r#"must be "tck_" followed by 32 lower-case hex digits"#);
    }
}
