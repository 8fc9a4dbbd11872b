//! Compares two answers to one request.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::dynamo::key_limits;
use crate::model::Table;

/// A difference that is known, with the reason why it is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Known {
    /// DynamoDB Local counts capacity units in its own way: 2 instead of 4 for a transaction of two
    /// small puts, and none for a rejected or a PartiQL write.
    CapacityUnits,
    /// AWS does not specify the order of a Scan and a BatchGetItem, nor that of the rows of an
    /// index with equal keys.
    Order,
    /// The messages of some errors end with a full stop in one of the two.
    FullStop,
    /// DynamoDB Local keeps zeros at the start or the end of a number in some answers. AWS returns
    /// it in its normal form, as the emulator does.
    NumberForm,
    /// DynamoDB Local has messages of its own for keys that are too long.
    KeyLengthMessage,
    /// DynamoDB Local accepts a condition with a partition key of more than 2,048 bytes. AWS and
    /// the front reject it.
    LongPartitionKey,
    /// For a write of a transaction that is not valid, AWS and the emulator cancel the transaction
    /// with a reason; DynamoDB Local rejects the request.
    InvalidWrite,
}

impl Known {
    const ALL: [Self; 7] = [
        Self::CapacityUnits,
        Self::Order,
        Self::FullStop,
        Self::NumberForm,
        Self::KeyLengthMessage,
        Self::LongPartitionKey,
        Self::InvalidWrite,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::CapacityUnits => "capacity units",
            Self::Order => "order",
            Self::FullStop => "full stop",
            Self::NumberForm => "form of a number",
            Self::KeyLengthMessage => "message about the length of a key",
            Self::LongPartitionKey => "condition with a long partition key",
            Self::InvalidWrite => "invalid write of a transaction",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Same,
    Known(BTreeSet<Known>),
    Different,
}

/// The status and the body of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// A call, as far as it says what may differ between its answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) tables: &'a [Table],
    pub(super) operation: &'a str,
    pub(super) request: &'a Value,
}

impl Call<'_> {
    /// Compares two answers in everything: the status, the type and the message of the error,
    /// items, old items, the reasons of a cancellation, cursors and counts.
    pub(super) fn compare(&self, ours: &Answer, theirs: &Answer) -> Outcome {
        let plain = |answer: &Answer| Answer { status: answer.status, body: plain(&answer.body) };
        let (ours, theirs) = (plain(ours), plain(theirs));
        if ours == theirs {
            return Outcome::Same;
        }
        let all: BTreeSet<_> = Known::ALL.into_iter().collect();
        if !self.is_explained(&ours, &theirs, &all) {
            return Outcome::Different;
        }
        let is_needed = |known: &Known| {
            let others = all.iter().copied().filter(|other| other != known).collect();
            !self.is_explained(&ours, &theirs, &others)
        };
        Outcome::Known(all.iter().copied().filter(is_needed).collect())
    }

    /// Returns whether the answers are the same apart from these differences.
    fn is_explained(&self, ours: &Answer, theirs: &Answer, known: &BTreeSet<Known>) -> bool {
        let explains = |ours: &Answer, theirs: &Answer| {
            known.contains(&Known::LongPartitionKey) && self.is_long_partition_key(ours, theirs)
                || known.contains(&Known::InvalidWrite) && is_invalid_write(&ours.body, &theirs.body)
        };
        let equalized = |answer: &Answer| {
            let mut answer = answer.clone();
            known.iter().for_each(|known| self.equalize(*known, &mut answer.body));
            answer
        };
        explains(ours, theirs) || equalized(ours) == equalized(theirs)
    }

    /// Removes a known difference from a body.
    fn equalize(&self, known: Known, body: &mut Value) {
        match known {
            Known::CapacityUnits => drop(body.as_object_mut().and_then(|body| body.remove("ConsumedCapacity"))),
            Known::Order => self.sort(body),
            Known::FullStop => each_message(body, |text| text.trim_end_matches('.').to_owned()),
            Known::NumberForm => each_typed(body, &mut |kind, value| {
                if let ("N", Value::String(number)) = (kind, value) {
                    *number = normal_form(number);
                }
            }),
            Known::KeyLengthMessage => each_message(body, without_key_length),
            Known::LongPartitionKey | Known::InvalidWrite => {}
        }
    }

    /// Sorts the items of which AWS does not specify the order.
    fn sort(&self, body: &mut Value) {
        match self.operation {
            "Scan" => body["Items"].as_array_mut().into_iter().for_each(|items| sort(items)),
            "BatchGetItem" => {
                let tables = body["Responses"].as_object_mut().into_iter().flatten();
                tables.filter_map(|(_, items)| items.as_array_mut()).for_each(|items| sort(items));
            }
            "Query" if self.request.get("IndexName").is_some() => {
                let range = self.range_of_index();
                let same = |a: &Value, b: &Value| range.is_none_or(|range| a.get(range) == b.get(range));
                body["Items"].as_array_mut().into_iter().flat_map(|items| items.chunk_by_mut(same)).for_each(sort);
            }
            _ => {}
        }
    }

    /// Returns the name of the sort key of the index of a query.
    fn range_of_index(&self) -> Option<&str> {
        let table = self.tables.iter().find(|table| self.request["TableName"] == *table.name)?;
        let indexes = ["GlobalSecondaryIndexes", "LocalSecondaryIndexes"].map(|kind| table.create[kind].as_array());
        let mut indexes = indexes.into_iter().flatten().flatten();
        let index = indexes.find(|index| index["IndexName"] == self.request["IndexName"])?;
        let range = index["KeySchema"].as_array()?.iter().find(|part| part["KeyType"] == "RANGE")?;
        range["AttributeName"].as_str()
    }

    fn is_long_partition_key(&self, ours: &Answer, theirs: &Answer) -> bool {
        let is_refused = ours.status == 400 && ours.body["message"] == key_limits::HASH_TOO_LONG;
        self.operation == "Query" && is_refused && theirs.status == 200
    }
}

fn is_invalid_write(ours: &Value, theirs: &Value) -> bool {
    let reasons = ours["CancellationReasons"].as_array();
    let is_invalid = reasons.into_iter().flatten().any(|reason| reason["Code"] == "ValidationError");
    ours["__type"] == "TransactionCanceledException" && is_invalid && theirs["__type"] == "ValidationException"
}

/// Returns an answer without what has no meaning: the namespace of an error, the spelling of
/// `Message`, the order of a set, and lists of unprocessed parts that are empty.
fn plain(body: &Value) -> Value {
    let mut body = body.clone();
    each_typed(&mut body, &mut |kind, value| {
        if let ("SS" | "NS" | "BS", Value::Array(values)) = (kind, value) {
            sort(values);
        }
    });
    if let Some(fields) = body.as_object_mut() {
        if let Some(message) = fields.remove("Message") {
            fields.insert("message".to_owned(), message);
        }
        if let Some(kind) = fields.get("__type").and_then(Value::as_str) {
            let kind = kind.rsplit('#').next().unwrap_or_default().to_owned();
            fields.insert("__type".to_owned(), Value::String(kind));
        }
        let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
        fields.retain(|name, value| !(name.starts_with("Unprocessed") && is_empty(value)));
    }
    body
}

/// Calls `change` with the type and the value of every attribute, also inside lists and maps.
fn each_typed(value: &mut Value, change: &mut impl FnMut(&str, &mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                change(name, value);
                each_typed(value, change);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| each_typed(value, change)),
        _ => {}
    }
}

/// Changes the message of the error, and those of the reasons of a cancellation and of the
/// statements of a batch.
fn each_message(body: &mut Value, change: impl Fn(&str) -> String) {
    let changed = |message: &mut Value| {
        if let Value::String(text) = message {
            *text = change(text);
        }
    };
    if let Some(fields) = body.as_object_mut() {
        fields.get_mut("message").into_iter().for_each(changed);
    }
    let reasons = body.get_mut("CancellationReasons").and_then(Value::as_array_mut);
    reasons.into_iter().flatten().filter_map(|reason| reason.get_mut("Message")).for_each(changed);
    let responses = body.get_mut("Responses").and_then(Value::as_array_mut);
    let errors = responses.into_iter().flatten().filter_map(|response| response.get_mut("Error"));
    errors.filter_map(|error| error.get_mut("Message")).for_each(changed);
}

fn without_key_length(text: &str) -> String {
    const THEIRS: [&str; 2] = [
        "Hash primary key values must be under 2048 bytes, and range primary key values must be under 1024 bytes",
        "One or more parameter values were invalid: Size limit exceeded",
    ];
    let is_length = [key_limits::HASH_TOO_LONG, key_limits::RANGE_TOO_LONG].contains(&text) || THEIRS.contains(&text);
    if is_length { "a key is too long".to_owned() } else { text.to_owned() }
}

/// Returns a number without zeros that do not change it.
fn normal_form(number: &str) -> String {
    let (sign, digits) = number.strip_prefix('-').map_or(("", number), |digits| ("-", digits));
    let digits = digits.trim_start_matches('0');
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    let digits = if digits.is_empty() { "0" } else { digits };
    let digits = if digits.starts_with('.') { format!("0{digits}") } else { digits.to_owned() };
    format!("{sign}{digits}")
}

fn sort(values: &mut [Value]) {
    values.sort_by_cached_key(Value::to_string);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compare(operation: &str, request: &Value, ours: (u16, Value), theirs: (u16, Value)) -> Outcome {
        let create = json!({
            "GlobalSecondaryIndexes": [
                {"IndexName": "by-time", "KeySchema": [
                    {"AttributeName": "wake", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"},
                ]},
                {"IndexName": "by-state", "KeySchema": [{"AttributeName": "state", "KeyType": "HASH"}]},
            ],
        });
        let (logical_id, name) = ("Rows".to_owned(), "rows".to_owned());
        let tables = [Table { logical_id, name, create, ttl_attribute: None, streams: false }];
        let of = |(status, body)| Answer { status, body };
        Call { tables: &tables, operation, request }.compare(&of(ours), &of(theirs))
    }

    fn known(known: &[Known]) -> Outcome {
        Outcome::Known(known.iter().copied().collect())
    }

    #[test]
    fn answers_that_mean_the_same_are_the_same() {
        let ours = json!({
            "__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", "message": "refused",
            "Item": {"tags": {"SS": ["a", "b"]}, "in": {"L": [{"M": {"n": {"NS": ["1", "2"]}}}]}},
        });
        let theirs = json!({
            "__type": "com.amazon.coral#ConditionalCheckFailedException", "Message": "refused", "UnprocessedKeys": {},
            "Item": {"in": {"L": [{"M": {"n": {"NS": ["2", "1"]}}}]}, "tags": {"SS": ["b", "a"]}},
        });
        assert_eq!(compare("PutItem", &json!({}), (400, ours), (400, theirs)), Outcome::Same);
    }

    #[test]
    fn every_part_of_an_answer_is_compared() {
        let refused = |kind: &str| json!({"__type": format!("x#{kind}"), "message": "refused"});
        let reasons = |code: &str| json!({"CancellationReasons": [{"Code": "None"}, {"Code": code}]});
        for (ours, theirs) in [
            ((200, json!({})), (400, json!({}))),
            ((400, refused("ValidationException")), (400, refused("ConditionalCheckFailedException"))),
            ((400, json!({"message": "a"})), (400, json!({"message": "b"}))),
            ((400, json!({"Item": {"a": {"S": "1"}}})), (400, json!({"Item": {"a": {"S": "2"}}}))),
            ((400, json!({"Item": {"a": {"S": "1"}}})), (400, json!({}))),
            ((400, reasons("ConditionalCheckFailed")), (400, reasons("TransactionConflict"))),
            ((200, json!({"Attributes": {"a": {"N": "1"}}})), (200, json!({"Attributes": {"a": {"N": "2"}}}))),
            ((200, json!({"LastEvaluatedKey": {"a": {"S": "1"}}})), (200, json!({}))),
            ((200, json!({"Count": 1})), (200, json!({"Count": 2}))),
            ((200, json!({"Items": [{"a": {"S": "1"}}]})), (200, json!({"Items": [{"a": {"S": "2"}}]}))),
            ((200, json!({"Item": {"a": {"L": [{"S": "1"}, {"S": "2"}]}}})), {
                (200, json!({"Item": {"a": {"L": [{"S": "2"}, {"S": "1"}]}}}))
            }),
            ((200, json!({"UnprocessedKeys": {"rows": {}}})), (200, json!({}))),
        ] {
            for operation in ["Query", "Scan", "TransactWriteItems"] {
                let request = json!({"TableName": "rows", "IndexName": "by-time"});
                let outcome = compare(operation, &request, ours.clone(), theirs.clone());
                assert_eq!(outcome, Outcome::Different, "{operation} {ours:?} {theirs:?}");
            }
        }
    }

    #[test]
    fn the_order_counts_where_it_is_specified() {
        let row = |id: &str, at: &str| json!({"id": {"S": id}, "at": {"S": at}});
        let (a, b, c) = (row("a", "1"), row("b", "1"), row("c", "2"));
        let items = |rows: [&Value; 3]| (200, json!({"Items": rows}));
        let of = |index: Option<&str>| json!({"TableName": "rows", "IndexName": index});
        let in_table = json!({"TableName": "rows"});
        let outcome =
            |operation, request: &Value, theirs| compare(operation, request, items([&a, &b, &c]), items(theirs));
        assert_eq!(outcome("Scan", &in_table, [&c, &b, &a]), known(&[Known::Order]));
        assert_eq!(outcome("Query", &in_table, [&b, &a, &c]), Outcome::Different);
        assert_eq!(outcome("Query", &of(Some("by-time")), [&b, &a, &c]), known(&[Known::Order]), "equal keys");
        assert_eq!(outcome("Query", &of(Some("by-time")), [&c, &a, &b]), Outcome::Different, "other keys");
        assert_eq!(outcome("Query", &of(Some("by-state")), [&c, &b, &a]), known(&[Known::Order]), "no sort key");
        let batch = |rows: [&Value; 3]| (200, json!({"Responses": {"rows": rows}}));
        let outcome = compare("BatchGetItem", &json!({}), batch([&a, &b, &c]), batch([&b, &c, &a]));
        assert_eq!(outcome, known(&[Known::Order]));
    }

    #[test]
    fn known_differences_are_listed_and_hide_no_other() {
        let units = |units: f64, item: &str| {
            (200, json!({"ConsumedCapacity": {"CapacityUnits": units}, "Item": {"a": {"N": item}}}))
        };
        let request = json!({"TableName": "rows"});
        let outcome = |ours, theirs| compare("GetItem", &request, ours, theirs);
        assert_eq!(outcome(units(1.0, "1"), units(2.0, "1")), known(&[Known::CapacityUnits]));
        assert_eq!(outcome(units(1.0, "1"), units(1.0, "01.0")), known(&[Known::NumberForm]));
        let both = known(&[Known::CapacityUnits, Known::NumberForm]);
        assert_eq!(outcome(units(1.0, "-0.5"), units(2.0, "-00.50")), both);
        assert_eq!(outcome(units(1.0, "1"), units(2.0, "10")), Outcome::Different);

        let said = |text: &str| (400, json!({"__type": "x#ValidationException", "message": text}));
        assert_eq!(outcome(said("no"), said("no.")), known(&[Known::FullStop]));
        let reason = |text: &str| (400, json!({"CancellationReasons": [{"Code": "x", "Message": text}]}));
        assert_eq!(outcome(reason("no."), reason("no")), known(&[Known::FullStop]));
        let exceeded = said("One or more parameter values were invalid: Size limit exceeded");
        assert_eq!(outcome(said(key_limits::RANGE_TOO_LONG), exceeded), known(&[Known::KeyLengthMessage]));

        let accepted = (200, json!({"Items": []}));
        let long = |theirs| compare("Query", &request, said(key_limits::HASH_TOO_LONG), theirs);
        assert_eq!(long(accepted.clone()), known(&[Known::LongPartitionKey]));
        let range = compare("Query", &request, said(key_limits::RANGE_TOO_LONG), accepted);
        assert_eq!(range, Outcome::Different);

        let canceled = |code: &str| {
            (400, json!({"__type": "x#TransactionCanceledException", "CancellationReasons": [{"Code": code}]}))
        };
        let transaction = |ours| compare("TransactWriteItems", &request, ours, said("no"));
        assert_eq!(transaction(canceled("ValidationError")), known(&[Known::InvalidWrite]));
        assert_eq!(transaction(canceled("ConditionalCheckFailed")), Outcome::Different);
    }
}
