//! Percent-encoded text in paths, queries and form bodies. Bytes that do not decode to UTF-8 are
//! replaced; nothing is rejected.

use percent_encoding::percent_decode_str;

pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Returns the pairs of a query or a form body, in order. Unlike in a path, a plus sign is a space
/// here.
pub(crate) fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
    })
}
