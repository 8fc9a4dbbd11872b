//! A dry run: what earlier lines would have written, on top of what is stored. It lives in memory;
//! a dry run that is interrupted begins anew.

use std::collections::HashMap;

use crate::ingest::change::Change;
use crate::ingest::rows::Row;
use crate::keys::Key;

#[derive(Debug, Default)]
pub struct DryRun {
    rows: HashMap<Key, Option<Row>>,
}

impl DryRun {
    /// What the slot would hold by now, if an earlier line would have changed it; otherwise it
    /// holds what is stored.
    pub fn look(&self, key: &Key) -> Option<Option<&Row>> {
        self.rows.get(key).map(Option::as_ref)
    }

    /// Remembers what a line would have written, without its text: no decision depends on that.
    pub fn note(&mut self, changes: &[Change]) {
        for change in changes {
            let mut row = change.row.clone();
            if let Some(Row::Entry(row)) = &mut row {
                row.entry.clean_text = String::new();
            }
            self.rows.insert(change.key.clone(), row);
        }
    }
}
