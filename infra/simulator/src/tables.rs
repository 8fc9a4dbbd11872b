//! DynamoDB in memory: the emulator of the local stack, called directly, with the tables of the
//! template.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use dynoxide::Database;
use dynoxide::errors::DynoxideError;
use dynoxide::storage_backend::Clock;
use serde_json::{Value, json};
use tokio::time::Instant;
use umavez_invariants::{Change, Rows, violations_of};
use umavez_local::model::Model;

/// The emulator's clock: virtual time.
struct Virtual(Instant, i64);

impl Clock for Virtual {
    fn now_unix_secs(&self) -> u64 {
        self.now_unix_secs_f64() as u64
    }

    fn now_unix_secs_f64(&self) -> f64 {
        self.1 as f64 / 1_000.0 + self.0.elapsed().as_secs_f64()
    }
}

#[derive(Clone)]
pub struct Tables {
    db: Database,
    model: &'static Model,
    epoch: (Instant, i64),
    written: Arc<Mutex<Written>>,
}

/// What writes have left behind.
#[derive(Default)]
struct Written {
    lag: Lag,
    /// When the index by time shows each row to a sweep or to recovery, in milliseconds.
    due: BTreeMap<Place, i64>,
    /// Since when each row waits for a person, in milliseconds. Recovery looks at those that have
    /// waited for long.
    waits: BTreeMap<Place, i64>,
    /// When TTL may delete each row, in milliseconds.
    expires: BTreeMap<Place, i64>,
    /// All rows, as plain JSON.
    rows: Rows,
    /// What was written since it was checked last.
    changes: Vec<Change>,
    /// The rows of tables with a stream, as DynamoDB writes them.
    images: BTreeMap<Place, Value>,
    /// The records of each stream, by table.
    streams: BTreeMap<String, Vec<Value>>,
}

/// The table, the partition key and the sort key of a row.
type Place = (String, String, String);

/// What indexes that lag have seen: a copy of the tables to which writes are applied later.
#[derive(Default)]
struct Lag {
    writes: Vec<After>,
    /// The copy, and how many of the writes are in it. It is made when the first index lags.
    copy: Option<(Database, usize)>,
}

/// A row after a write, or `None` if the write deleted it.
struct After {
    at_ms: i64,
    table: String,
    key: Value,
    row: Option<Value>,
}

/// Passes the operations to the methods of the emulator.
macro_rules! operations {
    ($db:expr, $operation:expr, $body:expr, { $($name:literal => $call:ident),+ $(,)? }) => {
        match $operation {
            $($name => serde_json::from_value($body)
                .map_err(|error| DynoxideError::SerializationException(error.to_string()))
                .and_then(|request| $db.$call(request))
                .map(|answer| serde_json::to_vec(&answer).expect("JSON")),)+
            other => panic!("the simulator has no DynamoDB operation {other}"),
        }
    };
}

impl Tables {
    pub fn new(model: &'static Model, epoch: (Instant, i64)) -> Self {
        Self { db: empty(model, epoch), model, epoch, written: Arc::default() }
    }

    /// Carries out an operation at this time. Returns the status and the body of the response.
    pub fn call(&self, operation: &str, body: &Value, now_ms: i64) -> (u16, Vec<u8>) {
        // The row after an update is wanted here, even if the caller does not ask for it.
        if operation == "UpdateItem" && matches!(body["ReturnValues"].as_str(), None | Some("NONE")) {
            let mut asking = body.clone();
            asking["ReturnValues"] = json!("ALL_NEW");
            let (status, answer) = self.ask(operation, asking);
            if status != 200 {
                return (status, answer);
            }
            let mut answer: Value = serde_json::from_slice(&answer).expect("JSON");
            let row = answer.as_object_mut().and_then(|answer| answer.remove("Attributes"));
            self.note_row(text(&body["TableName"]), &body["Key"], row, now_ms);
            return (200, serde_json::to_vec(&answer).expect("JSON"));
        }
        let answered = self.ask(operation, body.clone());
        if answered.0 == 200 {
            self.note_writes(operation, body, now_ms);
        }
        answered
    }

    fn ask(&self, operation: &str, body: Value) -> (u16, Vec<u8>) {
        let answered = operations!(self.db, operation, body, {
            "GetItem" => get_item,
            "PutItem" => put_item,
            "UpdateItem" => update_item,
            "DeleteItem" => delete_item,
            "Query" => query,
            "Scan" => scan,
            "BatchGetItem" => batch_get_item,
            "BatchWriteItem" => batch_write_item,
            "TransactWriteItems" => transact_write_items,
            "TransactGetItems" => transact_get_items,
            "ExecuteStatement" => execute_statement,
            "BatchExecuteStatement" => batch_execute_statement,
        });
        match answered {
            Ok(body) => (200, body),
            Err(error) => (error.status_code(), error.to_json().into_bytes()),
        }
    }

    /// Keeps what a write left behind, for indexes that lag, for streams and for rules that hold of
    /// each write.
    fn note_writes(&self, operation: &str, body: &Value, at_ms: i64) {
        match operation {
            "PutItem" => {
                let item = &body["Item"];
                self.note_row(text(&body["TableName"]), &key_of(item), Some(item.clone()), at_ms);
            }
            "UpdateItem" | "DeleteItem" => self.note_key(&body["TableName"], &body["Key"], at_ms),
            "TransactWriteItems" => {
                let parts = body["TransactItems"].as_array().into_iter().flatten();
                let parts = parts.filter_map(|part| part.as_object()?.iter().next());
                // A transaction that is repeated with its token changes nothing, so the rows are
                // read.
                for (_, write) in parts.filter(|(kind, _)| *kind != "ConditionCheck") {
                    let key = match &write["Key"] {
                        Value::Null => key_of(&write["Item"]),
                        key => key.clone(),
                    };
                    self.note_key(&write["TableName"], &key, at_ms);
                }
            }
            "ExecuteStatement" | "BatchExecuteStatement" => self.note_statements(body, at_ms),
            _ => {}
        }
    }

    /// Keeps a row after a write that does not contain all of it.
    fn note_key(&self, table: &Value, key: &Value, at_ms: i64) {
        let read = request(json!({"TableName": table, "Key": key, "ConsistentRead": true}));
        let row = self.db.get_item(read).expect("the row").item;
        self.note_row(text(table), key, row.map(|row| serde_json::to_value(row).expect("JSON")), at_ms);
    }

    /// Keeps a row after a write, or that it is gone.
    fn note_row(&self, table: &str, key: &Value, row: Option<Value>, at_ms: i64) {
        self.note_times(table, key, row.as_ref(), at_ms);
        self.note_change(table, key, row.as_ref().map(plain_map));
        let table_of = self.model.tables.iter().find(|known| known.name == table);
        let mut written = self.written();
        if let Some(view) = table_of.and_then(|table| table.create["StreamSpecification"]["StreamViewType"].as_str()) {
            written.append(table, key, row.clone(), view, at_ms);
        }
        written.lag.writes.push(After { at_ms, table: table.to_owned(), key: key.clone(), row });
    }

    /// Keeps the row before and after a write.
    fn note_change(&self, table: &str, key: &Value, after: Option<Value>) {
        let (table, pk, sk) = (self.logical_id(table).to_owned(), word(key, "pk"), word(key, "sk"));
        let mut written = self.written();
        let before = match &after {
            Some(row) => written.rows.put(&table, row.clone()),
            None => written.rows.remove(&table, &pk, &sk),
        };
        written.changes.push(Change { table, pk, sk, before, after });
    }

    /// Returns what the writes since the last check have broken.
    pub fn violations(&self, now_ms: i64) -> Vec<String> {
        let mut written = self.written();
        let changes = std::mem::take(&mut written.changes);
        violations_of(&changes, &written.rows, now_ms)
    }

    fn logical_id<'a>(&self, table: &'a str) -> &'a str {
        self.model.tables.iter().find(|known| known.name == table).map_or(table, |known| &known.logical_id)
    }

    /// Keeps what statements have written. They do not name their keys in one form, so the rows of
    /// their tables are compared.
    fn note_statements(&self, body: &Value, at_ms: i64) {
        let statements = body["Statements"].as_array().map_or(std::slice::from_ref(body), Vec::as_slice);
        // Statements name their table in quotation marks.
        let tables: BTreeSet<_> =
            statements.iter().filter_map(|one| one["Statement"].as_str()?.split('"').nth(1)).collect();
        for table in tables {
            for row in self.items(table) {
                let key = key_of(&row);
                let is_known = {
                    let written = self.written();
                    let known = written.rows.get(self.logical_id(table), &word(&key, "pk"), &word(&key, "sk"));
                    known == Some(&plain_map(&row))
                };
                if !is_known {
                    self.note_row(table, &key, Some(row), at_ms);
                }
            }
        }
    }

    /// Keeps when a row is due and when it expires.
    fn note_times(&self, table: &str, key: &Value, row: Option<&Value>, at_ms: i64) {
        let place = place(table, key);
        let due = row.and_then(due_ms);
        let attribute = self.model.tables.iter().find(|known| known.name == table);
        let attribute = attribute.and_then(|table| table.ttl_attribute.as_deref());
        let expires = attribute.and_then(|attribute| row?[attribute]["N"].as_str()?.parse::<i64>().ok());
        let wake = row.and_then(|row| row["wake"]["S"].as_str());
        let waits = wake.is_some_and(|wake| FOR_A_PERSON.iter().any(|prefix| wake.starts_with(prefix)));
        let mut written = self.written();
        match waits {
            true => drop(written.waits.entry(place.clone()).or_insert(at_ms)),
            false => drop(written.waits.remove(&place)),
        }
        keep(&mut written.due, &place, due);
        keep(&mut written.expires, &place, expires.map(|at| at * 1_000));
    }

    fn written(&self) -> std::sync::MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the next row is due.
    pub fn next_due_ms(&self) -> Option<i64> {
        self.written().due.values().min().copied()
    }

    /// Returns the partitions of the rows that wait for a person, and since when each waits.
    pub fn waiting(&self) -> Vec<(String, i64)> {
        self.written().waits.iter().map(|((_, pk, _), at_ms)| (pk.clone(), *at_ms)).collect()
    }

    /// Returns when the next row expires after this time.
    pub fn next_expiry_ms(&self) -> Option<i64> {
        self.written().expires.values().min().copied()
    }

    /// Queries an index as it was at this time, or later if another query has seen it later.
    pub fn query_behind(&self, body: &Value, at_ms: i64) -> (u16, Vec<u8>) {
        let mut written = self.written();
        let Lag { writes, copy } = &mut written.lag;
        let (copy, seen) = copy.get_or_insert_with(|| (empty(self.model, self.epoch), 0));
        while let Some(After { table, key, row, .. }) = writes.get(*seen).filter(|write| write.at_ms <= at_ms) {
            match row {
                Some(row) => drop(copy.put_item(request(json!({"TableName": table, "Item": row})))),
                None => drop(copy.delete_item(request(json!({"TableName": table, "Key": key})))),
            }
            *seen += 1;
        }
        match copy.query(request(body.clone())) {
            Ok(answer) => (200, serde_json::to_vec(&answer).expect("JSON")),
            Err(error) => (error.status_code(), error.to_json().into_bytes()),
        }
    }

    /// Deletes rows whose time to live is over, as TTL does: sooner or later. `is_due` decides
    /// whether a row is deleted now. Returns how many were deleted.
    pub fn expire(&self, now_ms: i64, mut is_due: impl FnMut() -> bool) -> BTreeMap<String, u64> {
        let expired: Vec<_> = {
            let written = self.written();
            let over = written.expires.iter().filter(|(_, at)| **at < now_ms && is_due());
            over.map(|(place, _)| place.clone()).collect()
        };
        let mut deleted = BTreeMap::new();
        for (table, pk, sk) in expired {
            let key = json!({"pk": {"S": pk}, "sk": {"S": sk}});
            self.call("DeleteItem", &json!({"TableName": table, "Key": key}), now_ms);
            *deleted.entry(table).or_default() += 1;
        }
        deleted
    }

    /// Returns all rows of a table, as plain JSON.
    pub fn rows(&self, table: &str) -> Vec<Value> {
        self.items(table).iter().map(plain_map).collect()
    }

    /// Returns all rows of a table, as DynamoDB writes them.
    fn items(&self, table: &str) -> Vec<Value> {
        let mut rows = Vec::new();
        let mut start = Value::Null;
        loop {
            let mut scan = json!({"TableName": table});
            if !start.is_null() {
                scan["ExclusiveStartKey"] = start;
            }
            let page = self.db.scan(serde_json::from_value(scan).expect("a scan")).expect("scanned");
            let mut page = serde_json::to_value(page).expect("JSON");
            if let Value::Array(items) = page["Items"].take() {
                rows.extend(items);
            }
            start = page["LastEvaluatedKey"].clone();
            if start.is_null() {
                return rows;
            }
        }
    }

    /// Returns the changes of a table after so many, oldest first, as a stream delivers them.
    pub fn changes(&self, table: &str, after: usize, limit: usize) -> Vec<Value> {
        let written = self.written();
        let records = written.streams.get(table).map_or(&[][..], Vec::as_slice);
        records.iter().skip(after).take(limit).cloned().collect()
    }
}

impl Written {
    /// Appends a change to the stream of a table, with the images of the stream's view. A write
    /// that changes nothing has no record.
    fn append(&mut self, table: &str, key: &Value, row: Option<Value>, view: &str, at_ms: i64) {
        let place = place(table, key);
        let before = match &row {
            Some(row) => self.images.insert(place, row.clone()),
            None => self.images.remove(&place),
        };
        let event = match (&before, &row) {
            (None, None) => return,
            (Some(before), Some(row)) if before == row => return,
            (None, Some(_)) => "INSERT",
            (Some(_), Some(_)) => "MODIFY",
            (Some(_), None) => "REMOVE",
        };
        let records = self.streams.entry(table.to_owned()).or_default();
        let number = format!("{:021}", records.len() + 1);
        let mut change = json!({
            "ApproximateCreationDateTime": at_ms as f64 / 1_000.0, "Keys": key, "SequenceNumber": number,
            "SizeBytes": 1, "StreamViewType": view,
        });
        for (name, kind, image) in [("OldImage", "OLD", before), ("NewImage", "NEW", row)] {
            if let Some(image) = image.filter(|_| view.contains(kind)) {
                change[name] = image;
            }
        }
        records.push(json!({
            "eventID": number, "eventName": event, "eventVersion": "1.1", "eventSource": "aws:dynamodb",
            "awsRegion": "us-east-1", "eventSourceARN": format!("arn:aws:dynamodb:::table/{table}/stream/1"),
            "dynamodb": change,
        }));
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the key of an item.
fn key_of(item: &Value) -> Value {
    json!({"pk": item["pk"], "sk": item["sk"]})
}

fn word(key: &Value, name: &str) -> String {
    key[name]["S"].as_str().unwrap_or_default().to_owned()
}

fn place(table: &str, key: &Value) -> Place {
    (table.to_owned(), word(key, "pk"), word(key, "sk"))
}

/// What a row may wait for without anything being done when its time has come.
const NOT_DUE: [&str; 2] = ["UNKNOWN#", "HUMAN#"];
/// What a row waits for if only a person ends it.
const FOR_A_PERSON: [&str; 2] = ["HUMAN#", "HELD#"];

/// Returns when the index by time shows a row to a sweep or to recovery.
fn due_ms(row: &Value) -> Option<i64> {
    let waits_for = row["wake"]["S"].as_str()?;
    let at = row["wake_at"]["S"].as_str()?.split('#').next()?.parse::<i64>().ok()?;
    // A conversation is in the index since it is unanswered, and is checked at a time of its own.
    let at = row["check_at"]["N"].as_str().map_or(Some(at), |check| check.parse().ok())?;
    (!NOT_DUE.iter().any(|prefix| waits_for.starts_with(prefix))).then_some(at)
}

fn keep(times: &mut BTreeMap<Place, i64>, place: &Place, at_ms: Option<i64>) {
    match at_ms {
        Some(at_ms) => drop(times.insert(place.clone(), at_ms)),
        None => drop(times.remove(place)),
    }
}

fn empty(model: &Model, epoch: (Instant, i64)) -> Database {
    let db = Database::memory_with_clock(Arc::new(Virtual(epoch.0, epoch.1))).expect("a database in memory");
    for table in &model.tables {
        let mut create = table.create.clone();
        // The streams are kept here: the emulator looks up a record without an index.
        create.as_object_mut().expect("an object").remove("StreamSpecification");
        db.create_table(request(create)).expect("created");
    }
    db
}

fn request<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a request")
}

fn plain_map(item: &Value) -> Value {
    item.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), plain(value))).collect()
}

/// Returns the value of an attribute without its type.
pub fn plain(attribute: &Value) -> Value {
    let Some((kind, value)) = attribute.as_object().and_then(|object| object.iter().next()) else {
        return Value::Null;
    };
    match kind.as_str() {
        "N" => value.as_str().and_then(|text| text.parse::<i64>().ok()).map_or_else(|| value.clone(), Value::from),
        "M" => plain_map(value),
        "L" => value.as_array().into_iter().flatten().map(plain).collect(),
        "NULL" => Value::Null,
        _ => value.clone(),
    }
}
