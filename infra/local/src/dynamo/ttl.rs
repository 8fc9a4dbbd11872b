//! TTL by the stack's clock.

use std::collections::HashSet;
use std::sync::PoisonError;

use serde_json::{Value, json};

use super::{Dynamo, blocking, emulator, request};
use crate::StackError;
use crate::model::Table;

impl Dynamo {
    /// Removes the rows that have expired by the stack's clock, as TTL does on AWS within a few
    /// days. Returns the number of removed rows.
    pub async fn sweep_ttl(&self) -> Result<usize, StackError> {
        let order = match &self.beside {
            Some(beside) => Some(beside.order().await),
            None => None,
        };
        let this = self.clone();
        let mirrored = order.is_some();
        let (removed, deletes) = blocking(move || {
            let _one_at_a_time = this.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
            let now = this.clock.now_ms() / 1_000;
            let (mut removed, mut deletes) = (0, Vec::new());
            for table in this.tables.iter() {
                if let Some(attribute) = &table.ttl_attribute {
                    this.sweep_table(table, attribute, now, |delete| {
                        removed += 1;
                        deletes.extend(mirrored.then_some(delete));
                    })?;
                }
            }
            Ok((removed, deletes))
        })
        .await?;
        for delete in &deletes {
            if let Some(beside) = &self.beside {
                beside.repeat("DeleteItem", delete).await;
            }
        }
        Ok(removed)
    }

    /// Passes each request that has removed a row to `on_removed`.
    fn sweep_table(
        &self,
        table: &Table,
        attribute: &str,
        now: i64,
        mut on_removed: impl FnMut(Value),
    ) -> Result<(), StackError> {
        let condition = "#ttl <= :now";
        let names = json!({"#ttl": attribute});
        let values = json!({":now": {"N": now.to_string()}});
        let key_names = key_names(table);
        let mut start = Value::Null;
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
                match self.db.delete_item(request(delete.clone())?) {
                    Ok(_) => on_removed(delete),
                    // The row was renewed or deleted after the scan.
                    Err(_) => {
                        self.marks().remove(&mark);
                    }
                }
            }
            start = page["LastEvaluatedKey"].clone();
            if start.is_null() {
                return Ok(());
            }
        }
    }

    pub(super) fn marks(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.removed_by_ttl.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the marks, so that the caller can store them for a restart.
    pub fn removed_by_ttl(&self) -> Vec<String> {
        self.marks().iter().cloned().collect()
    }
}

fn key_names(table: &Table) -> Vec<String> {
    let schema = table.create["KeySchema"].as_array();
    schema.into_iter().flatten().filter_map(|key| key["AttributeName"].as_str()).map(str::to_owned).collect()
}

pub(super) fn mark(table: &str, key: &Value, expiry: &Value) -> String {
    format!("{table} {key} {expiry}")
}
