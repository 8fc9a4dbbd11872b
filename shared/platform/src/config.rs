//! Configuration: each variable is read once, by name, at start. An error names the variable that
//! is missing or malformed.

use std::env;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::host;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the environment variable {0} is not set")]
    Missing(String),
    #[error("the environment variable {name} is not {wanted}")]
    Malformed { name: String, wanted: String },
}

impl ConfigError {
    /// The variable that is missing or malformed.
    pub fn variable(&self) -> &str {
        match self {
            Self::Missing(name) | Self::Malformed { name, .. } => name,
        }
    }

    pub fn malformed(name: &str, wanted: impl ToString) -> Self {
        Self::Malformed { name: name.to_owned(), wanted: wanted.to_string() }
    }
}

pub fn required(name: &str) -> Result<String, ConfigError> {
    text(name).ok_or_else(|| ConfigError::Missing(name.to_owned()))
}

/// Returns the value of a variable. An empty value counts as not set.
pub fn text(name: &str) -> Option<String> {
    let value = host::provided(|host| host.variables.get(name).cloned()).unwrap_or_else(|| env::var(name).ok());
    value.filter(|value| !value.is_empty())
}

pub fn optional<T: FromStr>(name: &str, wanted: &str) -> Result<Option<T>, ConfigError> {
    text(name).map(|value| value.parse().map_err(|_| ConfigError::malformed(name, wanted))).transpose()
}

/// Reads a whole number within `range`. `wanted` describes the range in the error.
pub fn number(name: &str, default: u32, range: RangeInclusive<u32>, wanted: &str) -> Result<u32, ConfigError> {
    let number = optional(name, wanted)?.unwrap_or(default);
    if range.contains(&number) { Ok(number) } else { Err(ConfigError::malformed(name, wanted)) }
}

/// Reads a variable that contains JSON, with `read`. A variable that is not set counts as `{}`.
pub fn options<T, E: Display>(name: &str, read: fn(&str) -> Result<T, E>) -> Result<T, ConfigError> {
    let json = text(name).unwrap_or_else(|| "{}".to_owned());
    read(&json).map_err(|error| ConfigError::malformed(name, format!("usable: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_missing_variable_has_its_name() {
        let error = required("UMAVEZ_SURELY_NOT_SET").expect_err("missing");
        assert_eq!(error.to_string(), "the environment variable UMAVEZ_SURELY_NOT_SET is not set");
    }
}
