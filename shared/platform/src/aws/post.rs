//! Uploads by POST: a signed form that lets a client without AWS credentials upload to S3. Unlike a
//! presigned PUT, it limits the size of the upload. The SDK cannot create such forms.

use std::ops::RangeInclusive;
use std::time::{Duration, UNIX_EPOCH};

use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use umavez_domain::time::Timestamp;

use super::Aws;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The URL for the form and its fields, which must come in this order and before the field `file`.
/// Anyone who has them can upload.
#[derive(Clone)]
pub struct PresignedPost {
    pub url: String,
    pub fields: Vec<(String, String)>,
}

impl Aws {
    /// Creates a form that uploads one object with this key. The policy limits its size to `bytes`
    /// and is valid for `valid_for`.
    pub fn presigned_post(
        &self,
        bucket: &str,
        key: &str,
        bytes: RangeInclusive<u64>,
        more: &[(&'static str, String)],
        valid_for: Duration,
    ) -> PresignedPost {
        let now = self.clock.now();
        let until = now.plus_ms(i64::try_from(valid_for.as_millis()).unwrap_or(i64::MAX));
        let date = basic(now);
        let region = self.region.as_ref();
        let scope = format!("{}/{region}/s3/aws4_request", &date[..8]);
        let credential = format!("{}/{scope}", self.credentials.access_key_id());
        let mut fields = vec![("key", key.to_owned())];
        fields.extend(more.iter().cloned());
        fields.push(("x-amz-algorithm", ALGORITHM.to_owned()));
        fields.push(("x-amz-credential", credential));
        fields.push(("x-amz-date", date));
        fields.extend(self.credentials.session_token().map(|token| ("x-amz-security-token", token.to_owned())));
        let mut conditions = vec![json!({"bucket": bucket})];
        conditions.push(json!(["content-length-range", bytes.start(), bytes.end()]));
        conditions.extend(fields.iter().map(|(name, value)| json!(["eq", format!("${name}"), value])));
        let policy = json!({"expiration": until, "conditions": conditions});
        let policy = STANDARD.encode(policy.to_string());

        let at = UNIX_EPOCH + Duration::from_millis(u64::try_from(now.millis()).unwrap_or(0));
        let signing_key = generate_signing_key(self.credentials.secret_access_key(), at, region, "s3");
        let signature = calculate_signature(signing_key, policy.as_bytes());
        fields.push(("policy", policy));
        fields.push(("x-amz-signature", signature));
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let url = match self.endpoint("S3") {
            Some(endpoint) => format!("{}/{bucket}", endpoint.trim_end_matches('/')),
            None => format!("https://{bucket}.s3.{region}.amazonaws.com/"),
        };
        PresignedPost { url, fields }
    }
}

/// Formats a time as in `20260102T030405Z`.
fn basic(at: Timestamp) -> String {
    let text = Timestamp::from_seconds(at.seconds()).to_string();
    let digits: String = text.chars().filter(|letter| letter.is_ascii_digit() || *letter == 'T').take(15).collect();
    format!("{digits}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_the_format_of_aws_signatures() {
        let at = Timestamp::from_millis(1_735_948_800_123);
        assert_eq!(basic(at), "20250104T000000Z");
    }

    #[test]
    fn a_form_has_exactly_the_fields_of_its_policy() {
        let aws = Aws::at_endpoint("http://127.0.0.1:1/", "key");
        let form = aws.presigned_post(
            "b",
            "in/a b.csv",
            1..=9,
            &[("Content-Type", "text/csv".to_owned())],
            Duration::from_secs(60),
        );
        assert_eq!(form.url, "http://127.0.0.1:1/b");
        let field = |name: &str| form.fields.iter().find(|field| field.0 == name).map(|field| field.1.as_str());
        assert_eq!(field("key"), Some("in/a b.csv"));
        let policy = STANDARD.decode(field("policy").unwrap_or_default()).expect("base64");
        let policy: serde_json::Value = serde_json::from_slice(&policy).expect("JSON");
        let conditions = policy["conditions"].as_array().expect("a list");
        assert!(conditions.contains(&json!(["content-length-range", 1, 9])));
        assert!(conditions.contains(&json!(["eq", "$key", "in/a b.csv"])));
        let fields = form.fields.iter().filter(|field| !["policy", "x-amz-signature"].contains(&field.0.as_str()));
        for (name, value) in fields {
            assert!(conditions.contains(&json!(["eq", format!("${name}"), value])), "{name}");
        }
    }
}
