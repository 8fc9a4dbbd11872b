//! Many rows in one request: inserts new rows, each only if its key is free, or reads existing
//! ones.
//!
//! `BatchWriteItem` takes no conditions and overwrites. PartiQL's `INSERT` writes only if the key
//! is free, and one request takes twenty-five of them.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::{
    AttributeValue, BatchStatementErrorCodeEnum as Code, BatchStatementRequest, KeysAndAttributes,
};
use serde::de::DeserializeOwned;
use umavez_domain::keys::Key;

use super::{Item, Store, StoreError, key_item, read_row};
use crate::invocation::Invocation;

/// The maximum that one request takes.
const MOST_STATEMENTS: usize = 25;
const MOST_KEYS: usize = 100;
/// How often rows are retried that the store refused for lack of throughput. The backoff grows each
/// time.
const ROUNDS: u32 = 8;
const FIRST_WAIT_MS: u64 = 50;

/// The outcome of inserting one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insert {
    New,
    /// A row with this key exists, possibly from an earlier try.
    There,
}

impl Store {
    /// Inserts rows whose keys are all different. Returns one outcome per row, in order. Existing
    /// rows stay unchanged.
    pub async fn insert_many(
        &self,
        invocation: &Invocation,
        table: &str,
        rows: Vec<Item>,
    ) -> Result<Vec<Insert>, StoreError> {
        let mut outcomes: Vec<Option<Insert>> = vec![None; rows.len()];
        let mut left: Vec<(usize, BatchStatementRequest)> = Vec::with_capacity(rows.len());
        for (at, row) in rows.into_iter().enumerate() {
            left.push((at, statement(table, row)?));
        }
        for round in 0..=ROUNDS {
            if round > 0 {
                pause(invocation, round).await?;
            }
            let mut again = Vec::new();
            for batch in left.chunks(MOST_STATEMENTS) {
                again.extend(self.insert_batch(invocation, batch, &mut outcomes).await?);
            }
            if again.is_empty() {
                return outcomes.into_iter().collect::<Option<Vec<_>>>().ok_or(StoreError::Unavailable);
            }
            left = again;
        }
        Err(StoreError::Throttled)
    }

    /// Sends one batch and records its outcomes. Returns the statements to retry.
    async fn insert_batch(
        &self,
        invocation: &Invocation,
        batch: &[(usize, BatchStatementRequest)],
        outcomes: &mut [Option<Insert>],
    ) -> Result<Vec<(usize, BatchStatementRequest)>, StoreError> {
        let statements = batch.iter().map(|(_, statement)| statement.clone()).collect();
        let call = self.client.batch_execute_statement().set_statements(Some(statements)).send();
        let answer = invocation.within(call).await?.map_err(|error| StoreError::of(&error))?;
        let answers = answer.responses();
        let mut again = Vec::new();
        for (n, (at, statement)) in batch.iter().enumerate() {
            // A missing answer says nothing about its row, so retry the statement.
            let Some(answer) = answers.get(n) else {
                again.push((*at, statement.clone()));
                continue;
            };
            match answer.error().map(|error| (error.code(), error.message())) {
                None => outcomes[*at] = Some(Insert::New),
                Some((Some(Code::DuplicateItem | Code::ConditionalCheckFailed), _)) => {
                    outcomes[*at] = Some(Insert::There)
                }
                Some((Some(code), _)) if is_passing(code) => again.push((*at, statement.clone())),
                Some((code, _)) => {
                    let code = code.map_or("no code", Code::as_str);
                    return Err(StoreError::Rejected(format!("a statement: {code}")));
                }
            }
        }
        Ok(again)
    }

    /// Reads the rows of these keys, strongly consistent. The result omits rows that do not exist.
    pub async fn get_many(
        &self,
        invocation: &Invocation,
        table: &str,
        keys: &[Key],
    ) -> Result<HashMap<Key, Item>, StoreError> {
        let mut found = HashMap::new();
        for keys in keys.chunks(MOST_KEYS) {
            let tables = HashMap::from([(table.to_owned(), consistent(keys)?)]);
            let rows = self.get_batch(invocation, tables).await?;
            found.extend(rows.into_iter().filter_map(|(_, row)| Some((key_of(&row)?, row))));
        }
        Ok(found)
    }

    /// Reads one row from each of two tables in one request, strongly consistent.
    pub async fn get_both<A: DeserializeOwned, B: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        (one_table, one): (&str, &Key),
        (other_table, other): (&str, &Key),
    ) -> Result<(Option<A>, Option<B>), StoreError> {
        let tables = [(one_table.to_owned(), consistent([one])?), (other_table.to_owned(), consistent([other])?)];
        let rows = self.get_batch(invocation, HashMap::from(tables)).await?;
        let mut rows: HashMap<_, _> = rows.into_iter().collect();
        let (one, other) = (rows.remove(one_table), rows.remove(other_table));
        Ok((one.map(read_row).transpose()?, other.map(read_row).transpose()?))
    }

    /// Reads what these tables are asked for, and repeats the request for keys that the store did
    /// not process. Returns each row with the name of its table.
    async fn get_batch(
        &self,
        invocation: &Invocation,
        mut left: HashMap<String, KeysAndAttributes>,
    ) -> Result<Vec<(String, Item)>, StoreError> {
        let mut found = Vec::new();
        for round in 0..=ROUNDS {
            if round > 0 {
                pause(invocation, round).await?;
            }
            let call = self.client.batch_get_item().set_request_items(Some(left)).send();
            let answer = invocation.within(call).await?.map_err(|error| StoreError::of(&error))?;
            for (table, rows) in answer.responses.unwrap_or_default() {
                found.extend(rows.into_iter().map(|row| (table.clone(), row)));
            }
            left = answer.unprocessed_keys.unwrap_or_default();
            if left.is_empty() {
                return Ok(found);
            }
        }
        Err(StoreError::Throttled)
    }
}

/// Asks for the rows of these keys, strongly consistent.
fn consistent<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Result<KeysAndAttributes, StoreError> {
    let keys = keys.into_iter().map(key_item).collect();
    let asked = KeysAndAttributes::builder().set_keys(Some(keys)).consistent_read(true).build();
    asked.map_err(|error| StoreError::Rejected(error.to_string()))
}

fn key_of(row: &Item) -> Option<Key> {
    let text = |name: &str| row.get(name).and_then(|value| value.as_s().ok()).cloned();
    Some(Key { pk: text("pk")?, sk: text("sk")? })
}

/// Builds the `INSERT` of one row. The attribute names are our own and contain no quotes; the
/// values are parameters.
fn statement(table: &str, row: Item) -> Result<BatchStatementRequest, StoreError> {
    let mut named: Vec<(String, AttributeValue)> = row.into_iter().collect();
    named.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<String> = named.iter().map(|(name, _)| format!("'{name}': ?")).collect();
    BatchStatementRequest::builder()
        .statement(format!("INSERT INTO \"{table}\" VALUE {{{}}}", names.join(", ")))
        .set_parameters(Some(named.into_iter().map(|(_, value)| value).collect()))
        .build()
        .map_err(|error| StoreError::Rejected(error.to_string()))
}

fn is_passing(code: &Code) -> bool {
    matches!(
        code,
        Code::InternalServerError
            | Code::ProvisionedThroughputExceeded
            | Code::RequestLimitExceeded
            | Code::ThrottlingError
            | Code::TransactionConflict
    )
}

async fn pause(invocation: &Invocation, round: u32) -> Result<(), StoreError> {
    let longest = FIRST_WAIT_MS << round.min(6);
    let wait = Duration::from_millis(longest / 2 + fastrand::u64(0..=longest / 2));
    if invocation.time_left() <= wait {
        return Err(StoreError::Throttled);
    }
    tokio::time::sleep(wait).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_one_statement_with_parameters() {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let row = Item::from([("sk".to_owned(), text("S")), ("pk".to_owned(), text("P"))]);
        let statement = statement("t", row).expect("a statement");
        assert_eq!(statement.statement(), r#"INSERT INTO "t" VALUE {'pk': ?, 'sk': ?}"#);
        assert_eq!(statement.parameters(), [text("P"), text("S")]);
    }
}
