//! Makes several writes together or not at all.

use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError as Error;
use aws_sdk_dynamodb::types::{CancellationReason, ConditionCheck, Delete, Put, TransactWriteItem, Update};

use super::conflicts::Conflicts;
use super::error::is_throttle;
use super::write::{Change, Write, Written, conditional, is_mine};
use super::{Item, Store, StoreError, key_item};
use crate::invocation::Invocation;

/// A write that commits in one transaction with another one, and what happens if its own condition
/// does not hold.
pub struct Beside {
    write: Write,
    otherwise: Otherwise,
}

enum Otherwise {
    /// Leave the write out: its row already has the intended state.
    LeaveOut,
    /// Write nothing; the caller decides again.
    Lose,
    /// The rule decides on the row that refused the write.
    Ask(Rule),
}

/// Decides on the row that refused a write. Returns `None` if there is nothing left to write.
type Rule = Box<dyn Fn(Option<Item>) -> Result<Option<Write>, StoreError> + Send + Sync>;

impl Beside {
    /// A write that is required: if it is refused, nothing is written.
    pub fn required(write: Write) -> Self {
        Self { write, otherwise: Otherwise::Lose }
    }

    pub fn by_rule(
        write: Write,
        rule: impl Fn(Option<Item>) -> Result<Option<Write>, StoreError> + Send + Sync + 'static,
    ) -> Self {
        Self { write, otherwise: Otherwise::Ask(Box::new(rule)) }
    }

    fn is_required(&self) -> bool {
        matches!(self.otherwise, Otherwise::Lose)
    }

    fn refused(self, item: Option<Item>) -> Result<Option<Self>, StoreError> {
        let Otherwise::Ask(rule) = self.otherwise else { return Ok(None) };
        Ok(rule(item)?.map(|write| Self { write, otherwise: Otherwise::Ask(rule) }))
    }
}

impl From<Write> for Beside {
    fn from(write: Write) -> Self {
        Self { write, otherwise: Otherwise::LeaveOut }
    }
}

/// The outcome of a write with others beside it.
pub(super) enum Made {
    Done,
    /// The write's own condition did not hold. Contains the row as it was at that moment.
    Refused(Option<Item>),
    /// Only a required write beside it was refused.
    OtherRefused,
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Beside").field("write", &self.write).finish_non_exhaustive()
    }
}

/// The outcome of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Transacted {
    Done,
    /// Some condition did not hold, so nothing was written. There is one element per write, in
    /// order: `Some` for each write that failed, with its row as it was at that moment.
    Refused(Vec<Option<Refusal>>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub item: Option<Item>,
}

enum Canceled {
    Conditions(Vec<Option<Refusal>>),
    /// Another transaction was working on a row, or the store was busy. Nothing was written and
    /// nothing is decided.
    Passing(StoreError),
    Error(StoreError),
}

impl Store {
    /// Makes all writes or none. It retries conflicts with other transactions, with jitter. It does
    /// not retry if a condition does not hold.
    pub async fn transact(&self, invocation: &Invocation, writes: Vec<Write>) -> Result<Transacted, StoreError> {
        let token = invocation.write_token();
        let writes: Vec<_> = writes.into_iter().map(|write| write.signed(&token)).collect();
        let mut conflicts = Conflicts::default();
        loop {
            match invocation.within(self.send_all(&writes)).await? {
                Ok(()) => return Ok(Transacted::Done),
                Err(Canceled::Conditions(refusals)) if is_made(&refusals, &token) => return Ok(Transacted::Done),
                Err(Canceled::Conditions(refusals)) => return Ok(Transacted::Refused(refusals)),
                Err(Canceled::Passing(error)) => conflicts.wait(invocation, error).await?,
                Err(Canceled::Error(error)) => return Err(error),
            }
        }
    }

    /// Makes a write together with those beside it, each as its [`Beside`] says. The write's own
    /// condition decides whether anything is written.
    pub(super) async fn write_all(
        &self,
        invocation: &Invocation,
        write: Write,
        mut beside: Vec<Beside>,
    ) -> Result<Made, StoreError> {
        let mut conflicts = Conflicts::default();
        while !beside.is_empty() {
            let mut writes = vec![write.clone()];
            writes.extend(beside.iter().map(|beside| beside.write.clone()));
            let Transacted::Refused(refusals) = self.transact(invocation, writes).await? else {
                return Ok(Made::Done);
            };
            let mut refusals = refusals.into_iter();
            if let Some(Some(refusal)) = refusals.next() {
                return Ok(Made::Refused(refusal.item));
            }
            let mut lost_a_race = false;
            let mut next = Vec::new();
            for (beside, refusal) in beside.into_iter().zip(refusals) {
                match refusal {
                    None => next.push(beside),
                    Some(_) if beside.is_required() => return Ok(Made::OtherRefused),
                    Some(refusal) => {
                        let anew = beside.refused(refusal.item)?;
                        lost_a_race |= anew.is_some();
                        next.extend(anew);
                    }
                }
            }
            beside = next;
            if lost_a_race {
                conflicts.wait(invocation, StoreError::Conflict).await?;
            }
        }
        Ok(match self.write(invocation, write).await? {
            Written::New | Written::Mine => Made::Done,
            Written::Refused(item) => Made::Refused(item),
        })
    }

    /// Works as [`Self::write_all`], for writes beside it that may be left out or rebuilt by their
    /// rule.
    pub async fn write_with(
        &self,
        invocation: &Invocation,
        write: Write,
        beside: Vec<Beside>,
    ) -> Result<Written, StoreError> {
        Ok(match self.write_all(invocation, write, beside).await? {
            Made::Done => Written::New,
            Made::Refused(item) => Written::Refused(item),
            Made::OtherRefused => Written::Refused(None),
        })
    }

    async fn send_all(&self, writes: &[Write]) -> Result<(), Canceled> {
        let items = writes.iter().map(item).collect::<Result<Vec<_>, _>>().map_err(Canceled::Error)?;
        let sent = self.client.transact_write_items().set_transact_items(Some(items)).send().await;
        sent.map(drop).map_err(|error| canceled(&error))
    }
}

/// Returns whether an earlier attempt of this same request has already made the transaction. One
/// row with its token proves all of it: other writers may have changed the other rows since, and
/// checks and deletes leave no token.
fn is_made(refusals: &[Option<Refusal>], token: &str) -> bool {
    refusals.iter().flatten().any(|refusal| refusal.item.as_ref().is_some_and(|item| is_mine(item, token)))
}

fn canceled<R>(error: &SdkError<Error, R>) -> Canceled {
    match error.as_service_error() {
        Some(Error::TransactionCanceledException(canceled)) => judge(canceled.cancellation_reasons()),
        _ => match StoreError::from_sdk(error) {
            passing @ StoreError::Conflict => Canceled::Passing(passing),
            error => Canceled::Error(error),
        },
    }
}

/// Classifies a canceled transaction. A failed condition is final, even beside a conflict: a retry
/// now would not make it hold.
fn judge(reasons: &[CancellationReason]) -> Canceled {
    let code = |reason: &CancellationReason| reason.code().unwrap_or("None").to_owned();
    if reasons.iter().any(|reason| code(reason) == "ConditionalCheckFailed") {
        let refusal = |reason: &CancellationReason| {
            (code(reason) == "ConditionalCheckFailed").then(|| Refusal { item: reason.item.clone() })
        };
        return Canceled::Conditions(reasons.iter().map(refusal).collect());
    }
    let mut others = reasons.iter().map(code).filter(|code| code != "None");
    match others.find(|code| code != "TransactionConflict") {
        None => Canceled::Passing(StoreError::Conflict),
        Some(code) if is_throttle(&code) => Canceled::Passing(StoreError::Throttled),
        Some(code) => Canceled::Error(StoreError::Rejected(code)),
    }
}

fn item(write: &Write) -> Result<TransactWriteItem, StoreError> {
    let expressions = write.expressions();
    let (table, key) = (&write.table, Some(key_item(&write.key)));
    let item = TransactWriteItem::builder();
    let built = match &write.change {
        Change::Put(row) => {
            let put = Put::builder().table_name(table).set_item(Some(row.clone()));
            conditional!(put, expressions).build().map(|put| item.put(put))
        }
        Change::Update(_) => {
            let update = Update::builder().table_name(table).set_key(key).set_update_expression(expressions.update);
            conditional!(update, expressions).build().map(|update| item.update(update))
        }
        Change::Delete => {
            let delete = Delete::builder().table_name(table).set_key(key);
            conditional!(delete, expressions).build().map(|delete| item.delete(delete))
        }
        Change::Check => {
            let check = ConditionCheck::builder().table_name(table).set_key(key);
            conditional!(check, expressions).build().map(|check| item.condition_check(check))
        }
    };
    built.map(|item| item.build()).map_err(|error| StoreError::Rejected(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(code: &str) -> CancellationReason {
        CancellationReason::builder().code(code).build()
    }

    #[test]
    fn a_failed_condition_is_reported_for_its_write_even_beside_a_conflict() {
        let judged = judge(&[reason("TransactionConflict"), reason("ConditionalCheckFailed"), reason("None")]);
        let Canceled::Conditions(refusals) = judged else { panic!("not by condition") };
        assert_eq!(refusals.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
    }

    #[test]
    fn only_conflicts_and_throttles_are_retried() {
        assert!(matches!(
            judge(&[reason("None"), reason("TransactionConflict")]),
            Canceled::Passing(StoreError::Conflict)
        ));
        assert!(matches!(judge(&[reason("ThrottlingError")]), Canceled::Passing(StoreError::Throttled)));
        assert!(matches!(judge(&[reason("ValidationError")]), Canceled::Error(StoreError::Rejected(_))));
    }

    #[test]
    fn a_transaction_was_applied_if_one_of_its_rows_has_its_token() {
        let mine = |token: &str| {
            let item =
                Item::from([("writer".to_owned(), aws_sdk_dynamodb::types::AttributeValue::S(token.to_owned()))]);
            Some(Refusal { item: Some(item) })
        };
        assert!(is_made(&[mine("a"), None], "a"));
        assert!(is_made(&[mine("a"), mine("b")], "a"), "another write has changed the row since");
        assert!(is_made(&[mine("a"), Some(Refusal { item: None })], "a"), "the transaction deleted this row");
        assert!(!is_made(&[mine("b"), None], "a"));
        assert!(!is_made(&[Some(Refusal { item: None })], "a"));
        assert!(!is_made(&[], "a"));
    }
}
