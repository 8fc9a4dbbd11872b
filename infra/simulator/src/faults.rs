//! How calls to AWS fail, and what the caller gets then.

use fastrand::Rng;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request does not arrive.
    LostRequest,
    /// The request is carried out, but the reply does not arrive.
    LostReply,
    /// The service answers with an error and does nothing.
    ErrorBefore,
    /// The service carries out the request and answers with an error.
    ErrorAfter,
    Throttled,
    /// Other transactions change the same rows.
    Conflict,
    /// A transaction with the same token is still running.
    InProgress,
    /// Only a part of a batch is carried out; the answer names the rest.
    Partial,
    /// An index has not seen the latest writes.
    StaleIndex,
    /// The request arrives when its caller has stopped waiting, perhaps after its retry.
    LateRequest,
    /// The reply arrives when its caller has stopped waiting.
    LateReply,
}

const READ: &[Fault] = &[Fault::LostReply, Fault::ErrorBefore, Fault::Throttled, Fault::LateReply];
const WRITE: &[Fault] = &[
    Fault::LostRequest,
    Fault::LostReply,
    Fault::LostReply,
    Fault::ErrorBefore,
    Fault::ErrorAfter,
    Fault::Throttled,
    Fault::LateRequest,
    Fault::LateReply,
];

impl Fault {
    /// Draws one of the faults that an operation can have.
    pub fn draw(operation: &str, body: &Value, dice: &mut Rng) -> Self {
        let (common, own): (&[Self], &[Self]) = match operation {
            "GetItem" | "GetSecretValue" | "GET" => (READ, &[]),
            "Query" if body["IndexName"].is_string() && body["ConsistentRead"] != true => {
                (READ, &[Self::StaleIndex, Self::StaleIndex, Self::StaleIndex, Self::StaleIndex])
            }
            "Query" => (READ, &[]),
            "BatchGetItem" => (READ, &[Self::Partial, Self::Partial]),
            "TransactWriteItems" => (WRITE, &[Self::Conflict, Self::InProgress]),
            "SendMessageBatch" | "BatchExecuteStatement" => (WRITE, &[Self::Partial, Self::Partial]),
            _ => (WRITE, &[]),
        };
        let chosen = dice.usize(0..common.len() + own.len());
        common.get(chosen).copied().unwrap_or_else(|| own[chosen - common.len()])
    }

    /// Returns the answer of a service that does nothing, or `None` if it carries out the request.
    pub fn refusal(self, service: &str, body: &Value, dice: &mut Rng) -> Option<(u16, Vec<u8>)> {
        let (status, answer) = match self {
            Self::Throttled if service == "dynamodb" => {
                (400, json!({"__type": "ProvisionedThroughputExceededException", "message": "slow down"}))
            }
            Self::Throttled => (400, json!({"__type": "ThrottlingException", "message": "slow down"})),
            Self::ErrorBefore => return Some((500, internal())),
            Self::Conflict => (400, conflict(body, dice)),
            Self::InProgress => {
                (400, json!({"__type": "TransactionInProgressException", "Message": "The transaction is in progress"}))
            }
            Self::LostRequest => return Some((0, Vec::new())),
            _ => return None,
        };
        Some((status, answer.to_string().into_bytes()))
    }
}

pub fn internal() -> Vec<u8> {
    json!({"__type": "InternalServerError", "message": "an error"}).to_string().into_bytes()
}

/// Returns a canceled transaction. Conflicts may concern several of its rows.
fn conflict(body: &Value, dice: &mut Rng) -> Value {
    let number = body["TransactItems"].as_array().map_or(1, Vec::len);
    let certain = dice.usize(0..number);
    let mut reason = |at: usize| match at == certain || dice.u32(0..3) == 0 {
        true => json!({"Code": "TransactionConflict", "Message": "Transaction is ongoing for the item"}),
        false => json!({"Code": "None"}),
    };
    let reasons: Vec<_> = (0..number).map(&mut reason).collect();
    json!({
        "__type": "TransactionCanceledException", "message": "Transaction cancelled", "CancellationReasons": reasons,
    })
}

/// A batch of which a part is not carried out.
pub struct Part {
    /// The request with the part that is carried out.
    pub request: Value,
    rest: Rest,
}

enum Rest {
    Keys(serde_json::Map<String, Value>),
    Entries(Vec<Value>),
    /// The places of the statements that are not executed.
    Statements(Vec<usize>),
}

impl Part {
    /// Leaves out about half of a batch. At least one element stays.
    pub fn of(operation: &str, body: &Value, dice: &mut Rng) -> Self {
        let mut request = body.clone();
        let mut is_left_out = |at: usize| at > 0 && dice.bool();
        let rest = match operation {
            "BatchGetItem" => {
                let mut rest = serde_json::Map::new();
                for (table, wanted) in request["RequestItems"].as_object_mut().into_iter().flatten() {
                    let (left, kept) = split(&mut wanted["Keys"], &mut is_left_out);
                    if !left.is_empty() {
                        let mut unread = wanted.clone();
                        unread["Keys"] = left.into_iter().map(|(_, key)| key).collect();
                        rest.insert(table.clone(), unread);
                    }
                    wanted["Keys"] = kept.into();
                }
                Rest::Keys(rest)
            }
            "SendMessageBatch" => {
                let (left, kept) = split(&mut request["Entries"], &mut is_left_out);
                request["Entries"] = kept.into();
                Rest::Entries(left.into_iter().map(|(_, entry)| entry).collect())
            }
            _ => {
                let (left, kept) = split(&mut request["Statements"], &mut is_left_out);
                request["Statements"] = kept.into();
                Rest::Statements(left.into_iter().map(|(at, _)| at).collect())
            }
        };
        Self { request, rest }
    }

    /// Adds the part that was not carried out to the answer.
    pub fn complete(self, answer: &[u8]) -> Vec<u8> {
        let mut answer: Value = serde_json::from_slice(answer).unwrap_or_default();
        match self.rest {
            Rest::Keys(keys) => answer["UnprocessedKeys"] = keys.into(),
            Rest::Entries(entries) => {
                let failed = entries.iter().map(|entry| {
                    json!({"Id": entry["Id"], "SenderFault": false, "Code": "InternalError", "Message": "an error"})
                });
                answer["Failed"] = failed.collect();
            }
            Rest::Statements(places) => {
                if let Some(responses) = answer["Responses"].as_array_mut() {
                    for at in places {
                        let error = json!({"Code": "ThrottlingError", "Message": "slow down"});
                        responses.insert(at.min(responses.len()), json!({"Error": error}));
                    }
                }
            }
        }
        answer.to_string().into_bytes()
    }
}

/// Splits a list into the elements that are left out, with their places, and those that stay.
fn split(list: &mut Value, is_left_out: &mut impl FnMut(usize) -> bool) -> (Vec<(usize, Value)>, Vec<Value>) {
    let (mut left, mut kept) = (Vec::new(), Vec::new());
    for (at, element) in list.as_array().cloned().unwrap_or_default().into_iter().enumerate() {
        match is_left_out(at) {
            true => left.push((at, element)),
            false => kept.push(element),
        }
    }
    (left, kept)
}
