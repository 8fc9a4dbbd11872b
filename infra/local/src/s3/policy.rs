//! The policy of a form: the conditions of an upload, signed by the owner of the access key.

use std::ops::RangeInclusive;
use std::time::{Duration, UNIX_EPOCH};

use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use umavez_domain::time::Timestamp;

use super::access::secret_of;
use super::form::Form;
use super::presigned::from_basic;
use super::refuse;

/// Fields that need no condition.
const FREE: &[&str] = &["policy", "x-amz-signature", "file"];

type Checked<T> = Result<T, Box<Response>>;

/// Checks the signature and every condition. Returns how many bytes the file may have.
pub(super) fn check(form: &Form, bucket: &str, key: &str, now_ms: i64) -> Checked<RangeInclusive<u64>> {
    let Some(encoded) = form.field("policy") else {
        return no(403, "AccessDenied", "Access Denied");
    };
    check_signature(form, encoded)?;
    let policy = STANDARD.decode(encoded).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let Some(policy) = policy else {
        return no(400, "InvalidPolicyDocument", "Invalid Policy: Invalid JSON.");
    };
    let expiration = policy["expiration"].as_str().and_then(Timestamp::parse);
    let (Some(expiration), Some(conditions)) = (expiration, policy["conditions"].as_array()) else {
        return no(400, "InvalidPolicyDocument", "Invalid Policy: expiration and conditions are needed.");
    };
    if expiration.millis() <= now_ms {
        return no(403, "AccessDenied", "Invalid according to Policy: Policy expired.");
    }
    check_conditions(form, bucket, key, conditions)
}

fn check_signature(form: &Form, policy: &str) -> Checked<()> {
    let field = |name: &str| form.field(name).unwrap_or_default();
    let scope: Vec<_> = field("x-amz-credential").split('/').collect();
    let at = from_basic(field("x-amz-date")).and_then(|at| u64::try_from(at.millis()).ok());
    let (&[access_key, date, region, "s3", "aws4_request"], Some(at)) = (&scope[..], at) else {
        return no(400, "InvalidArgument", "x-amz-credential and x-amz-date are needed.");
    };
    if field("x-amz-algorithm") != "AWS4-HMAC-SHA256" || !field("x-amz-date").starts_with(date) {
        return no(
            400,
            "InvalidArgument",
            "x-amz-algorithm must be AWS4-HMAC-SHA256, and x-amz-date of the credential.",
        );
    }
    let at = UNIX_EPOCH + Duration::from_millis(at);
    let signing_key = generate_signing_key(secret_of(access_key), at, region, "s3");
    if calculate_signature(signing_key, policy.as_bytes()) != field("x-amz-signature") {
        let message = "The request signature we calculated does not match the signature you provided.";
        return no(403, "SignatureDoesNotMatch", message);
    }
    Ok(())
}

fn check_conditions(form: &Form, bucket: &str, key: &str, conditions: &[Value]) -> Checked<RangeInclusive<u64>> {
    let mut range = 0..=u64::MAX;
    let mut named = Vec::new();
    let field = |name: &str| match name {
        "bucket" => Some(bucket),
        "key" => Some(key),
        _ => form.field(name),
    };
    for condition in conditions {
        let holds = match Condition::of(condition) {
            Some(Condition::Length(lengths)) => {
                range = lengths;
                true
            }
            Some(Condition::Is(name, value)) => {
                let holds = field(&name) == Some(value);
                named.push(name);
                holds
            }
            Some(Condition::Begins(name, start)) => {
                let holds = field(&name).is_some_and(|value| value.starts_with(start));
                named.push(name);
                holds
            }
            None => return no(400, "InvalidPolicyDocument", "Invalid Policy: Invalid condition."),
        };
        if !holds {
            let message = format!("Invalid according to Policy: Policy Condition failed: {condition}");
            return no(403, "AccessDenied", &message);
        }
    }
    let is_named =
        |name: &str| FREE.contains(&name) || name.starts_with("x-ignore-") || named.iter().any(|n| n == name);
    match form.fields().find(|(name, _)| !is_named(name)) {
        Some((name, _)) => no(403, "AccessDenied", &format!("Invalid according to Policy: Extra input fields: {name}")),
        None => Ok(range),
    }
}

enum Condition<'a> {
    Is(String, &'a str),
    Begins(String, &'a str),
    Length(RangeInclusive<u64>),
}

impl<'a> Condition<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        if let Some(fields) = value.as_object() {
            let (name, wanted) = fields.iter().next().filter(|_| fields.len() == 1)?;
            return Some(Self::Is(name.to_lowercase(), wanted.as_str()?));
        }
        let [kind, first, second] = value.as_array()?.as_slice() else { return None };
        let kind = kind.as_str()?.to_lowercase();
        if kind == "content-length-range" {
            // S3 accepts both numbers and strings.
            let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
            return Some(Self::Length(number(first)?..=number(second)?));
        }
        let name = first.as_str()?.strip_prefix('$')?.to_lowercase();
        match kind.as_str() {
            "eq" => Some(Self::Is(name, second.as_str()?)),
            "starts-with" => Some(Self::Begins(name, second.as_str()?)),
            _ => None,
        }
    }
}

fn no<T>(status: u16, code: &str, message: &str) -> Checked<T> {
    Err(Box::new(refuse(status, code, message)))
}
