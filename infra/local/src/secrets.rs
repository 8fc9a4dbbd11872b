//! Secrets Manager: the secrets of the template, with their local values.
//!
//! The value of a secret is, in order of precedence: the one that was put while the stack ran, the
//! one in the file of local values, the template's, or a generated one if the template asks for it.
//! Values that were generated or put are stored in the data directory, if there is one. Only
//! callers of the API can read values.

mod password;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::StackError;
use crate::binaries::workspace_root;
use crate::clock::Clock;
use crate::functions::random_uuid;
use crate::model::{Secret, SecretValue};
use crate::template::secret_name;

const CURRENT: &str = "AWSCURRENT";
/// How a template refers to the value of a secret.
const REFERENCE: &str = "{{resolve:secretsmanager:";

/// A cheap handle: all clones share the same secrets.
#[derive(Clone)]
pub struct Secrets(Arc<Shared>);

struct Shared {
    secrets: Vec<Secret>,
    /// The file for values that were put or generated.
    file: Option<PathBuf>,
    clock: Clock,
    /// By logical id.
    versions: Mutex<BTreeMap<String, Version>>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Version {
    id: String,
    value: String,
    created_ms: i64,
    /// Whether the value was put while a stack ran.
    #[serde(skip, default = "yes")]
    put: bool,
    /// Whether the value was generated because no other was given.
    #[serde(default)]
    generated: bool,
}

fn yes() -> bool {
    true
}

/// An error in the format of Secrets Manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub kind: &'static str,
    pub message: String,
}

impl Secrets {
    /// Opens the secrets. `given` holds local values by logical id. Those of secrets that the
    /// template does not have are ignored, because the template of a test has only some of them.
    pub fn open(
        secrets: &[Secret],
        given: &BTreeMap<String, Value>,
        file: Option<PathBuf>,
        clock: Clock,
    ) -> Result<Self, StackError> {
        let mut put = file.as_deref().map(load::<BTreeMap<String, Version>>).transpose()?.flatten().unwrap_or_default();
        let created_ms = clock.now_ms();
        let version = |secret: &Secret| {
            let given = given.get(&secret.logical_id);
            let kept = put.remove(&secret.logical_id).filter(|kept| !kept.generated || given.is_none());
            let begins = || {
                let (value, generated) = match (given, &secret.value) {
                    (Some(given), _) => (text_of(given), false),
                    (None, SecretValue::Given(value)) => (value.clone(), false),
                    (None, SecretValue::Generated(how)) => (password::value(how), true),
                };
                Version { id: random_uuid(), value, created_ms, put: false, generated }
            };
            (secret.logical_id.clone(), kept.unwrap_or_else(begins))
        };
        let mut versions: BTreeMap<_, _> = secrets.iter().map(version).collect();
        resolve_references(secrets, &mut versions);
        if versions.values().any(|version| version.generated) {
            keep(file.as_deref(), &versions)?;
        }
        Ok(Self(Arc::new(Shared { secrets: secrets.to_vec(), file, clock, versions: Mutex::new(versions) })))
    }

    /// Puts a value into a secret, given by logical id, name or ARN. Returns the id of the version.
    pub fn set(&self, name: &str, value: &Value) -> Result<String, StackError> {
        let Some(secret) = self.by_logical_id(name).or_else(|| self.find(name)) else {
            let known: Vec<_> = self.0.secrets.iter().map(|secret| secret.logical_id.as_str()).collect();
            return Err(StackError::Secret(format!("there is no secret {name:?}; there are {}", known.join(", "))));
        };
        let id = random_uuid();
        self.put(secret, id.clone(), text_of(value))?;
        Ok(id)
    }

    /// Handles an HTTP request.
    pub fn handle(&self, operation: &str, body: &[u8]) -> Result<Value, Refusal> {
        let request: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let refuse = |kind, message: &str| Err(Refusal { kind, message: message.to_owned() });
        let Some(secret) = self.find(request["SecretId"].as_str().unwrap_or_default()) else {
            return refuse("ResourceNotFoundException", "Secrets Manager can't find the specified secret.");
        };
        match operation {
            "GetSecretValue" => self.get(secret, &request),
            "PutSecretValue" => self.put_by_request(secret, &request),
            _ => refuse("InvalidRequestException", "the local stack knows GetSecretValue and PutSecretValue"),
        }
    }

    fn get(&self, secret: &Secret, request: &Value) -> Result<Value, Refusal> {
        let version = self.current(secret);
        let other = |name: &str, known: &str| request[name].as_str().is_some_and(|wanted| wanted != known);
        if other("VersionStage", CURRENT) || other("VersionId", &version.id) {
            let message = "Secrets Manager can't find the specified secret value for this version.".to_owned();
            return Err(Refusal { kind: "ResourceNotFoundException", message });
        }
        Ok(json!({
            "ARN": secret.arn, "Name": secret.name, "VersionId": version.id, "VersionStages": [CURRENT],
            "SecretString": version.value, "CreatedDate": version.created_ms as f64 / 1_000.0,
        }))
    }

    /// Puts a value. The client request token becomes the id of the version, so a retried put is
    /// idempotent.
    fn put_by_request(&self, secret: &Secret, request: &Value) -> Result<Value, Refusal> {
        let Some(value) = request["SecretString"].as_str() else {
            let message = "You must provide SecretString; the local stack knows no SecretBinary.".to_owned();
            return Err(Refusal { kind: "InvalidParameterException", message });
        };
        let id = request["ClientRequestToken"].as_str().map_or_else(random_uuid, str::to_owned);
        let current = self.current(secret);
        if current.id != id {
            let failed = |error: StackError| Refusal { kind: "InternalServiceError", message: error.to_string() };
            self.put(secret, id.clone(), value.to_owned()).map_err(failed)?;
        } else if current.value != value {
            let message = "You can't use ClientRequestToken again for another value.".to_owned();
            return Err(Refusal { kind: "ResourceExistsException", message });
        }
        Ok(json!({"ARN": secret.arn, "Name": secret.name, "VersionId": id, "VersionStages": [CURRENT]}))
    }

    fn put(&self, secret: &Secret, id: String, value: String) -> Result<(), StackError> {
        let mut versions = self.versions();
        let version = Version { id, value, created_ms: self.0.clock.now_ms(), put: true, generated: false };
        versions.insert(secret.logical_id.clone(), version);
        keep(self.0.file.as_deref(), &versions)
    }

    fn current(&self, secret: &Secret) -> Version {
        let none = || Version { id: String::new(), value: String::new(), created_ms: 0, put: false, generated: false };
        self.versions().get(&secret.logical_id).cloned().unwrap_or_else(none)
    }

    fn find(&self, id: &str) -> Option<&Secret> {
        self.0.secrets.iter().find(|secret| secret.name == secret_name(id))
    }

    fn by_logical_id(&self, id: &str) -> Option<&Secret> {
        self.0.secrets.iter().find(|secret| secret.logical_id == id)
    }

    fn versions(&self) -> MutexGuard<'_, BTreeMap<String, Version>> {
        self.0.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces `{{resolve:secretsmanager:<secret>}}` by the value of that secret, as CloudFormation
/// does when it creates a secret.
fn resolve_references(secrets: &[Secret], versions: &mut BTreeMap<String, Version>) {
    for secret in secrets {
        let value = versions.get(&secret.logical_id).map(|version| version.value.clone()).unwrap_or_default();
        let reference = format!("{REFERENCE}{}}}}}", secret.arn);
        for version in versions.values_mut().filter(|version| !version.put && version.value.contains(&reference)) {
            version.value = version.value.replace(&reference, &value);
            // Stored, so that the value is the same after a restart.
            version.generated = true;
        }
    }
}

/// Returns the workspace file of local values: made-up ones, which the catcher accepts.
pub fn local_file() -> PathBuf {
    workspace_root().join("infra/local-secrets.json")
}

/// Reads local values by logical id from a file. Returns none if the file does not exist.
pub fn read_values(file: &Path) -> Result<BTreeMap<String, Value>, StackError> {
    Ok(load(file)?.unwrap_or_default())
}

/// Returns a string as it is and any other value as JSON.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn load<T: for<'a> Deserialize<'a>>(file: &Path) -> Result<Option<T>, StackError> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| StackError::unreadable(file, error))?,
    };
    // The error gives the line but not its content, which may be secret.
    let unreadable = |error: serde_json::Error| {
        StackError::unreadable(file, format!("line {} is not what is expected there", error.line()))
    };
    serde_json::from_str(&text).map(Some).map_err(unreadable)
}

/// Stores the values that were put or generated, if there is a file for them.
fn keep(file: Option<&Path>, versions: &BTreeMap<String, Version>) -> Result<(), StackError> {
    let Some(file) = file else { return Ok(()) };
    let kept: BTreeMap<_, _> = versions.iter().filter(|(_, version)| version.put || version.generated).collect();
    save(file, &kept)
}

/// Writes a temporary file, readable only by its owner, and renames it.
fn save(file: &Path, put: &impl Serialize) -> Result<(), StackError> {
    let text = serde_json::to_string(put).map_err(|error| StackError::Emulator(error.to_string()))?;
    let beside = file.with_extension("json.new");
    let mut new = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    new.write_all(text.as_bytes())?;
    fs::rename(beside, file)?;
    Ok(())
}
