//! What the template's parameters are on this machine, where a deployment would say it:
//! `infra/local-parameters.json`.

use std::collections::BTreeMap;
use std::fs;

use crate::StackError;
use crate::binaries::workspace_root;

/// The values of this machine, and over them what the caller gave.
pub fn with_local(given: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, StackError> {
    let text = fs::read(workspace_root().join("infra/local-parameters.json"))?;
    let mut parameters: BTreeMap<String, String> = serde_json::from_slice(&text).map_err(std::io::Error::from)?;
    parameters.extend(given);
    Ok(parameters)
}
