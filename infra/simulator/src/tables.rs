//! DynamoDB in memory: the emulator of the local stack, called directly, with the tables of the
//! template.

use std::collections::BTreeMap;
use std::sync::Arc;

use dynoxide::Database;
use dynoxide::errors::DynoxideError;
use dynoxide::storage_backend::Clock;
use serde_json::{Value, json};
use tokio::time::Instant;
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
    /// The stream and its one shard, by table.
    shards: Arc<BTreeMap<String, (String, String)>>,
}

/// Passes the operations to the methods of the emulator.
macro_rules! operations {
    ($db:expr, $operation:expr, $body:expr, { $($name:literal => $call:ident),+ $(,)? }) => {
        match $operation {
            $($name => serde_json::from_slice($body)
                .map_err(|error| DynoxideError::SerializationException(error.to_string()))
                .and_then(|request| $db.$call(request))
                .map(|answer| serde_json::to_vec(&answer).expect("JSON")),)+
            other => panic!("the simulator has no DynamoDB operation {other}"),
        }
    };
}

impl Tables {
    pub fn new(model: &Model, epoch: (Instant, i64)) -> Self {
        let db = Database::memory_with_clock(Arc::new(Virtual(epoch.0, epoch.1))).expect("a database in memory");
        for table in &model.tables {
            db.create_table(serde_json::from_value(table.create.clone()).expect("a table")).expect("created");
        }
        let with_streams = model.tables.iter().filter(|table| table.streams);
        let shards = with_streams.map(|table| (table.name.clone(), shard(&db, &table.name))).collect();
        Self { db, shards: Arc::new(shards) }
    }

    /// Carries out an operation. Returns the status and the body of the response.
    pub fn call(&self, operation: &str, body: &[u8]) -> (u16, Vec<u8>) {
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
