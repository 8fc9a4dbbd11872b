//! Implements Standard Webhooks (<https://www.standardwebhooks.com>): signs requests to responders
//! and verifies requests of gateways.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::mac;
use crate::time::Timestamp;

const SECRET_PREFIX: &str = "whsec_";
const VERSION: &str = "v1";

/// Decodes base64 with or without padding: people copy secrets by hand and lose the `=`.
const UNPADDED_TOO: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The values of `webhook-id`, `webhook-timestamp` and `webhook-signature`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    pub id: String,
    pub timestamp: i64,
    pub signature: String,
}

/// Signs with each key, the current one first. `id` must be the same for every retry, and must not
/// contain a full stop, which separates the id from the time.
pub fn sign(keys: &[&[u8]], id: &str, now: Timestamp, body: &[u8]) -> Signed {
    let timestamp = now.seconds();
    let text = timestamp.to_string();
    let signatures: Vec<String> = usable(keys)
        .map(|key| STANDARD.encode(content(key, id, &text, body).finalize().into_bytes()))
        .map(|signature| format!("{VERSION},{signature}"))
        .collect();
    Signed { id: id.to_owned(), timestamp, signature: signatures.join(" ") }
}

/// Returns whether one of the keys signed this body under this id, at a time that differs from
/// `now` by no more than the tolerance, in either direction.
pub fn verify(
    keys: &[&[u8]],
    id: &str,
    timestamp: &str,
    signature: &str,
    body: &[u8],
    now: Timestamp,
    tolerance_seconds: i64,
) -> bool {
    if id.is_empty() || id.contains('.') || !is_near(timestamp, now, tolerance_seconds) {
        return false;
    }
    let given: Vec<Vec<u8>> = signature.split(' ').filter_map(read_signature).collect();
    usable(keys).any(|key| {
        let expected = content(key, id, timestamp, body);
        // Compares in constant time.
        given.iter().any(|given| expected.clone().verify_slice(given).is_ok())
    })
}

/// Returns the key of a secret: `whsec_` and base64, as the official libraries read it, which also
/// take it without `whsec_`. Text that is not base64 is the key itself.
pub fn key_bytes(secret: &str) -> Vec<u8> {
    let encoded = secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret);
    UNPADDED_TOO.decode(encoded).unwrap_or_else(|_| secret.as_bytes().to_vec())
}

fn usable<'k>(keys: &[&'k [u8]]) -> impl Iterator<Item = &'k [u8]> {
    keys.iter().copied().filter(|key| !key.is_empty())
}

/// Computes the MAC over id, time and body. The time is signed as it is written, so that the
/// signature is valid for no other spelling of it.
fn content(key: &[u8], id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    mac(key).chain_update(id).chain_update(".").chain_update(timestamp).chain_update(".").chain_update(body)
}

fn is_near(timestamp: &str, now: Timestamp, tolerance_seconds: i64) -> bool {
    let has_digits_only = timestamp.bytes().all(|byte| byte.is_ascii_digit());
    let Some(seconds) = timestamp.parse::<i64>().ok().filter(|_| has_digits_only) else { return false };
    now.seconds().saturating_sub(seconds).saturating_abs() <= tolerance_seconds
}

/// Decodes one entry of the list of signatures. `None` if the entry has another version: such
/// entries may be in the list and are ignored.
fn read_signature(entry: &str) -> Option<Vec<u8>> {
    let (version, signature) = entry.split_once(',')?;
    (version == VERSION).then(|| STANDARD.decode(signature).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const NOW: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const TOLERANCE: i64 = 300;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    /// Verifies the published example with the parts that the test replaces.
    fn holds(id: &str, timestamp: &str, signature: &str, body: &[u8]) -> bool {
        verify(&[&key_bytes(SECRET)], id, timestamp, signature, body, at(NOW), TOLERANCE)
    }

    #[test]
    fn the_published_example_is_signed_and_verified() {
        let signed = sign(&[&key_bytes(SECRET)], ID, at(NOW), BODY);
        assert_eq!(signed, Signed { id: ID.to_owned(), timestamp: NOW, signature: SIGNATURE.to_owned() });
        assert!(holds(ID, "1614265330", SIGNATURE, BODY));
    }

    /// From the tests of the official libraries: the secret without its prefix, and a list of
    /// signatures that contains ours.
    #[test]
    fn the_test_vectors_of_the_official_libraries_pass() {
        let bare = key_bytes(SECRET.trim_start_matches(SECRET_PREFIX));
        assert_eq!(bare, key_bytes(SECRET));
        assert!(verify(&[&bare], ID, "1614265330", SIGNATURE, BODY, at(NOW), TOLERANCE));
        let others = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= v2,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc=";
        assert!(holds(ID, "1614265330", &format!("{others} {SIGNATURE} {others}"), BODY));
        assert!(!holds(ID, "1614265330", others, BODY));
        // A signature without its version, and one of another version.
        for wrong in ["g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="]
        {
            assert!(!holds(ID, "1614265330", wrong, BODY), "{wrong}");
        }
        // Their tolerance is five minutes in both directions.
        for (seconds, near) in [(NOW - 300, true), (NOW - 301, false), (NOW + 300, true), (NOW + 301, false)] {
            let key = key_bytes(SECRET);
            assert_eq!(verify(&[&key], ID, "1614265330", SIGNATURE, BODY, at(seconds), TOLERANCE), near, "{seconds}");
        }
    }

    #[test]
    fn a_request_with_a_flipped_bit_is_refused() {
        let parts = [ID.as_bytes(), b"1614265330", SIGNATURE.as_bytes(), BODY];
        for (part, bytes) in parts.iter().enumerate() {
            for bit in 0..bytes.len() * 8 {
                let mut parts = parts.map(<[u8]>::to_vec);
                parts[part][bit / 8] ^= 1 << (bit % 8);
                let [id, timestamp, signature, body] = parts;
                let text = |bytes| String::from_utf8(bytes).ok();
                if let (Some(id), Some(timestamp), Some(signature)) = (text(id), text(timestamp), text(signature)) {
                    assert!(!holds(&id, &timestamp, &signature, &body), "bit {bit} of part {part}");
                }
            }
        }
    }

    #[test]
    fn a_request_is_accepted_only_within_the_tolerance() {
        for (later, expected) in [(-301, false), (-300, true), (0, true), (300, true), (301, false)] {
            let now = at(NOW + later);
            let keys: &[&[u8]] = &[&key_bytes(SECRET)];
            assert_eq!(verify(keys, ID, "1614265330", SIGNATURE, BODY, now, TOLERANCE), expected, "{later}");
        }
    }

    #[test]
    fn during_a_key_rotation_both_keys_sign_and_one_of_them_is_enough() {
        let (new, old): (&[u8], &[u8]) = (b"new", b"old");
        let signed = sign(&[new, old], "m", at(NOW), BODY);
        assert_eq!(signed.signature.split(' ').count(), 2);
        let taken = |keys: &[&[u8]], signature: &str| {
            verify(keys, "m", &signed.timestamp.to_string(), signature, BODY, at(NOW), TOLERANCE)
        };
        let (first, second) = signed.signature.split_once(' ').expect("two");
        assert!(taken(&[new], &signed.signature) && taken(&[old], &signed.signature));
        assert!(taken(&[new], first) && !taken(&[old], first), "the current key signs first");
        assert!(taken(&[old], second) && taken(&[new, old], second));
        assert!(!taken(&[b"other"], &signed.signature) && !taken(&[], &signed.signature));
    }

    #[test]
    fn an_empty_key_neither_signs_nor_verifies() {
        assert_eq!(sign(&[b""], ID, at(NOW), BODY).signature, "");
        let forged = STANDARD.encode(content(b"", ID, "1614265330", BODY).finalize().into_bytes());
        assert!(!verify(&[b""], ID, "1614265330", &format!("v1,{forged}"), BODY, at(NOW), TOLERANCE));
    }

    #[test]
    fn malformed_headers_are_refused() {
        let base64 = &SIGNATURE[3..];
        let signatures = [
            String::new(),
            " ".to_owned(),
            "v1".to_owned(),
            "v1,".to_owned(),
            base64.to_owned(),
            format!("v1 {base64}"),
            format!("v1={base64}"),
            format!("V1,{base64}"),
            format!("v1a,{base64}"),
            format!("v2,{base64}"),
            SIGNATURE.trim_end_matches('=').to_owned(),
            SIGNATURE.replace('+', "-").replace('/', "_"),
            format!("{SIGNATURE},{SIGNATURE}"),
            format!("{SIGNATURE}\t{SIGNATURE}"),
            SIGNATURE.to_lowercase(),
            format!("v1,{}", STANDARD.encode(&STANDARD.decode(base64).expect("base64")[..16])),
            format!("v1,{}", hex::encode(STANDARD.decode(base64).expect("base64"))),
        ];
        for signature in &signatures {
            assert!(!holds(ID, "1614265330", signature, BODY), "{signature:?}");
        }
        for timestamp in
            ["", " ", "+1614265330", "01614265330", "1614265330 ", "1614265330.0", "-1", "99999999999999999999"]
        {
            assert!(!holds(ID, timestamp, SIGNATURE, BODY), "{timestamp:?}");
        }
        for id in ["", " ", &format!("{ID},{ID}"), &ID.to_lowercase()] {
            assert!(!holds(id, "1614265330", SIGNATURE, BODY), "{id:?}");
        }
    }

    #[test]
    fn invalid_signatures_beside_a_valid_one_are_ignored() {
        for signature in
            [format!("v1,AAAA {SIGNATURE}"), format!("{SIGNATURE} {SIGNATURE}"), format!("v1a,x v2,y  {SIGNATURE} ")]
        {
            assert!(holds(ID, "1614265330", &signature, BODY), "{signature:?}");
        }
    }

    #[test]
    fn an_id_cannot_take_over_the_timestamp_that_follows_it() {
        let key: &[u8] = b"key";
        let timestamp = NOW.to_string();
        let body = format!("{timestamp}.rest");
        let signed = sign(&[key], "m", at(NOW), body.as_bytes());
        let id = format!("m.{timestamp}");
        assert!(verify(&[key], "m", &timestamp, &signed.signature, body.as_bytes(), at(NOW), TOLERANCE));
        assert!(!verify(&[key], &id, &timestamp, &signed.signature, b"rest", at(NOW), TOLERANCE));
    }

    #[test]
    fn a_key_is_decoded_from_base64_and_any_other_text_is_the_key_itself() {
        for text in ["whsec_T2k=", "whsec_T2k", "T2k="] {
            assert_eq!(key_bytes(text), b"Oi", "{text}");
        }
        for text in ["WHSEC_T2k=", "whsec_!", "whsec", "", "senha é"] {
            assert_eq!(key_bytes(text), text.as_bytes());
        }
        assert_eq!(key_bytes("whsec_"), b"");
    }
}
