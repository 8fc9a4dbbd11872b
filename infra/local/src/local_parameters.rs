//! The local values of the template's parameters, which a deployment would set:
//! `infra/local-parameters.json`.

use std::collections::BTreeMap;
use std::fs;

use crate::StackError;
use crate::binaries::workspace_root;

/// Returns the local values, overridden by those that the caller gave.
pub fn with_local(given: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, StackError> {
    let file = workspace_root().join("infra/local-parameters.json");
    let text = fs::read(&file).map_err(|error| StackError::unreadable(&file, error))?;
    let mut parameters: BTreeMap<String, String> =
        serde_json::from_slice(&text).map_err(|error| StackError::unreadable(&file, error))?;
    parameters.extend(given);
    Ok(parameters)
}
