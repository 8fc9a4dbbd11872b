//! DynamoDB, with one idea: a conditional write is the only arbiter, and its outcome is a value.
//!
//! [`Write`] is a change to one row with its condition. It is made alone ([`Store::write`]) or with
//! others ([`Store::transact`]). A lost race is [`Written::Refused`] with the row as it stood;
//! [`StoreError`] means that the store did not answer, or not with anything we can read.
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

pub use change::{Committed, Next, Start, persist};
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

/// The attribute that names the write which made the row what it is.
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

/// A row as one of our types. What does not fit is corrupt: no rule can decide on it.
pub fn read_row<T: DeserializeOwned>(item: Item) -> Result<T, StoreError> {
    // The error's own text may repeat a stored value.
    serde_dynamo::from_item(item).map_err(|_| StoreError::Corrupt(std::any::type_name::<T>()))
}

pub fn row_of<T: Serialize>(row: &T) -> Result<Item, StoreError> {
    serde_dynamo::to_item(row).map_err(|_| StoreError::Corrupt(std::any::type_name::<T>()))
}

/// A value as an attribute of a row.
pub fn attribute<T: Serialize>(value: &T) -> Result<AttributeValue, StoreError> {
    serde_dynamo::to_attribute_value(value).map_err(|_| StoreError::Corrupt(std::any::type_name::<T>()))
}

fn key_item(key: &Key) -> Item {
    HashMap::from([
        ("pk".to_owned(), AttributeValue::S(key.pk.clone())),
        ("sk".to_owned(), AttributeValue::S(key.sk.clone())),
    ])
}
