//! Presigned URLs: who signed them, and when they expire. The emulator checks the signature.

use axum::response::Response;
use http::Uri;
use percent_encoding::percent_decode_str;
use umavez_domain::time::Timestamp;

use super::refuse;
use crate::clock::Clock;

/// One week, the longest that S3 accepts.
const LONGEST: i64 = 604_800;

/// Returns the credential of a presigned URL.
pub fn signer(uri: &Uri) -> Option<String> {
    parameter(uri, "X-Amz-Credential")
}

/// Returns the error response if this is a presigned URL that is invalid or has expired.
pub(super) fn refusal(uri: &Uri, clock: &Clock) -> Option<Response> {
    parameter(uri, "X-Amz-Signature")?;
    let begins = parameter(uri, "X-Amz-Date").and_then(|date| from_basic(&date));
    let seconds = parameter(uri, "X-Amz-Expires").and_then(|seconds| seconds.parse::<i64>().ok());
    let (Some(begins), Some(seconds)) = (begins, seconds.filter(|seconds| (0..=LONGEST).contains(seconds))) else {
        let message = "X-Amz-Expires must be between 0 and 604800 seconds, and X-Amz-Date a time";
        return Some(refuse(400, "AuthorizationQueryParametersError", message));
    };
    let over = clock.now_ms() > begins.plus_ms(seconds * 1_000).millis();
    over.then(|| refuse(403, "AccessDenied", "Request has expired"))
}

fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(found, _)| *found == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// Parses a basic ISO 8601 time such as `20260102T030405Z`.
pub(super) fn from_basic(text: &str) -> Option<Timestamp> {
    let part = |from: usize, to: usize| text.get(from..to);
    let (date, time) = ((part(0, 4)?, part(4, 6)?, part(6, 8)?), (part(9, 11)?, part(11, 13)?, part(13, 15)?));
    let text = format!("{}-{}-{}T{}:{}:{}Z", date.0, date.1, date.2, time.0, time.1, time.2);
    Timestamp::parse(&text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_date_of_a_signature_is_parsed() {
        assert_eq!(from_basic("20250104T000001Z"), Timestamp::parse("2025-01-04T00:00:01Z"));
        assert_eq!(from_basic("yesterday"), None);
    }

    #[test]
    fn the_signer_of_a_presigned_url_is_found() {
        let uri: Uri = "/b/k?X-Amz-Credential=local-a%2F20260101%2Fus-east-1%2Fs3%2Faws4_request".parse().unwrap();
        assert_eq!(signer(&uri).as_deref(), Some("local-a/20260101/us-east-1/s3/aws4_request"));
        assert_eq!(signer(&"/b/k".parse().unwrap()), None);
    }
}
