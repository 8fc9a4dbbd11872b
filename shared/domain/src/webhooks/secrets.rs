//! The secrets that verify webhooks. Two of each may be valid at once: the new secret of a
//! rotation, and the one that providers and retries still use.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::jwt::verify_hs256;
use super::standard::{self, key_bytes};
use crate::access::bearer;
use crate::time::Timestamp;

/// Evolution retries for about 20 minutes with the token of the first attempt, which lives for 10.
const EVOLUTION_LEEWAY_SECONDS: i64 = 1_500;

/// The tolerance of the reference libraries of Standard Webhooks.
const PAYMENT_TOLERANCE_SECONDS: i64 = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verified {
    Yes,
    No,
    /// There is no such bot or instance.
    NoSuchSource,
}

#[derive(Clone, Default, Deserialize)]
pub struct WebhookSecrets {
    #[serde(default)]
    telegram: BTreeMap<String, Tokens>,
    #[serde(default)]
    evolution: BTreeMap<String, EvolutionSecrets>,
    #[serde(default)]
    payments: BTreeMap<String, PaymentSecrets>,
    #[serde(default, deserialize_with = "key")]
    responder: Vec<u8>,
    #[serde(default, deserialize_with = "key")]
    responder_previous: Vec<u8>,
    #[serde(flatten)]
    _others: Others,
}

/// Unknown fields. This type also makes serde reject a list, which serde would otherwise read as
/// the fields in their order.
type Others = BTreeMap<String, IgnoredAny>;

/// The secrets of an instance. It is configured with a header of its own, with a `jwt_key`, or with
/// both while it changes from one to the other.
#[derive(Clone, Deserialize)]
struct EvolutionSecrets {
    #[serde(default = "default_header")]
    header: String,
    #[serde(default)]
    tokens: Tokens,
    #[serde(default)]
    jwt_keys: Tokens,
    #[serde(flatten)]
    _others: Others,
}

/// The secrets of a payment gateway, alone or with the gateway's own scheme.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum PaymentSecrets {
    Standard(Tokens),
    Of {
        #[serde(default)]
        scheme: PaymentScheme,
        #[serde(default)]
        secrets: Tokens,
    },
}

/// How a gateway signs. Each gateway with its own way to sign gets a name here, and a check beside
/// the one for Standard Webhooks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PaymentScheme {
    #[default]
    StandardWebhooks,
}

#[derive(Clone, Default, Deserialize)]
#[serde(from = "OneOrMany")]
struct Tokens(Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl WebhookSecrets {
    /// Parses the JSON of the secrets. Returns `None` if it cannot be read. This is an error in the
    /// configuration: the caller must then ask the provider to retry, and not report a wrong
    /// secret.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Verifies a request of Telegram. `header` is the value of `X-Telegram-Bot-Api-Secret-Token`.
    /// The header does not sign the body; the id of the update identifies a replay.
    pub fn verify_telegram(&self, bot: &str, header: Option<&str>) -> Verified {
        match self.telegram.get(bot) {
            Some(tokens) => Verified::of(header.is_some_and(|given| tokens.admit(given))),
            None => Verified::NoSuchSource,
        }
    }

    /// Verifies a request of Evolution. `header` returns the value of a header by its lower-case
    /// name.
    pub fn verify_evolution<'h>(
        &self,
        instance: &str,
        header: impl Fn(&str) -> Option<&'h str>,
        now: Timestamp,
    ) -> Verified {
        let Some(secrets) = self.evolution.get(instance) else { return Verified::NoSuchSource };
        let by_token = header(&secrets.header.to_ascii_lowercase()).is_some_and(|given| {
            secrets.tokens.admit(given) || bearer(given).is_some_and(|given| secrets.tokens.admit(given))
        });
        let by_jwt = || {
            let signed = |token: &str, key: &str| verify_hs256(token, key.as_bytes(), now, EVOLUTION_LEEWAY_SECONDS);
            let token = header("authorization").and_then(bearer);
            token.is_some_and(|token| secrets.jwt_keys.usable().any(|key| signed(token, key)))
        };
        Verified::of(by_token || by_jwt())
    }

    /// Verifies that the gateway of this name signed this body no more than five minutes ago.
    pub fn verify_payment<'h>(
        &self,
        gateway: &str,
        header: impl Fn(&str) -> Option<&'h str>,
        body: &[u8],
        now: Timestamp,
    ) -> Verified {
        let (scheme, secrets) = match self.payments.get(gateway) {
            Some(PaymentSecrets::Standard(secrets)) => (PaymentScheme::StandardWebhooks, secrets),
            Some(PaymentSecrets::Of { scheme, secrets }) => (*scheme, secrets),
            None => return Verified::NoSuchSource,
        };
        match scheme {
            PaymentScheme::StandardWebhooks => {
                let given = |name: &str| header(name).unwrap_or_default();
                let keys: Vec<Vec<u8>> = secrets.usable().map(key_bytes).collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let (id, timestamp) = (given("webhook-id"), given("webhook-timestamp"));
                let signature = given("webhook-signature");
                Verified::of(standard::verify(&keys, id, timestamp, signature, body, now, PAYMENT_TOLERANCE_SECONDS))
            }
        }
    }

    /// Returns the keys that sign requests to the responder, the current key first. Empty if there
    /// is none.
    pub fn responder_keys(&self) -> Vec<&[u8]> {
        let keys = [&self.responder, &self.responder_previous];
        keys.into_iter().map(Vec::as_slice).filter(|key| !key.is_empty()).collect()
    }
}

impl fmt::Debug for WebhookSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecrets(…)")
    }
}

impl Verified {
    const fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

impl Tokens {
    /// Returns whether `given` is one of the tokens. It compares hashes, so that the time does not
    /// reveal the length of a token, and it compares all of them, so that the time does not reveal
    /// which one matched.
    fn admit(&self, given: &str) -> bool {
        let given = Sha256::digest(given);
        let is_it = |token: &str| Sha256::digest(token).as_slice().ct_eq(given.as_slice());
        self.usable().fold(Choice::from(0), |found, token| found | is_it(token)).into()
    }

    /// Returns the tokens that are not blank: a blank secret matches nothing.
    fn usable(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str).filter(|token| !token.trim().is_empty())
    }
}

impl From<OneOrMany> for Tokens {
    fn from(tokens: OneOrMany) -> Self {
        match tokens {
            OneOrMany::One(token) => Self(vec![token]),
            OneOrMany::Many(tokens) => Self(tokens),
        }
    }
}

fn default_header() -> String {
    "x-webhook-token".to_owned()
}

fn key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let secret = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    Ok(if secret.trim().is_empty() { Vec::new() } else { key_bytes(&secret) })
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use hmac::Mac;

    use super::super::mac;
    use super::*;

    const NOW: i64 = 1_760_000_000;

    fn secrets() -> WebhookSecrets {
        WebhookSecrets::parse(
            r#"{
                "telegram": {"sales": "tok-1", "both": ["tok-new", "tok-old"], "blank": ["", " "], "none": []},
                "evolution": {
                    "loja": {"tokens": "evo-1"},
                    "own": {"header": "X-My-Token", "tokens": ["evo-new", "evo-old"]},
                    "auth": {"header": "Authorization", "tokens": "evo-2", "jwt_keys": "jwt-1"},
                    "jwt": {"jwt_keys": ["jwt-new", "jwt-old"]},
                    "blank": {"tokens": "", "jwt_keys": ["", " "]},
                    "bare": {}
                },
                "payments": {
                    "default": ["whsec_bmV3LXBheW1lbnQtc2VjcmV0", "whsec_b2xkLXBheW1lbnQtc2VjcmV0"],
                    "woovi": {"scheme": "standard_webhooks", "secrets": "plain words"},
                    "blank": ["", " "]
                },
                "responder": "whsec_T2k=",
                "responder_previous": "old words",
                "something_newer": {"unknown": true}
            }"#,
        )
        .expect("secrets")
    }

    fn evolution(instance: &str, headers: &[(&str, &str)], now: i64) -> Verified {
        let header = |name: &str| headers.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
        secrets().verify_evolution(instance, header, Timestamp::from_seconds(now))
    }

    /// Returns the header as Evolution builds it.
    fn bearer_of(key: &str) -> String {
        let claims = format!(r#"{{"iat":{NOW},"exp":{},"app":"evolution","action":"webhook"}}"#, NOW + 600);
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = mac(key.as_bytes()).chain_update(&signed).finalize().into_bytes();
        format!("Bearer {signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn payment(gateway: &str, secret: &str, age: i64, body: &[u8]) -> Verified {
        let signed_at = Timestamp::from_seconds(NOW - age);
        let signed = standard::sign(&[&key_bytes(secret)], "evt_1", signed_at, b"{}");
        let timestamp = signed.timestamp.to_string();
        let header = |name: &str| match name {
            "webhook-id" => Some(signed.id.as_str()),
            "webhook-timestamp" => Some(timestamp.as_str()),
            "webhook-signature" => Some(signed.signature.as_str()),
            _ => None,
        };
        secrets().verify_payment(gateway, header, body, Timestamp::from_seconds(NOW))
    }

    #[test]
    fn a_payment_is_verified_by_a_recent_signature() {
        for (gateway, secret) in [
            ("default", "whsec_bmV3LXBheW1lbnQtc2VjcmV0"),
            ("default", "whsec_b2xkLXBheW1lbnQtc2VjcmV0"),
            ("woovi", "plain words"),
        ] {
            assert_eq!(payment(gateway, secret, 0, b"{}"), Verified::Yes, "{gateway}");
            assert_eq!(payment(gateway, secret, 300, b"{}"), Verified::Yes, "{gateway}");
            assert_eq!(payment(gateway, secret, 301, b"{}"), Verified::No, "{gateway}");
            assert_eq!(payment(gateway, secret, -301, b"{}"), Verified::No, "{gateway}");
            assert_eq!(payment(gateway, secret, 0, b"{ }"), Verified::No, "{gateway}");
        }
        assert_eq!(payment("default", "plain words", 0, b"{}"), Verified::No);
        assert_eq!(payment("blank", "", 0, b"{}"), Verified::No);
        assert_eq!(payment("nobody", "plain words", 0, b"{}"), Verified::NoSuchSource);
        let unsigned = secrets().verify_payment("default", |_| None, b"{}", Timestamp::from_seconds(NOW));
        assert_eq!(unsigned, Verified::No);
    }

    #[test]
    fn a_telegram_request_is_verified_by_its_secret_token() {
        let secrets = secrets();
        assert_eq!(secrets.verify_telegram("sales", Some("tok-1")), Verified::Yes);
        assert_eq!(secrets.verify_telegram("both", Some("tok-new")), Verified::Yes);
        assert_eq!(secrets.verify_telegram("both", Some("tok-old")), Verified::Yes);
        for wrong in ["", " ", "tok-", "tok-11", "TOK-1", " tok-1", "tok-1,tok-1", "tok-1, tok-1", "tok-2", "tok-new"] {
            assert_eq!(secrets.verify_telegram("sales", Some(wrong)), Verified::No, "{wrong:?}");
        }
        assert_eq!(secrets.verify_telegram("sales", None), Verified::No);
    }

    #[test]
    fn a_token_with_a_flipped_bit_is_refused() {
        for bit in 0..5 * 8 {
            let mut bytes = b"tok-1".to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Ok(other) = String::from_utf8(bytes) else { continue };
            assert_eq!(secrets().verify_telegram("sales", Some(&other)), Verified::No, "{other:?}");
        }
    }

    #[test]
    fn a_blank_secret_verifies_no_request() {
        for given in [None, Some(""), Some(" ")] {
            for bot in ["blank", "none"] {
                assert_eq!(secrets().verify_telegram(bot, given), Verified::No);
            }
            for instance in ["blank", "bare"] {
                let headers = given.map(|given| [("x-webhook-token", given), ("authorization", given)]);
                let headers = headers.as_ref().map_or(&[][..], |headers| headers);
                assert_eq!(evolution(instance, headers, NOW), Verified::No);
            }
        }
        for key in ["", " "] {
            assert_eq!(evolution("blank", &[("authorization", &bearer_of(key))], NOW), Verified::No);
        }
    }

    #[test]
    fn an_unknown_source_is_distinguished_from_a_wrong_secret() {
        assert_eq!(secrets().verify_telegram("loja", Some("evo-1")), Verified::NoSuchSource);
        assert_eq!(secrets().verify_telegram("Sales", Some("tok-1")), Verified::NoSuchSource);
        assert_eq!(evolution("sales", &[("x-webhook-token", "tok-1")], NOW), Verified::NoSuchSource);
        assert_eq!(WebhookSecrets::default().verify_telegram("", Some("")), Verified::NoSuchSource);
    }

    #[test]
    fn an_evolution_request_is_verified_by_its_configured_header() {
        for (instance, header, value) in [
            ("loja", "x-webhook-token", "evo-1"),
            ("loja", "x-webhook-token", "Bearer evo-1"),
            ("own", "x-my-token", "evo-new"),
            ("own", "x-my-token", "evo-old"),
            ("auth", "authorization", "evo-2"),
            ("auth", "authorization", "bearer evo-2"),
        ] {
            assert_eq!(evolution(instance, &[(header, value)], NOW), Verified::Yes, "{instance} {value}");
        }
        for (instance, header, value) in [
            ("loja", "x-my-token", "evo-1"),
            ("loja", "authorization", "Bearer evo-1"),
            ("loja", "x-webhook-token", "evo-1,evo-1"),
            ("loja", "x-webhook-token", "Basic evo-1"),
            ("loja", "x-webhook-token", "Bearer"),
            ("loja", "x-webhook-token", ""),
            ("loja", "x-webhook-token", "evo-new"),
            ("own", "x-webhook-token", "evo-new"),
        ] {
            assert_eq!(evolution(instance, &[(header, value)], NOW), Verified::No, "{instance} {value}");
        }
        assert_eq!(evolution("loja", &[], NOW), Verified::No);
    }

    #[test]
    fn an_evolution_request_is_verified_by_its_jwt_for_as_long_as_it_is_retried() {
        for (instance, key) in [("jwt", "jwt-new"), ("jwt", "jwt-old"), ("auth", "jwt-1")] {
            let header = bearer_of(key);
            for (later, expected) in [(0, Verified::Yes), (2_099, Verified::Yes), (2_100, Verified::No)] {
                assert_eq!(evolution(instance, &[("authorization", &header)], NOW + later), expected, "{key} {later}");
            }
        }
        for wrong in [bearer_of("jwt-1"), bearer_of("jwt-new").replace("Bearer ", ""), "Bearer jwt-new".to_owned()] {
            assert_eq!(evolution("jwt", &[("authorization", &wrong)], NOW), Verified::No, "{wrong}");
        }
        assert_eq!(evolution("loja", &[("authorization", &bearer_of("evo-1"))], NOW), Verified::No, "not a JWT key");
    }

    #[test]
    fn requests_to_the_responder_are_signed_with_the_current_key_first() {
        assert_eq!(secrets().responder_keys(), [&b"Oi"[..], b"old words"]);
        let keys = |text| WebhookSecrets::parse(text).map(|secrets| secrets.responder_keys().len());
        assert_eq!(keys(r#"{"responder": "a"}"#), Some(1));
        assert_eq!(keys(r#"{"responder": "", "responder_previous": null}"#), Some(0));
        assert_eq!(keys("{}"), Some(0));
    }

    #[test]
    fn invalid_json_of_secrets_is_refused() {
        for text in [
            "",
            "null",
            "[]",
            "\"tok\"",
            "{",
            r#"{"telegram": "tok"}"#,
            r#"{"telegram": {"b": 1}}"#,
            r#"{"telegram": {"b": ["a", 1]}}"#,
            r#"{"evolution": {"i": "tok"}}"#,
            r#"{"evolution": {"i": ["tok", "tok"]}}"#,
            r#"{"responder": 1}"#,
        ] {
            assert!(WebhookSecrets::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn debug_output_contains_no_secret() {
        assert_eq!(format!("{:?}", secrets()), "WebhookSecrets(…)");
    }
}
