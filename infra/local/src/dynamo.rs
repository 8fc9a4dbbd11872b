//! DynamoDB and its streams: the embedded emulator, the tables of the template, and TTL that
//! follows the stack's clock.

mod changes;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use dynoxide::Database;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::StackError;
use crate::clock::Clock;
use crate::model::Table;

#[derive(Clone)]
pub struct Dynamo {
    db: Database,
    pub address: SocketAddr,
    tables: Arc<Vec<Table>>,
    clock: Clock,
    /// The table, key and expiry of each row that TTL removed. The emulator's own sweep uses the
    /// machine's clock, so this module removes the rows itself, and adds the mark that AWS puts on
    /// such removals to their stream records.
    removed_by_ttl: Arc<Mutex<HashSet<String>>>,
    /// Allows one sweep at a time. Of two sweeps that remove the same row, the one that fails would
    /// drop the mark of the other.
    sweeping: Arc<Mutex<()>>,
    server: Arc<Mutex<Option<Server>>>,
    /// A copy of the tables from the moment when the indexes were frozen, and the file of that
    /// copy.
    frozen: Arc<Mutex<Option<(Database, PathBuf)>>>,
    /// The stream and shard of each table, by table name.
    shards: Arc<Mutex<HashMap<String, changes::Shard>>>,
}

struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Dynamo {
    /// Opens the database (in memory if there is no file), creates the missing tables, and serves
    /// the database on loopback.
    pub async fn start(
        file: Option<&Path>,
        tables: &[Table],
        clock: Clock,
        removed_by_ttl: &[String],
    ) -> Result<Self, StackError> {
        let db = match file {
            None => Database::memory(),
            Some(file) => Database::new(&file.to_string_lossy()),
        }
        .map_err(|error| StackError::Emulator(format!("DynamoDB: {error}")))?;
        if file.is_some() {
            // This sets SQLite to synchronous=NORMAL, which is five times faster and still loses
            // nothing when the process is killed.
            db.enable_bulk_loading().and_then(|()| db.disable_bulk_loading()).map_err(emulator)?;
        }
        create_tables(&db, tables)?;
        changes::add_index(&db, file)?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(StackError::Io)?;
        listener.set_nonblocking(true).map_err(StackError::Io)?;
        let address = listener.local_addr().map_err(StackError::Io)?;
        let server = serve(listener, db.clone())?;
        Ok(Self {
            db,
            address,
            tables: Arc::new(tables.to_vec()),
            clock,
            removed_by_ttl: Arc::new(Mutex::new(removed_by_ttl.iter().cloned().collect())),
            sweeping: Arc::default(),
            server: Arc::new(Mutex::new(Some(server))),
            frozen: Arc::default(),
            shards: Arc::default(),
        })
    }

    /// Stops the server and waits for its thread to end, so that the next start can open the file.
    pub fn stop(&self) {
        self.thaw();
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(server) = server {
            // If the receiver is gone, the thread has already ended.
            let _ = server.stop.send(());
            let _ = server.thread.join();
        }
    }

    /// Copies the tables as they are now, for [`Self::query_frozen`].
    pub async fn freeze(&self) -> Result<(), StackError> {
        let this = self.clone();
        blocking(move || {
            let file = temporary_file();
            this.db.vacuum_into(&file.to_string_lossy()).map_err(emulator)?;
            let copy = Database::new(&file.to_string_lossy()).map_err(emulator)?;
            this.thaw();
            *this.frozen.lock().unwrap_or_else(PoisonError::into_inner) = Some((copy, file));
            Ok(())
        })
        .await
    }

    /// Drops the copy.
    pub fn thaw(&self) {
        let frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((copy, file)) = frozen {
            drop(copy);
            // The file is in the system's temporary directory, so it does no harm if it cannot be
            // removed.
            let _ = std::fs::remove_file(file);
        }
    }

    /// Answers a query from the copy, as an index that lags behind would. Returns `None` if there
    /// is no copy.
    pub async fn query_frozen(&self, body: Value) -> Option<Result<Value, StackError>> {
        let copy = self.frozen.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(copy, _)| copy.clone())?;
        let answered = blocking(move || {
            let answer = copy.query(request(body)?).map_err(emulator)?;
            serde_json::to_value(answer).map_err(|error| StackError::Emulator(error.to_string()))
        });
        Some(answered.await)
    }

    /// Removes the rows that have expired by the stack's clock, as TTL does on AWS within a few
    /// days. Returns the number of removed rows.
    pub async fn sweep_ttl(&self) -> Result<usize, StackError> {
        let this = self.clone();
        blocking(move || {
            let _one_at_a_time = this.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
            let now = this.clock.now_ms() / 1_000;
            let mut removed = 0;
            for table in this.tables.iter() {
                if let Some(attribute) = &table.ttl_attribute {
                    removed += this.sweep_table(table, attribute, now)?;
                }
            }
            Ok(removed)
        })
        .await
    }

    fn sweep_table(&self, table: &Table, attribute: &str, now: i64) -> Result<usize, StackError> {
        let condition = "#ttl <= :now";
        let names = json!({"#ttl": attribute});
        let values = json!({":now": {"N": now.to_string()}});
        let key_names = key_names(table);
        let mut start = Value::Null;
        let mut removed = 0;
        loop {
            let mut scan = json!({
                "TableName": table.name, "FilterExpression": condition,
                "ExpressionAttributeNames": names, "ExpressionAttributeValues": values,
            });
            if !start.is_null() {
                scan["ExclusiveStartKey"] = start;
            }
            let page = self.db.scan(request(scan)?).map_err(emulator)?;
            let page = serde_json::to_value(page).map_err(|error| StackError::Emulator(error.to_string()))?;
            for item in page["Items"].as_array().into_iter().flatten() {
                let key: Value = key_names.iter().map(|name| (name.clone(), item[name].clone())).collect();
                let mark = mark(&table.name, &key, &item[attribute]);
                self.marks().insert(mark.clone());
                let delete = json!({
                    "TableName": table.name, "Key": key, "ConditionExpression": condition,
                    "ExpressionAttributeNames": names, "ExpressionAttributeValues": values,
                });
                match self.db.delete_item(request(delete)?) {
                    Ok(_) => removed += 1,
                    // The row was renewed or deleted after the scan.
                    Err(_) => {
                        self.marks().remove(&mark);
                    }
                }
            }
            start = page["LastEvaluatedKey"].clone();
            if start.is_null() {
                return Ok(removed);
            }
        }
    }

    fn marks(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.removed_by_ttl.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the marks, so that the caller can store them for a restart.
    pub fn removed_by_ttl(&self) -> Vec<String> {
        self.marks().iter().cloned().collect()
    }
}

/// Creates the missing tables. Fails if a table exists that another template created, because its
/// rows and indexes would not match.
fn create_tables(db: &Database, tables: &[Table]) -> Result<(), StackError> {
    let json = |value: serde_json::Result<Value>| value.map_err(|error| StackError::Emulator(error.to_string()));
    let existing = json(serde_json::to_value(db.list_tables(request(json!({}))?).map_err(emulator)?))?;
    for table in tables {
        let there = existing["TableNames"].as_array().is_some_and(|names| names.contains(&json!(table.name)));
        if !there {
            db.create_table(request(table.create.clone())?).map_err(emulator)?;
            continue;
        }
        let described = db.describe_table(request(json!({"TableName": table.name}))?).map_err(emulator)?;
        let described = json(serde_json::to_value(described))?;
        if shape(&described["Table"]) != shape(&table.create) {
            let name = &table.name;
            return Err(StackError::State(format!(
                "the table {name} was made by another template; choose another directory with --data, or delete it"
            )));
        }
    }
    Ok(())
}

/// Returns the parts of a table's definition that its rows and queries depend on.
fn shape(table: &Value) -> Value {
    let indexes = |kind: &str| {
        let all = table[kind].as_array().into_iter().flatten();
        let mut indexes: Vec<_> = all
            .map(|index| json!([index["IndexName"], index["KeySchema"], index["Projection"]["ProjectionType"]]))
            .collect();
        indexes.sort_by_key(ToString::to_string);
        indexes
    };
    let (global, local) = (indexes("GlobalSecondaryIndexes"), indexes("LocalSecondaryIndexes"));
    json!([table["KeySchema"], global, local, table["StreamSpecification"]["StreamViewType"]])
}

fn temporary_file() -> PathBuf {
    std::env::temp_dir().join(format!("umavez-{:016x}.sqlite", fastrand::u64(..)))
}

/// Serves the database on a separate thread, because SQLite blocks the thread that it runs on.
fn serve(listener: std::net::TcpListener, db: Database) -> Result<Server, StackError> {
    let (stop, stopped) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StackError::Io)?;
    let thread = std::thread::Builder::new().name("dynamodb".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            let shutdown = async move {
                let _ = stopped.await;
            };
            // Idle keep-alive connections must not delay the shutdown.
            let server = dynoxide::server::serve_with_shutdown(listener, db, shutdown);
            if let Err(error) = server.await {
                eprintln!("the DynamoDB emulator ended: {error}");
            }
        });
    });
    Ok(Server { stop, thread: thread.map_err(StackError::Io)? })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StackError> + Send + 'static,
) -> Result<T, StackError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StackError::Emulator(error.to_string()))?
}

fn request<T: serde::de::DeserializeOwned>(body: Value) -> Result<T, StackError> {
    serde_json::from_value(body).map_err(|error| StackError::Emulator(error.to_string()))
}

fn emulator(error: impl ToString) -> StackError {
    StackError::Emulator(format!("DynamoDB: {}", error.to_string()))
}

fn key_names(table: &Table) -> Vec<String> {
    let schema = table.create["KeySchema"].as_array();
    schema.into_iter().flatten().filter_map(|key| key["AttributeName"].as_str()).map(str::to_owned).collect()
}

fn mark(table: &str, key: &Value, expiry: &Value) -> String {
    format!("{table} {key} {expiry}")
}
