//! Verifies JSON Web Tokens as far as webhooks need them: one algorithm and a mandatory expiry.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::mac;
use crate::time::{SECOND_MS, Timestamp};

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that the recipient must understand. We support none.
    crit: Option<IgnoredAny>,
}

/// Times in seconds since 1970, possibly with a fraction.
#[derive(Deserialize)]
struct Claims {
    exp: f64,
    nbf: Option<f64>,
    iat: Option<f64>,
}

/// Returns whether `key` signed this token with HMAC-SHA256 and the token is valid at this time.
/// The token does not choose its algorithm: any other than HS256 is rejected. A token without an
/// expiry is rejected too.
pub fn verify_hs256(token: &str, key: &[u8], now: Timestamp, leeway_seconds: i64) -> bool {
    let Some((signed, signature)) = token.rsplit_once('.') else { return false };
    let Some((header, claims)) = signed.split_once('.') else { return false };
    let is_ours = part::<Header>(header).is_some_and(|header| header.alg == "HS256" && header.crit.is_none());
    if !is_ours || !is_signed(signed, signature, key) {
        return false;
    }
    part::<Claims>(claims).is_some_and(|claims| claims.hold(now, leeway_seconds))
}

impl Claims {
    fn hold(&self, now: Timestamp, leeway_seconds: i64) -> bool {
        let now = now.millis() as f64 / SECOND_MS as f64;
        let leeway = leeway_seconds as f64;
        let has_come = |from: Option<f64>| from.is_none_or(|from| from <= now + leeway);
        now < self.exp + leeway && has_come(self.nbf) && has_come(self.iat)
    }
}

fn is_signed(signed: &str, signature: &str, key: &[u8]) -> bool {
    let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else { return false };
    // Compares in constant time.
    !key.is_empty() && mac(key).chain_update(signed).verify_slice(&signature).is_ok()
}

/// Decodes a JSON object. `None` if one of its fields occurs twice, because another reader might
/// take the other value.
fn part<T: DeserializeOwned>(encoded: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(encoded).ok()?;
    // serde would read a list as the fields in their order.
    if json.first() != Some(&b'{') {
        return None;
    }
    serde_json::from_slice(&json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"the jwt_key of an instance";
    const NOW: i64 = 1_760_000_000;
    const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

    /// The claims that Evolution sends.
    fn claims() -> String {
        format!(r#"{{"iat":{NOW},"exp":{},"app":"evolution","action":"webhook"}}"#, NOW + 600)
    }

    fn token(header: &str, claims: &str, key: &[u8]) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(mac(key).chain_update(&signed).finalize().into_bytes());
        format!("{signed}.{signature}")
    }

    fn holds(token: &str) -> bool {
        verify_hs256(token, KEY, Timestamp::from_seconds(NOW), 60)
    }

    fn holds_at(token: &str, seconds: i64) -> bool {
        verify_hs256(token, KEY, Timestamp::from_seconds(seconds), 60)
    }

    #[test]
    fn the_example_of_rfc_7515_is_valid_with_its_key_until_it_expires() {
        let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.\
            eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
            dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let key = URL_SAFE_NO_PAD.decode(key).expect("base64");
        assert!(verify_hs256(token, &key, Timestamp::from_millis(1_300_819_379_999), 0));
        assert!(!verify_hs256(token, &key, Timestamp::from_seconds(1_300_819_380), 0));
        assert!(!verify_hs256(token, KEY, Timestamp::from_seconds(1_300_819_379), 0));
    }

    #[test]
    fn a_token_is_valid_between_its_times_with_a_leeway() {
        let token = token(HEADER, &claims(), KEY);
        for (seconds, expected) in
            [(NOW, true), (NOW + 659, true), (NOW + 660, false), (NOW - 60, true), (NOW - 61, false)]
        {
            assert_eq!(holds_at(&token, seconds), expected, "{}", seconds - NOW);
        }
    }

    #[test]
    fn a_token_is_refused_before_its_nbf_time() {
        for (from, expected) in [(NOW + 60, true), (NOW + 61, false)] {
            let claims = format!(r#"{{"exp":{},"nbf":{from}.0}}"#, NOW + 600);
            assert_eq!(holds(&token(HEADER, &claims, KEY)), expected);
        }
    }

    #[test]
    fn a_token_with_another_algorithm_is_refused() {
        let headers = [
            r#"{"alg":"none"}"#,
            r#"{"alg":"None","typ":"JWT"}"#,
            r#"{"alg":"RS256"}"#,
            r#"{"alg":"ES256"}"#,
            r#"{"alg":"HS384"}"#,
            r#"{"alg":"HS512"}"#,
            r#"{"alg":"hs256"}"#,
            r#"{"alg":"HS256 "}"#,
            r#"{"alg":["HS256"]}"#,
            r#"{"alg":null}"#,
            r#"{"alg":"none","alg":"HS256"}"#,
            r#"{"alg":"HS256","crit":["b64"],"b64":false}"#,
            r#"{"typ":"JWT"}"#,
            r#"["HS256"]"#,
            "{}",
            "",
            "HS256",
        ];
        for header in headers {
            let signed = token(header, &claims(), KEY);
            assert!(!holds(&signed), "{header}");
            let unsigned = &signed[..=signed.rfind('.').expect("a dot")];
            assert!(!holds(unsigned), "{header}, unsigned");
        }
    }

    #[test]
    fn claims_that_are_not_times_are_refused() {
        let late = NOW + 600;
        let all = [
            "{}".to_owned(),
            format!(r#"{{"exp":"{late}"}}"#),
            r#"{"exp":null}"#.to_owned(),
            r#"{"exp":true}"#.to_owned(),
            r#"{"exp":-1}"#.to_owned(),
            r#"{"exp":1e999}"#.to_owned(),
            format!(r#"{{"exp":1,"exp":{late}}}"#),
            format!(r#"{{"exp":{late},"nbf":"{NOW}"}}"#),
            format!(r#"{{"exp":{late},"iat":{{}}}}"#),
            format!("[{late}]"),
            format!("{late}"),
            String::new(),
        ];
        for claims in all {
            assert!(!holds(&token(HEADER, &claims, KEY)), "{claims}");
        }
    }

    #[test]
    fn a_malformed_token_is_refused() {
        let good = token(HEADER, &claims(), KEY);
        assert!(holds(&good));
        let parts: Vec<_> = good.split('.').collect();
        let others = [
            String::new(),
            ".".to_owned(),
            "..".to_owned(),
            "...".to_owned(),
            format!("{}.{}", parts[0], parts[1]),
            format!("{}.{}.", parts[0], parts[1]),
            format!("{good}."),
            format!(".{good}"),
            format!("{good}="),
            format!("{good},{good}"),
            format!("{good} "),
            format!(" {good}"),
            format!("{good}.{}", parts[2]),
            format!("{}.{}.{}", parts[1], parts[0], parts[2]),
            format!("{}.{}.{}", parts[0], parts[1], &parts[2][..20]),
            good.to_lowercase(),
        ];
        for other in others {
            assert!(!holds(&other), "{other}");
        }
    }

    #[test]
    fn a_token_signed_with_another_key_or_an_empty_key_is_refused() {
        assert!(!holds(&token(HEADER, &claims(), b"another")));
        let unsigned = token(HEADER, &claims(), b"");
        assert!(!verify_hs256(&unsigned, b"", Timestamp::from_seconds(NOW), 60));
    }

    #[test]
    fn a_token_with_a_flipped_bit_is_refused() {
        let good = token(HEADER, &claims(), KEY);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                if let Ok(other) = String::from_utf8(bytes) {
                    assert!(!holds(&other), "bit {bit} of {at}");
                }
            }
        }
    }
}
