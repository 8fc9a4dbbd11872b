//! API keys in the Config table. The authorizer looks them up; an operator's command creates and
//! revokes them.

use umavez_domain::access::{KeyId, KeyRecord, PresentedKey};
use umavez_domain::keys::{self, API_KEY_PREFIX};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::store::{Condition, Store, StoreError, Write, Written};

/// The prefix of an operator's key, so that a search can find a leaked one.
const PREFIX: &str = "uv_";

pub async fn find(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    presented: &PresentedKey,
) -> Result<Option<KeyRecord>, StoreError> {
    store.get(invocation, table, &keys::api_key(&presented.id)).await
}

/// Creates a secret of 192 random bits. It is shown once and never stored.
pub fn new_secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{PREFIX}{}", hex::encode(bytes)))
}

/// Stores the hash of a key and returns the key's id. If the key exists, it stays unchanged.
pub async fn create(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    secret: &str,
    scopes: &[String],
    label: &str,
) -> Result<KeyId, StoreError> {
    let PresentedKey { id, hash } = PresentedKey::of(secret);
    let record = KeyRecord {
        key_id: id.clone(),
        hash,
        scopes: scopes.to_vec(),
        label: label.to_owned(),
        created_at: invocation.now.to_string(),
        revoked_at: None,
    };
    let write = Write::put(table, keys::api_key(&id), &record)?.when(Condition::Absent);
    store.write(invocation, write).await?;
    Ok(id)
}

/// Revokes a key. Returns whether the key exists. Revoking it again keeps the first revocation
/// time.
pub async fn revoke(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    id: &KeyId,
    at: Timestamp,
) -> Result<bool, StoreError> {
    let still_valid = Condition::all([Condition::exists(), Condition::has_not("revoked_at")]);
    let write = Write::update(table, keys::api_key(id)).set("revoked_at", at.to_string()).when(still_valid);
    match store.write(invocation, write).await? {
        Written::New | Written::Mine => Ok(true),
        Written::Refused(row) => Ok(row.is_some()),
    }
}

/// Returns all keys, oldest first. For operators: it scans the whole table, which is small.
pub async fn list(store: &Store, invocation: &Invocation, table: &str) -> Result<Vec<KeyRecord>, StoreError> {
    let mut keys: Vec<KeyRecord> = store.scan_prefix(invocation, table, API_KEY_PREFIX).await?;
    keys.sort_by(|a, b| a.created_at.cmp(&b.created_at));
    Ok(keys)
}
