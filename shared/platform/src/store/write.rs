//! One change to one row, and its outcome.

use std::collections::HashMap;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use serde::Serialize;
use umavez_domain::keys::Key;

use super::condition::{Condition, Placeholders};
use super::conflicts::Conflicts;
use super::{Item, Store, StoreError, WRITER, key_item, row_of};
use crate::invocation::Invocation;

/// The outcome of a conditional write.
#[derive(Debug, Clone, PartialEq)]
pub enum Written {
    /// The condition held and the row was written.
    New,
    /// The row carries this write's token: the SDK retried a write whose first attempt had
    /// succeeded. Equivalent to `New`.
    Mine,
    /// The condition did not hold. Contains the row as it was at that moment; `None` if it does not
    /// exist.
    Refused(Option<Item>),
}

/// A change to one row with its condition.
#[derive(Debug, Clone)]
pub struct Write {
    pub(super) table: String,
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) condition: Option<Condition>,
    /// The token that identifies this write; set when the write is sent.
    pub(super) token: String,
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    /// Replaces the whole row.
    Put(Item),
    /// Changes some attributes and keeps the others.
    Update(Update),
    Delete,
    /// Changes nothing; only the condition counts. Valid only in a transaction.
    Check,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Update {
    set: Vec<(String, AttributeValue)>,
    remove: Vec<String>,
    add: Vec<(String, i64)>,
    append: Vec<(String, AttributeValue)>,
    copy: Vec<(String, String)>,
    stamp: Vec<String>,
    carry: Vec<(String, String)>,
}

impl Write {
    /// Replaces the whole row.
    pub fn put(table: &str, key: Key, row: &impl Serialize) -> Result<Self, StoreError> {
        let mut item = row_of(row)?;
        item.extend(key_item(&key));
        Ok(Self::of(table, key, Change::Put(item)))
    }

    /// Changes some attributes of a row, or creates it.
    pub fn update(table: &str, key: Key) -> Self {
        Self::of(table, key, Change::Update(Update::default()))
    }

    /// Deletes the row. A deleted row carries no token, so if the reply to a delete is lost, its
    /// retry may return [`Written::Refused`] because of its own success. The condition should
    /// therefore also hold for an absent row.
    pub fn delete(table: &str, key: Key) -> Self {
        Self::of(table, key, Change::Delete)
    }

    pub fn check(table: &str, key: Key, condition: Condition) -> Self {
        Self::of(table, key, Change::Check).when(condition)
    }

    fn of(table: &str, key: Key, change: Change) -> Self {
        Self { table: table.to_owned(), key, change, condition: None, token: String::new() }
    }

    pub fn when(mut self, condition: Condition) -> Self {
        self.condition = Some(condition);
        self
    }

    /// Writes only what differs between two states of a row, so other writers may change the other
    /// attributes at the same time.
    pub fn changes<T: Serialize>(table: &str, key: Key, before: &T, after: &T) -> Result<Self, StoreError> {
        let (before, after) = (row_of(before)?, row_of(after)?);
        let mut write = Self::update(table, key);
        for name in before.keys().filter(|name| !after.contains_key(*name)) {
            write = write.remove(name);
        }
        for (name, value) in after {
            if before.get(&name) != Some(&value) {
                write = write.set_value(&name, value);
            }
        }
        Ok(write)
    }

    /// Sets every attribute of `row`, except those named in `except`.
    pub fn set_row(mut self, row: &impl Serialize, except: &[&str]) -> Result<Self, StoreError> {
        for (name, value) in row_of(row)? {
            if !except.contains(&name.as_str()) {
                self = self.set_value(&name, value);
            }
        }
        Ok(self)
    }

    pub fn set(self, name: &str, text: impl Into<String>) -> Self {
        self.set_value(name, AttributeValue::S(text.into()))
    }

    pub fn set_number(self, name: &str, number: impl ToString) -> Self {
        self.set_value(name, AttributeValue::N(number.to_string()))
    }

    pub fn set_value(self, name: &str, value: AttributeValue) -> Self {
        self.change(|update| update.set.push((name.to_owned(), value)))
    }

    pub fn remove(self, name: &str) -> Self {
        self.change(|update| update.remove.push(name.to_owned()))
    }

    /// Adds one to a number; an absent number counts as zero. It is safe under the SDK's retry only
    /// with a condition that the first attempt makes false.
    pub fn increment(self, name: &str) -> Self {
        self.add(name, 1)
    }

    /// Adds to a number, as [`Self::increment`] adds one. If the condition may still hold after the
    /// first attempt, an SDK retry adds twice. Use it in that case only where adding more than once
    /// is as safe as adding once.
    pub fn add(self, name: &str, number: i64) -> Self {
        self.change(|update| update.add.push((name.to_owned(), number)))
    }

    /// Appends a string to a list, which it creates if absent. It needs a condition, as
    /// [`Self::increment`] does.
    pub fn append(self, name: &str, text: impl Into<String>) -> Self {
        self.append_value(name, AttributeValue::S(text.into()))
    }

    pub fn append_value(self, name: &str, value: AttributeValue) -> Self {
        self.change(|update| update.append.push((name.to_owned(), value)))
    }

    /// Sets an attribute to the value of another one.
    pub fn copy(self, name: &str, from: &str) -> Self {
        self.change(|update| update.copy.push((name.to_owned(), from.to_owned())))
    }

    /// Sets an attribute to this write's token, and keeps the tokens of the two stamps before it.
    /// Unlike [`WRITER`], they survive later writes, so [`Condition::not_stamped`] recognizes a
    /// late first attempt of this write, unless three others have stamped the row since.
    pub fn stamp(self, name: &str) -> Self {
        let [first, second, third] = stamps(name);
        self.change(|update| {
            update.stamp.push(first.clone());
            update.carry.extend([(second.clone(), first), (third, second)]);
        })
    }

    /// Applies a change to an update. Only an update changes single attributes; on any other write
    /// this is a mistake that would otherwise go unnoticed.
    fn change(mut self, change: impl FnOnce(&mut Update)) -> Self {
        match &mut self.change {
            Change::Update(update) => change(update),
            _ => debug_assert!(false, "only an update changes single attributes"),
        }
        self
    }

    /// Returns the write with its token.
    pub(super) fn signed(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        let value = AttributeValue::S(token.to_owned());
        match &mut self.change {
            Change::Put(item) => {
                item.insert(WRITER.to_owned(), value);
            }
            Change::Update(update) => {
                let stamp = AttributeValue::S(stamp_of(token).to_owned());
                let stamps = update.stamp.drain(..).map(|name| (name, stamp.clone()));
                update.set.extend(stamps);
                update.set.push((WRITER.to_owned(), value));
            }
            Change::Delete | Change::Check => {}
        }
        self
    }
}

/// The expressions of one write, with their placeholders.
pub(super) struct Expressions {
    pub(super) condition: Option<String>,
    pub(super) update: Option<String>,
    pub(super) names: Option<HashMap<String, String>>,
    pub(super) values: Option<Item>,
}

/// Adds the condition of a write to any of the SDK's builders, and asks for the old row if it does
/// not hold.
macro_rules! conditional {
    ($builder:expr, $expressions:expr) => {
        $builder
            .set_condition_expression($expressions.condition)
            .set_expression_attribute_names($expressions.names)
            .set_expression_attribute_values($expressions.values)
            .return_values_on_condition_check_failure(
                aws_sdk_dynamodb::types::ReturnValuesOnConditionCheckFailure::AllOld,
            )
    };
}
pub(super) use conditional;

/// Reads the old item from an operation's own "condition failed" error.
macro_rules! refusal {
    ($error:ident) => {
        |error| match error {
            $error::ConditionalCheckFailedException(failed) => Some(failed.item.clone()),
            _ => None,
        }
    };
}

impl Write {
    pub(super) fn expressions(&self) -> Expressions {
        let mut placeholders = Placeholders::of_write(&self.token);
        let condition = self.condition.as_ref().map(|condition| condition.render(&mut placeholders));
        let update = match &self.change {
            Change::Update(update) => Some(update.render(&mut placeholders)),
            _ => None,
        };
        let (names, values) = placeholders.into_parts();
        Expressions { condition, update, names, values }
    }
}

/// Returns the stamp of a write: its token without the id of the request, because a row with
/// several stamps must fit into one write unit.
pub(super) fn stamp_of(token: &str) -> &str {
    token.split_once('/').map_or(token, |(_, stamp)| stamp)
}

/// The attributes that hold the latest stamps of this name, the newest first.
pub(super) fn stamps(name: &str) -> [String; 3] {
    [name.to_owned(), format!("{name}_2"), format!("{name}_3")]
}

impl Update {
    fn render(&self, into: &mut Placeholders) -> String {
        let mut set: Vec<_> = self
            .set
            .iter()
            .map(|(name, value)| format!("{} = {}", into.name(name), into.value(value.clone())))
            .collect();
        for (name, number) in &self.add {
            let (name, zero, number) = (into.name(name), into.number(0), into.number(*number));
            set.push(format!("{name} = if_not_exists({name}, {zero}) + {number}"));
        }
        // DynamoDB evaluates all of these on the row as it was before the update.
        for (name, from) in &self.carry {
            let none = into.text("");
            set.push(format!("{} = if_not_exists({}, {none})", into.name(name), into.name(from)));
        }
        for (name, from) in &self.copy {
            set.push(format!("{} = {}", into.name(name), into.name(from)));
        }
        for (name, value) in &self.append {
            let (name, none) = (into.name(name), into.value(AttributeValue::L(Vec::new())));
            let entry = into.value(AttributeValue::L(vec![value.clone()]));
            set.push(format!("{name} = list_append(if_not_exists({name}, {none}), {entry})"));
        }
        let remove: Vec<_> = self.remove.iter().map(|name| into.name(name)).collect();
        let mut clauses = Vec::new();
        if !set.is_empty() {
            clauses.push(format!("SET {}", set.join(", ")));
        }
        if !remove.is_empty() {
            clauses.push(format!("REMOVE {}", remove.join(", ")));
        }
        clauses.join(" ")
    }
}

/// The outcome of a write whose row the caller wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Returned {
    /// The row after this write.
    Row(Item),
    /// See [`Written::Refused`].
    Refused(Option<Item>),
}

/// The old item of a failed condition, or the error of a write that did not reach its condition.
enum Failure {
    Refused(Option<Item>),
    Error(StoreError),
}

impl Store {
    /// Makes one write and returns its outcome.
    pub async fn write(&self, invocation: &Invocation, write: Write) -> Result<Written, StoreError> {
        Ok(self.make(invocation, write, false).await?.0)
    }

    /// Makes one update and returns the row after it, without an extra request.
    pub async fn update_returning(&self, invocation: &Invocation, write: Write) -> Result<Returned, StoreError> {
        Ok(match self.make(invocation, write, true).await? {
            (Written::Refused(item), _) => Returned::Refused(item),
            (Written::New | Written::Mine, row) => Returned::Row(row.unwrap_or_default()),
        })
    }

    /// Makes a write and retries conflicts. DynamoDB refuses a plain write to a row that is in a
    /// transaction. The retry uses jitter, as transactions do, and the same token, because nothing
    /// was written. Returns the row after an update, if `row_wanted`.
    async fn make(
        &self,
        invocation: &Invocation,
        write: Write,
        row_wanted: bool,
    ) -> Result<(Written, Option<Item>), StoreError> {
        let token = invocation.write_token();
        let write = write.signed(&token);
        let mut conflicts = Conflicts::default();
        loop {
            match invocation.within(self.send(write.clone(), row_wanted)).await? {
                Ok(row) => return Ok((Written::New, row)),
                Err(Failure::Refused(Some(item))) if is_mine(&item, &token) => return Ok((Written::Mine, Some(item))),
                Err(Failure::Refused(item)) => return Ok((Written::Refused(item), None)),
                Err(Failure::Error(StoreError::Conflict)) => conflicts.wait(invocation, StoreError::Conflict).await?,
                Err(Failure::Error(error)) => return Err(error),
            }
        }
    }

    /// Sends the write. Returns the row after an update, if `row_wanted`.
    async fn send(&self, write: Write, row_wanted: bool) -> Result<Option<Item>, Failure> {
        let expressions = write.expressions();
        match write.change {
            Change::Put(item) => {
                let call = self.client.put_item().table_name(write.table).set_item(Some(item));
                let sent = conditional!(call, expressions).send().await;
                sent.map(|_| None).map_err(|error| failure(&error, refusal!(PutItemError)))
            }
            Change::Update(_) => {
                let call = self.client.update_item().table_name(write.table).set_key(Some(key_item(&write.key)));
                let call = call.return_values(if row_wanted { ReturnValue::AllNew } else { ReturnValue::None });
                let call = call.set_update_expression(expressions.update);
                let sent = conditional!(call, expressions).send().await;
                sent.map(|made| made.attributes).map_err(|error| failure(&error, refusal!(UpdateItemError)))
            }
            Change::Delete => {
                let call = self.client.delete_item().table_name(write.table).set_key(Some(key_item(&write.key)));
                let sent = conditional!(call, expressions).send().await;
                sent.map(|_| None).map_err(|error| failure(&error, refusal!(DeleteItemError)))
            }
            Change::Check => {
                Err(Failure::Error(StoreError::Rejected("a check is allowed only in a transaction".to_owned())))
            }
        }
    }
}

pub(super) fn is_mine(item: &Item, token: &str) -> bool {
    matches!(item.get(WRITER), Some(AttributeValue::S(writer)) if writer == token)
}

/// Maps an SDK error to a [`Failure`]. `refusal` extracts the old item from the operation's own
/// "condition failed" error.
fn failure<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>, refusal: fn(&E) -> Option<Option<Item>>) -> Failure {
    match error.as_service_error().and_then(refusal) {
        Some(item) => Failure::Refused(item),
        None => Failure::Error(StoreError::from_sdk(error)),
    }
}
