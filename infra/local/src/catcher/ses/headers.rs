//! Checks the custom headers of an email as SES does.

use serde_json::Value;

const MOST: usize = 15;
const LONGEST_NAME: usize = 126;
const LONGEST_VALUE: usize = 870;
/// Headers that SES sets itself.
const ITS_OWN: [&str; 12] = [
    "bcc",
    "cc",
    "content-disposition",
    "content-type",
    "date",
    "from",
    "message-id",
    "mime-version",
    "reply-to",
    "return-path",
    "subject",
    "to",
];

/// Returns the error with which SES would reject these headers.
pub(super) fn check(headers: &Value) -> Result<(), String> {
    let headers = headers.as_array().map(Vec::as_slice).unwrap_or_default();
    if headers.len() > MOST {
        return Err(violation("headers", &format!("Member must have length less than or equal to {MOST}")));
    }
    let mut names = Vec::new();
    for (index, header) in headers.iter().enumerate() {
        let at = |member: &str| format!("content.simple.headers.{}.member.{member}", index + 1);
        let (name, value) = (header["Name"].as_str(), header["Value"].as_str());
        let name = bounded(name, LONGEST_NAME, |letter| letter.is_ascii_graphic() && letter != ':')
            .map_err(|why| violation(&at("name"), &why))?
            .to_ascii_lowercase();
        bounded(value, LONGEST_VALUE, |letter| letter == ' ' || letter.is_ascii_graphic())
            .map_err(|why| violation(&at("value"), &why))?;
        if ITS_OWN.contains(&name.as_str()) {
            return Err(format!("Header {name} is not allowed: it is set by SES"));
        }
        if !name.starts_with("x-") && names.contains(&name) {
            return Err(format!("Duplicate header '{name}'."));
        }
        names.push(name);
    }
    Ok(())
}

/// Returns the text if it is not empty, not too long, and has only allowed characters.
fn bounded(text: Option<&str>, longest: usize, may: impl Fn(char) -> bool) -> Result<&str, String> {
    match text.unwrap_or_default() {
        "" => Err("Member must have length greater than or equal to 1".to_owned()),
        text if text.len() > longest => Err(format!("Member must have length less than or equal to {longest}")),
        text if !text.chars().all(may) => Err("Member must satisfy regular expression pattern".to_owned()),
        text => Ok(text),
    }
}

fn violation(at: &str, why: &str) -> String {
    format!("1 validation error detected: Value at '{at}' failed to satisfy constraint: {why}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(pairs: &[(&str, &str)]) -> Result<(), String> {
        check(&pairs.iter().map(|(name, value)| json!({"Name": name, "Value": value})).collect())
    }

    #[test]
    fn the_headers_of_a_mailing_list_are_accepted() {
        let post = ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click");
        let one_click = [("List-Unsubscribe", "<https://example.com/u?t=a%20b>, <mailto:u@example.com>"), post];
        assert_eq!(checked(&one_click), Ok(()));
        assert_eq!(checked(&[("X-A", "1"), ("X-A", "2")]), Ok(()));
        assert_eq!((check(&Value::Null), checked(&[("X", &"v".repeat(870))])), (Ok(()), Ok(())));
    }

    #[test]
    fn invalid_reserved_duplicate_and_too_many_headers_are_rejected() {
        let (long_name, long_value) = ("N".repeat(127), "v".repeat(871));
        for (header, why) in [
            (("", "v"), "headers.1.member.name"),
            (("A:B", "v"), "headers.1.member.name"),
            (("A B", "v"), "headers.1.member.name"),
            ((long_name.as_str(), "v"), "headers.1.member.name"),
            (("A", ""), "headers.1.member.value"),
            (("A", "v\r\nBcc: x@example.com"), "headers.1.member.value"),
            (("A", "ol\u{e1}"), "headers.1.member.value"),
            (("A", long_value.as_str()), "headers.1.member.value"),
            (("Subject", "v"), "Header subject is not allowed"),
            (("REPLY-TO", "v"), "Header reply-to is not allowed"),
        ] {
            let refused = checked(&[header]).expect_err("the header is rejected");
            assert!(refused.contains(why), "{header:?}: {refused}");
        }
        assert!(checked(&[("List-Id", "a"), ("list-id", "b")]).is_err());
        assert!(checked(&[("X", "v"); 16]).is_err());
    }
}
