//! DynamoDB access. A conditional write is the only arbiter of a race, and its outcome is a value.
//!
//! [`Write`] is a change to one row with its condition. [`Store::write`] makes it alone and
//! [`Store::transact`] makes it together with others. A lost race is [`Written::Refused`] with the
//! row as it was at that moment. [`StoreError`] means that the store did not answer, or that we
//! cannot read its answer.
//!
//! [`Query`] says which rows of a table or an index to read.

mod change;
mod condition;
mod conflicts;
mod error;
mod many;
mod query;
mod read;
mod spread;
mod transact;
mod waiting;
mod write;

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use umavez_domain::keys::Key;

pub use change::{Committed, Decided, Start, persist};
pub use condition::Condition;
pub(crate) use conflicts::Conflicts;
pub use error::StoreError;
pub(crate) use error::{is_outage, refusal_code};
pub use many::Insert;
pub use query::Query;
pub use read::{Found, Page};
pub use spread::SpreadPlace;
pub use transact::{Beside, Refusal, Transacted};
pub use write::{Returned, Write, Written};

pub type Item = HashMap<String, AttributeValue>;

/// The attribute that holds the token of the write that last wrote the row.
pub const WRITER: &str = "writer";

#[derive(Debug, Clone)]
pub struct Store {
    client: aws_sdk_dynamodb::Client,
}

impl Store {
    pub fn new(client: aws_sdk_dynamodb::Client) -> Self {
        Self { client }
    }
}

/// Parses a row as one of our types. Returns [`StoreError::Corrupt`] if it does not fit, because no
/// rule can decide on such a row.
pub fn read_row<T: DeserializeOwned>(item: Item) -> Result<T, StoreError> {
    // Drop the cause: the error's own text may repeat a stored value.
    serde_dynamo::from_item(item).map_err(|_| StoreError::Corrupt(std::any::type_name::<T>()))
}

pub fn row_of<T: Serialize>(row: &T) -> Result<Item, StoreError> {
    serde_dynamo::to_item(row).map_err(|_| StoreError::Corrupt(std::any::type_name::<T>()))
}

/// Serializes a value as an attribute of a row.
pub fn attribute<T: Serialize>(value: &T) -> Result<AttributeValue, StoreError> {
    serde_dynamo::to_attribute_value(value).map_err(|_| StoreError::Corrupt(std::any::type_name::<T>()))
}

pub(crate) fn key_item(key: &Key) -> Item {
    HashMap::from([
        ("pk".to_owned(), AttributeValue::S(key.pk.clone())),
        ("sk".to_owned(), AttributeValue::S(key.sk.clone())),
    ])
}
