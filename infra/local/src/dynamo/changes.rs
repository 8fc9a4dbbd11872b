//! The changes of tables: the records of their streams, in order.

use std::sync::PoisonError;

use serde_json::{Value, json};

use super::ttl::mark;
use super::{Dynamo, blocking, emulator, request};
use crate::StackError;

/// On every write to a table with a stream, the emulator looks up the newest change, and on every
/// read the changes after a given one. It has no index for either lookup, so without this one the
/// cost of each write would grow with the number of changes before it.
pub(super) const INDEX: &str = "CREATE INDEX IF NOT EXISTS _changes_in_order \
                     ON _stream_records (table_name, CAST(sequence_number AS INTEGER))";

/// A stream and its one shard.
#[derive(Clone)]
pub(super) struct Shard {
    arn: String,
    id: String,
}

impl Dynamo {
    /// Returns the records of a table's stream after a sequence number, oldest first, in the format
    /// in which an event source mapping delivers them.
    pub async fn records_after(
        &self,
        table: &str,
        sequence_number: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Value>, StackError> {
        let (this, table, after) = (self.clone(), table.to_owned(), sequence_number.map(str::to_owned));
        blocking(move || {
            let Shard { arn, id } = this.shard(&table)?;
            let mut iterator = json!({"StreamArn": arn, "ShardId": id, "ShardIteratorType": "TRIM_HORIZON"});
            if let Some(after) = after {
                iterator["ShardIteratorType"] = json!("AFTER_SEQUENCE_NUMBER");
                iterator["SequenceNumber"] = json!(after);
            }
            let iterator = this.db.get_shard_iterator(request(iterator)?).map_err(emulator)?;
            let read = json!({"ShardIterator": iterator.shard_iterator.unwrap_or_default(), "Limit": limit});
            let read = this.db.get_records(request(read)?).map_err(emulator)?;
            let records =
                serde_json::to_value(read.records).map_err(|error| StackError::Emulator(error.to_string()))?;
            let Value::Array(mut records) = records else { return Ok(Vec::new()) };
            for record in &mut records {
                record["eventSourceARN"] = json!(arn);
                let at = record["dynamodb"]["ApproximateCreationDateTime"].as_f64().unwrap_or(0.0);
                let offset_seconds = (this.clock.offset_ms() / 1_000) as f64;
                record["dynamodb"]["ApproximateCreationDateTime"] = json!(at + offset_seconds);
                this.mark_removal(&table, record);
            }
            Ok(records)
        })
        .await
    }

    /// Returns the newest sequence number of a table's stream, or `None` if the table was never
    /// written to.
    pub async fn newest(&self, table: &str) -> Result<Option<String>, StackError> {
        let (this, table) = (self.clone(), table.to_owned());
        blocking(move || {
            let Shard { arn, .. } = this.shard(&table)?;
            let described = this.db.describe_stream(request(json!({"StreamArn": arn}))?).map_err(emulator)?;
            let shard = described.stream_description.shards.into_iter().next();
            Ok(shard.and_then(|shard| shard.sequence_number_range.ending_sequence_number))
        })
        .await
    }

    /// Returns the stream and shard of a table. The result is cached, because the emulator counts
    /// all changes to describe a stream.
    fn shard(&self, table: &str) -> Result<Shard, StackError> {
        let mut known = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shard) = known.get(table) {
            return Ok(shard.clone());
        }
        let streams = self.db.list_streams(request(json!({"TableName": table}))?).map_err(emulator)?;
        let missing = || StackError::Emulator(format!("table {table} has no stream"));
        let arn = streams.streams.into_iter().next().ok_or_else(missing)?.stream_arn;
        let described = self.db.describe_stream(request(json!({"StreamArn": arn}))?).map_err(emulator)?;
        let id = described.stream_description.shards.into_iter().next().ok_or_else(missing)?.shard_id;
        let shard = Shard { arn, id };
        known.insert(table.to_owned(), shard.clone());
        Ok(shard)
    }

    fn mark_removal(&self, table: &str, record: &mut Value) {
        let attribute =
            self.tables.iter().find(|known| known.name == table).and_then(|known| known.ttl_attribute.as_ref());
        let Some(attribute) = attribute.filter(|_| record["eventName"] == "REMOVE") else { return };
        let change = &record["dynamodb"];
        if self.marks().contains(&mark(table, &change["Keys"], &change["OldImage"][attribute])) {
            record["userIdentity"] = json!({"type": "Service", "principalId": "dynamodb.amazonaws.com"});
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use rusqlite::Connection;

    use super::*;
    use crate::clock::Clock;
    use crate::dynamo::temporary_file;
    use crate::model::Table;

    fn table() -> Table {
        let keys = json!([{"AttributeName": "pk", "KeyType": "HASH"}]);
        let create = json!({
            "TableName": "rows", "BillingMode": "PAY_PER_REQUEST", "KeySchema": keys,
            "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
            "StreamSpecification": {"StreamEnabled": true, "StreamViewType": "NEW_IMAGE"},
        });
        Table { logical_id: "Rows".into(), name: "rows".into(), create, ttl_attribute: None, streams: true }
    }

    /// Returns SQLite's plan for a query.
    fn plan(file: &Path, query: &str) -> String {
        let connection = Connection::open(file).unwrap();
        connection.query_row(&format!("EXPLAIN QUERY PLAN {query}"), [], |row| row.get("detail")).unwrap()
    }

    #[tokio::test]
    async fn changes_are_read_in_order_and_looked_up_with_the_index() {
        let directory = std::env::temp_dir().join(format!("umavez-changes-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for file in [None, Some(directory.join("kept.sqlite"))] {
            let dynamo = Dynamo::start(file.as_deref(), &[table()], Clock::new(0), &[], None).await.unwrap();
            for key in ["a", "b", "c"] {
                let put = json!({"TableName": "rows", "Item": {"pk": {"S": key}}});
                dynamo.db.put_item(request(put).unwrap()).unwrap();
            }
            let keys = |records: &[Value]| -> Vec<_> {
                records.iter().map(|record| record["dynamodb"]["Keys"]["pk"]["S"].clone()).collect()
            };
            let first = dynamo.records_after("rows", None, 2).await.unwrap();
            assert_eq!(keys(&first), ["a", "b"]);
            let at = first[1]["dynamodb"]["SequenceNumber"].as_str();
            let rest = dynamo.records_after("rows", at, 9).await.unwrap();
            assert_eq!(keys(&rest), ["c"]);
            assert_eq!(dynamo.newest("rows").await.unwrap().as_deref(), rest[0]["dynamodb"]["SequenceNumber"].as_str());

            let copy = temporary_file();
            dynamo.db.vacuum_into(&copy.to_string_lossy()).unwrap();
            let number = "CAST(sequence_number AS INTEGER)";
            for query in [
                format!("SELECT COALESCE(MAX({number}), 0) + 1 FROM _stream_records WHERE table_name = 'rows'"),
                format!("SELECT * FROM _stream_records WHERE table_name = 'rows' AND {number} > 1 ORDER BY {number}"),
            ] {
                let plan = plan(&copy, &query);
                assert!(plan.contains("_changes_in_order"), "{plan}");
            }
            std::fs::remove_file(copy).unwrap();
            dynamo.stop();
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
