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
    /// The stream and its one shard, by table.
    shards: Arc<BTreeMap<String, (String, String)>>,
    written: Arc<Mutex<Written>>,
}

/// What writes have left behind.
#[derive(Default)]
struct Written {
    lag: Lag,
    /// When the index by time shows each row to a sweep or to recovery, in milliseconds.
    due: BTreeMap<Place, i64>,
    /// When TTL may delete each row, in milliseconds.
    expires: BTreeMap<Place, i64>,
    /// All rows, as plain JSON.
    rows: Rows,
    /// What was written since it was checked last.
    changes: Vec<Change>,
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
        let db = empty(model, epoch);
        let with_streams = model.tables.iter().filter(|table| table.streams);
        let shards = with_streams.map(|table| (table.name.clone(), shard(&db, &table.name))).collect();
        Self { db, model, epoch, shards: Arc::new(shards), written: Arc::default() }
    }

    /// Carries out an operation at this time. Returns the status and the body of the response.
    pub fn call(&self, operation: &str, body: &Value, now_ms: i64) -> (u16, Vec<u8>) {
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

    /// Keeps what a write left behind, for indexes that lag and for rules that hold of each write.
    /// The rows of statements have no index.
    fn note_writes(&self, operation: &str, body: &Value, at_ms: i64) {
        let key = |item: &Value| json!({"pk": item["pk"], "sk": item["sk"]});
        let rows: Vec<(&Value, Value)> = match operation {
            "PutItem" => vec![(&body["TableName"], key(&body["Item"]))],
            "UpdateItem" | "DeleteItem" => vec![(&body["TableName"], body["Key"].clone())],
            "TransactWriteItems" => {
                let parts = body["TransactItems"].as_array().into_iter().flatten();
                let parts = parts.filter_map(|part| part.as_object()?.iter().next());
                let writes =
                    parts.filter(|(kind, _)| *kind != "ConditionCheck").map(|(_, write)| match &write["Key"] {
                        Value::Null => (&write["TableName"], key(&write["Item"])),
                        key => (&write["TableName"], key.clone()),
                    });
                writes.collect()
            }
            "ExecuteStatement" | "BatchExecuteStatement" => return self.note_statements(body),
            _ => return,
        };
        for (table, key) in rows {
            let table = table.as_str().unwrap_or_default().to_owned();
            let read = request(json!({"TableName": table, "Key": key, "ConsistentRead": true}));
            let row = self.db.get_item(read).expect("the row").item;
            let row = row.map(|row| serde_json::to_value(row).expect("JSON"));
            self.note_times(&table, &key, row.as_ref());
            self.note_change(&table, &key, row.as_ref().map(plain_map));
            self.written().lag.writes.push(After { at_ms, table, key, row });
        }
    }

    /// Keeps the row before and after a write.
    fn note_change(&self, table: &str, key: &Value, after: Option<Value>) {
        let word = |name: &str| key[name]["S"].as_str().unwrap_or_default().to_owned();
        let (table, pk, sk) = (self.logical_id(table).to_owned(), word("pk"), word("sk"));
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
    fn note_statements(&self, body: &Value) {
        let statements = body["Statements"].as_array().map_or(std::slice::from_ref(body), Vec::as_slice);
        // Statements name their table in quotation marks.
        let tables: BTreeSet<_> =
            statements.iter().filter_map(|one| one["Statement"].as_str()?.split('"').nth(1)).collect();
        for table in tables {
            let name = self.logical_id(table);
            let rows = self.rows(table);
            let mut written = self.written();
            for row in rows {
                let word = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
                let (pk, sk) = (word("pk"), word("sk"));
                if written.rows.get(name, &pk, &sk) != Some(&row) {
                    let before = written.rows.put(name, row.clone());
                    written.changes.push(Change { table: name.to_owned(), pk, sk, before, after: Some(row) });
                }
            }
        }
    }

    /// Keeps when a row is due and when it expires.
    fn note_times(&self, table: &str, key: &Value, row: Option<&Value>) {
        let word = |name: &str| key[name]["S"].as_str().unwrap_or_default().to_owned();
        let place: Place = (table.to_owned(), word("pk"), word("sk"));
        let due = row.and_then(due_ms);
        let attribute = self.model.tables.iter().find(|known| known.name == table);
        let attribute = attribute.and_then(|table| table.ttl_attribute.as_deref());
        let expires = attribute.and_then(|attribute| row?[attribute]["N"].as_str()?.parse::<i64>().ok());
        let mut written = self.written();
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
        let mut rows = Vec::new();
        let mut start = Value::Null;
        loop {
            let mut scan = json!({"TableName": table});
            if !start.is_null() {
                scan["ExclusiveStartKey"] = start;
            }
            let page = self.db.scan(serde_json::from_value(scan).expect("a scan")).expect("scanned");
            let page = serde_json::to_value(page).expect("JSON");
            rows.extend(page["Items"].as_array().into_iter().flatten().map(plain_map));
            start = page["LastEvaluatedKey"].clone();
            if start.is_null() {
                return rows;
            }
        }
    }

    /// Returns the changes of a table after a sequence number, oldest first, as a stream delivers
    /// them.
    pub fn changes(&self, table: &str, after: Option<&str>, limit: usize) -> Vec<Value> {
        let Some((arn, shard)) = self.shards.get(table) else { return Vec::new() };
        let mut iterator = json!({"StreamArn": arn, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"});
        if let Some(after) = after {
            iterator["ShardIteratorType"] = json!("AFTER_SEQUENCE_NUMBER");
            iterator["SequenceNumber"] = json!(after);
        }
        let iterator = self.db.get_shard_iterator(request(iterator)).expect("an iterator").shard_iterator;
        let read = request(json!({"ShardIterator": iterator, "Limit": limit}));
        let read = serde_json::to_value(self.db.get_records(read).expect("records").records).expect("JSON");
        let Value::Array(mut records) = read else { return Vec::new() };
        for record in &mut records {
            record["eventSourceARN"] = json!(arn);
        }
        records
    }
}

/// What a row may wait for without anything being done when its time has come.
const NOT_DUE: [&str; 2] = ["UNKNOWN#", "HUMAN#"];

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
        db.create_table(request(table.create.clone())).expect("created");
    }
    db
}

fn request<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a request")
}

fn shard(db: &Database, table: &str) -> (String, String) {
    let streams = db.list_streams(request(json!({"TableName": table}))).expect("streams");
    let arn = serde_json::to_value(streams).expect("JSON")["Streams"][0]["StreamArn"].as_str().map(str::to_owned);
    let arn = arn.expect("the table has a stream");
    let stream = db.describe_stream(request(json!({"StreamArn": arn}))).expect("a stream");
    let stream = serde_json::to_value(stream).expect("JSON");
    let shard = stream["StreamDescription"]["Shards"][0]["ShardId"].as_str().map(str::to_owned);
    (arn, shard.expect("the stream has a shard"))
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
