//! Serializes a value as JSON text. Data that callers define is stored in this form, because it may
//! have numbers, names and nesting depths that the store's own types cannot hold.

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let text = serde_json::to_string(value).map_err(S::Error::custom)?;
    serializer.serialize_str(&text)
}

pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    // The parser's error text may repeat a stored value, so it is not used.
    serde_json::from_str(&text).map_err(|_| D::Error::custom("not the JSON text that was stored"))
}
