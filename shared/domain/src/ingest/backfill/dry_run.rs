//! A dry run: the rows that earlier lines would have written, on top of the stored rows. It lives
//! in memory, so an interrupted dry run starts over.

use std::collections::HashMap;

use crate::ingest::change::SlotChange;
use crate::ingest::rows::Row;
use crate::keys::Key;

#[derive(Debug, Default)]
pub struct DryRun {
    rows: HashMap<Key, Option<Row>>,
}

impl DryRun {
    /// Returns the row that the slot would hold now, or `Some(None)` if an earlier line would have
    /// removed it. `None` if no earlier line would have changed the slot: it holds the stored row.
    pub fn look(&self, key: &Key) -> Option<Option<&Row>> {
        self.rows.get(key).map(Option::as_ref)
    }

    /// Records what a line would have written, without its text: no decision depends on the text.
    pub fn note(&mut self, changes: &[SlotChange]) {
        for change in changes {
            let mut row = change.row.clone();
            if let Some(Row::Entry(row)) = &mut row {
                row.entry.clean_text = String::new();
            }
            self.rows.insert(change.key.clone(), row);
        }
    }
}
