//! The shared test vectors, and the named tests of the first system for the pure rules.

use serde::Deserialize;
use umavez_domain::fields::parse_uuid;
use umavez_domain::intents::{Check, IntentTypes};
use umavez_domain::time::Timestamp;

#[derive(Deserialize)]
struct Vector {
    client_id: String,
    intent_type: String,
    reference_id: Option<String>,
    at: String,
    window_days: u32,
    bucket: i64,
    fingerprint: String,
}

#[test]
fn every_vector_has_its_bucket_and_fingerprint() {
    let vectors: Vec<Vector> = serde_json::from_str(include_str!("data/intents.json")).expect("vectors");
    let types = IntentTypes::with_options("{}").expect("built in");
    assert_eq!(vectors.len(), 40);
    for vector in vectors {
        let client = parse_uuid(&vector.client_id).expect("a UUID");
        let reference = vector.reference_id.as_deref().map(|id| parse_uuid(id).expect("a UUID"));
        let known = types.get(&vector.intent_type).expect("a known type");
        let at = Timestamp::parse(&vector.at).expect("a time");
        let check = Check::new(client, known, reference, at);
        assert_eq!(known.window_days, vector.window_days, "{}", vector.intent_type);
        assert_eq!(check.bucket, vector.bucket, "{}", vector.at);
        assert_eq!(check.fingerprint, vector.fingerprint, "{} {}", vector.intent_type, vector.at);
    }
}

fn fingerprint(intent_type: &str, reference: &str, at: &str) -> String {
    let types = IntentTypes::with_options("{}").expect("built in");
    let client = parse_uuid("91b7584a-d8f1-4cd6-b0e1-414c1027c4d1").expect("a UUID");
    let at = Timestamp::parse(at).expect("a time");
    Check::new(client, types.get(intent_type).expect("known"), parse_uuid(reference), at).fingerprint
}

const VAGA_A: &str = "1e2feb89-7ed4-4c2c-9cc4-a6ce78e51061";
const VAGA_B: &str = "d5f4b3b2-63ca-46ec-a6e0-c464c324c985";

#[test]
fn test_janelas_diferentes_fingerprints_diferentes() {
    let today = fingerprint("offer_active", VAGA_A, "2026-03-10T23:59:59Z");
    assert_eq!(today, fingerprint("offer_active", VAGA_A, "2026-03-10T00:00:00Z"));
    assert_ne!(today, fingerprint("offer_active", VAGA_A, "2026-03-11T00:00:00Z"));
}

#[test]
fn test_reference_id_diferente_fingerprint_diferente() {
    let at = "2026-03-10T12:00:00Z";
    assert_ne!(fingerprint("offer_active", VAGA_A, at), fingerprint("offer_active", VAGA_B, at));
}
