//! Percent-encoded text, as it stands in paths, queries and form bodies. What does not decode to
//! UTF-8 is replaced, never refused.

use percent_encoding::percent_decode_str;

pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// The pairs of a query or a form body, in their order. In these, unlike in a path, a plus is a
/// space.
pub(crate) fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
    })
}
