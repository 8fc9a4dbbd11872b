use super::*;
use crate::model::Generated;

const ARN: &str = "arn:aws:secretsmanager:us-east-1:000000000000:secret:a-local0";

fn secret() -> Secret {
    Secret { logical_id: "A".into(), name: "a".into(), arn: ARN.into(), value: SecretValue::Given("{}".into()) }
}

fn open(given: Value, file: Option<PathBuf>) -> Secrets {
    let given = serde_json::from_value(given).unwrap();
    Secrets::open(&[secret()], &given, file, Clock::new(0)).unwrap()
}

fn get(secrets: &Secrets, id: &str) -> Result<Value, Refusal> {
    secrets.handle("GetSecretValue", json!({"SecretId": id}).to_string().as_bytes())
}

fn put(secrets: &Secrets, value: &str, token: &str) -> Result<Value, Refusal> {
    let request = json!({"SecretId": ARN, "SecretString": value, "ClientRequestToken": token});
    secrets.handle("PutSecretValue", request.to_string().as_bytes())
}

fn value(secrets: &Secrets) -> Value {
    get(secrets, "a").unwrap()["SecretString"].clone()
}

#[test]
fn a_secret_is_read_by_its_name_or_arn() {
    let secrets = open(json!({}), None);
    for id in ["a", ARN] {
        let got = get(&secrets, id).unwrap();
        assert_eq!((&got["ARN"], &got["Name"], &got["SecretString"]), (&json!(ARN), &json!("a"), &json!("{}")));
        assert_eq!(got["VersionStages"], json!(["AWSCURRENT"]));
        assert!(got["VersionId"].is_string() && got["CreatedDate"].as_f64() > Some(1.6e9));
    }
    for unknown in ["b", "A", ""] {
        assert_eq!(get(&secrets, unknown).unwrap_err().kind, "ResourceNotFoundException");
    }
    let previous = json!({"SecretId": "a", "VersionStage": "AWSPREVIOUS"}).to_string();
    assert_eq!(secrets.handle("GetSecretValue", previous.as_bytes()).unwrap_err().kind, "ResourceNotFoundException");
    assert_eq!(secrets.handle("DeleteSecret", br#"{"SecretId": "a"}"#).unwrap_err().kind, "InvalidRequestException");
}

#[test]
fn a_local_value_overrides_the_template_and_a_put_overrides_both() {
    let secrets = open(json!({"A": {"key": "x"}, "Unknown": 1}), None);
    assert_eq!(value(&secrets), r#"{"key":"x"}"#);
    secrets.set("A", &json!({"key": "y"})).unwrap();
    assert_eq!(value(&secrets), r#"{"key":"y"}"#);
    secrets.set("a", &json!("plain")).unwrap();
    assert_eq!(value(&secrets), "plain");
    let unknown = secrets.set("b", &json!("secret-value")).unwrap_err().to_string();
    assert_eq!(unknown, r#"there is no secret "b"; there are A"#);
}

#[test]
fn a_retried_put_creates_one_version() {
    let secrets = open(json!({}), None);
    let before = get(&secrets, "a").unwrap()["VersionId"].clone();
    let first = put(&secrets, "x", "token-1").unwrap();
    assert_eq!((&first["VersionId"], &first["VersionStages"]), (&json!("token-1"), &json!(["AWSCURRENT"])));
    assert_ne!(get(&secrets, "a").unwrap()["VersionId"], before);
    assert_eq!(put(&secrets, "x", "token-1"), Ok(first));
    assert_eq!(put(&secrets, "y", "token-1").unwrap_err().kind, "ResourceExistsException");
    assert_eq!(value(&secrets), "x");
}

#[test]
fn a_put_value_survives_a_restart_and_others_follow_the_file() {
    let directory = std::env::temp_dir().join(format!("umavez-secrets-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("secrets.json");
    let _ = fs::remove_file(&file);
    assert_eq!(value(&open(json!({"A": "one"}), Some(file.clone()))), "one");
    let again = open(json!({"A": "two"}), Some(file.clone()));
    assert_eq!(value(&again), "two");
    again.set("A", &json!("three")).unwrap();
    assert_eq!(value(&open(json!({"A": "four"}), Some(file.clone()))), "three");
    fs::write(&file, "{\"A\": \"hidden").unwrap();
    let refused = Secrets::open(&[secret()], &BTreeMap::new(), Some(file), Clock::new(0)).err().unwrap().to_string();
    assert!(refused.contains("cannot be read") && !refused.contains("hidden"), "{refused}");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_error_for_a_file_that_cannot_be_read_has_its_path() {
    let directory = std::env::temp_dir();
    let refused = read_values(&directory).unwrap_err().to_string();
    assert!(refused.starts_with(&format!("{} cannot be read: ", directory.display())), "{refused}");
}

#[test]
fn a_generated_value_is_kept_until_another_is_given() {
    let directory = std::env::temp_dir().join(format!("umavez-made-up-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let file = || Some(directory.join("secrets.json"));
    let open = |given: Value, file: Option<PathBuf>| {
        let fields = serde_json::from_str(r#"{"v": 1}"#).unwrap();
        let into = Some((fields, "key".to_owned()));
        let made_up = SecretValue::Generated(Generated { length: 43, punctuation: false, into });
        let secret = Secret { value: made_up, ..secret() };
        Secrets::open(&[secret], &serde_json::from_value(given).unwrap(), file, Clock::new(0)).unwrap()
    };
    let first = value(&open(json!({}), file()));
    let parsed: Value = serde_json::from_str(first.as_str().unwrap()).unwrap();
    assert_eq!((&parsed["v"], parsed["key"].as_str().unwrap().len()), (&json!(1), 43));
    assert_eq!(value(&open(json!({}), file())), first, "the value is stored");
    assert_ne!(value(&open(json!({}), None)), first, "there is no file to store it in");
    let local = open(json!({"A": "local"}), file());
    assert_eq!(value(&local), "local");
    local.set("A", &json!("put")).unwrap();
    assert_eq!(value(&open(json!({"A": "local"}), file())), "put");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_secret_may_contain_the_value_of_another() {
    let made = Secret {
        logical_id: "Made".into(),
        name: "made".into(),
        arn: "arn:made".into(),
        value: SecretValue::Generated(Generated { length: 48, punctuation: false, into: None }),
    };
    let referring = Secret {
        value: SecretValue::Given(r#"{"key": "whsec_{{resolve:secretsmanager:arn:made}}"}"#.into()),
        ..secret()
    };
    let secrets = Secrets::open(&[referring, made], &BTreeMap::new(), None, Clock::new(0)).unwrap();
    let random = get(&secrets, "made").unwrap()["SecretString"].as_str().unwrap().to_owned();
    assert_eq!(random.len(), 48);
    assert_eq!(value(&secrets), format!(r#"{{"key": "whsec_{random}"}}"#));
}
