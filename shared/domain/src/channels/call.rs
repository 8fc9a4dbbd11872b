//! One HTTP request to a provider, as a value.

use std::fmt;

/// An HTTP request. `path` is relative to the provider's base URL and starts with a slash.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpCall {
    pub method: &'static str,
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl HttpCall {
    pub(super) fn post_json(path: String, body: &serde_json::Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { method: "POST", path, headers, body: body.to_string() }
    }
}

/// Safe for logs: shows no credential (Telegram has it in the path, Evolution in a header), no
/// address and no content.
impl fmt::Debug for HttpCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("HttpCall")
            .field("method", &self.method)
            .field("path", &masked(&self.path))
            .field("headers", &names)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// Hides the text between `/bot` and the last slash.
fn masked(path: &str) -> String {
    if !path.starts_with("/bot") {
        return path.to_owned();
    }
    match path.rsplit_once('/') {
        Some((token, method)) if !token.is_empty() => format!("/bot***/{method}"),
        _ => "/bot***".to_owned(),
    }
}

/// Encodes `text` as one segment of a path: nothing in it can end the segment, the path or the
/// request line.
pub(crate) fn segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' => {
                segment.push(char::from(byte))
            }
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(path: &str) -> HttpCall {
        HttpCall {
            method: "POST",
            path: path.to_owned(),
            headers: vec![("apikey", "k3y".to_owned())],
            body: "hello +5511999999999".to_owned(),
        }
    }

    #[test]
    fn debug_output_contains_neither_credentials_nor_content() {
        let text = format!("{:?}", call("/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage"));
        assert_eq!(
            text,
            r#"HttpCall { method: "POST", path: "/bot***/sendMessage", headers: ["apikey"], body_bytes: 20 }"#
        );
    }

    #[test]
    fn debug_output_hides_a_token_of_any_shape() {
        for path in ["/bot1:se/cret/sendMessage", "/bot1:secret", "/botsecret/"] {
            let text = format!("{:?}", call(path));
            assert!(!text.contains("cret"), "{text}");
        }
    }

    #[test]
    fn a_path_segment_is_percent_encoded() {
        assert_eq!(segment("110201543:AAH-dq_T"), "110201543:AAH-dq_T");
        assert_eq!(segment("minha loja/../x?y#z\r\n"), "minha%20loja%2F..%2Fx%3Fy%23z%0D%0A");
        assert_eq!(segment("ação"), "a%C3%A7%C3%A3o");
    }
}
