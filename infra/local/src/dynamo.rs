//! DynamoDB and its streams: the embedded emulator, the tables of the template, and TTL that
//! follows the stack's clock.

mod changes;
pub mod key_limits;
mod ttl;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use dynoxide::Database;
use http::{HeaderMap, HeaderValue, StatusCode};
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub use self::key_limits::KeyLimits;
use crate::StackError;
use crate::beside::{self, Beside};
use crate::clock::Clock;
use crate::model::Table;

/// An answer of DynamoDB over HTTP.
#[derive(Debug, Clone)]
pub struct Answered {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answered {
    /// Sends a request. Returns `None` if it is not answered.
    pub async fn of(request: reqwest::RequestBuilder) -> Option<Self> {
        let response = request.send().await.ok()?;
        let (status, headers) = (response.status(), response.headers().clone());
        Some(Self { status, headers, body: response.bytes().await.ok()? })
    }

    pub fn validation_exception(message: &str) -> Self {
        let body = json!({"__type": "com.amazon.coral.validate#ValidationException", "message": message});
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/x-amz-json-1.0"));
        Self { status: StatusCode::BAD_REQUEST, headers, body: Bytes::from(body.to_string()) }
    }
}

#[derive(Clone)]
pub struct Dynamo {
    db: Database,
    pub address: SocketAddr,
    pub key_limits: Arc<KeyLimits>,
    /// The second DynamoDB, if the answers are compared.
    pub beside: Option<Beside>,
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
        beside: Option<&beside::Settings>,
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
        let key_limits = KeyLimits::of(tables);
        add_to_schema(&db, file, &format!("{};\n{}", changes::INDEX, key_limits.triggers()))?;
        let beside = match beside {
            Some(settings) => Some(Beside::start(settings, tables, rows(&db, tables)?).await?),
            None => None,
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(StackError::Io)?;
        listener.set_nonblocking(true).map_err(StackError::Io)?;
        let address = listener.local_addr().map_err(StackError::Io)?;
        let server = serve(listener, db.clone())?;
        Ok(Self {
            db,
            address,
            key_limits: Arc::new(key_limits),
            beside,
            tables: Arc::new(tables.to_vec()),
            clock,
            removed_by_ttl: Arc::new(Mutex::new(removed_by_ttl.iter().cloned().collect())),
            sweeping: Arc::default(),
            server: Arc::new(Mutex::new(Some(server))),
            frozen: Arc::default(),
            shards: Arc::default(),
        })
    }

    /// Deletes the tables of the second DynamoDB.
    pub async fn stop_beside(&self) {
        if let Some(beside) = &self.beside {
            beside.stop().await;
        }
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
}

/// Adds indexes and triggers to the emulator's database. Only the emulator can open an in-memory
/// database, so for such a database this function changes a copy and restores the database from it.
fn add_to_schema(db: &Database, file: Option<&Path>, statements: &str) -> Result<(), StackError> {
    let execute = |file: &Path| {
        let opened = Connection::open(file);
        opened.and_then(|connection| connection.execute_batch(statements)).map_err(emulator)
    };
    if let Some(file) = file {
        return execute(file);
    }
    let copy = temporary_file();
    db.vacuum_into(&copy.to_string_lossy()).map_err(emulator)?;
    let restored = execute(&copy).and_then(|()| db.restore_from(&copy.to_string_lossy()).map_err(emulator));
    // A file that cannot be removed does no harm.
    let _ = std::fs::remove_file(copy);
    restored
}

/// Returns the persisted rows, each with its table.
fn rows(db: &Database, tables: &[Table]) -> Result<Vec<(String, Value)>, StackError> {
    let mut rows = Vec::new();
    for table in tables {
        let mut scan = json!({"TableName": table.name});
        loop {
            let page = db.scan(request(scan.clone())?).map_err(emulator)?;
            let mut page = serde_json::to_value(page).map_err(|error| StackError::Emulator(error.to_string()))?;
            let items = page["Items"].as_array_mut().map(std::mem::take).unwrap_or_default();
            rows.extend(items.into_iter().map(|item| (table.name.clone(), item)));
            match page["LastEvaluatedKey"].take() {
                Value::Null => break,
                last => scan["ExclusiveStartKey"] = last,
            }
        }
    }
    Ok(rows)
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
