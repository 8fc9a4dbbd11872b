//! Turns the lines of a file into rows: one entry per recipient, invalid lines with their reason,
//! and a note about duplicate lines.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};

use futures::{StreamExt, TryStreamExt};
use umavez_domain::keys::{self, Key};
use umavez_domain::mailings::{
    ImportProgress, LineRow, MOST_DUPLICATES_REPORTED, MailingEntryId, MailingEntryRow, MailingId, MailingRow, Record,
    duplicate_of, shard_of_line,
};

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Insert, Item, StoreError, key_item, read_row, row_of};

/// Rows per request, and concurrent requests.
const A_REQUEST: usize = 25;
const AT_ONCE: usize = 16;

/// What becomes of a line.
enum Fate {
    /// A recipient, if no earlier call has inserted the address. `at` is the index of its row among
    /// the rows to insert.
    Recipient {
        id: MailingEntryId,
        at: usize,
    },
    Invalid {
        shard: u32,
    },
    /// An earlier line of the same call has the same address.
    Duplicate {
        of_line: u64,
    },
}

impl Mailings {
    /// Writes the rows of some lines, each once, and counts them by outcome. If an address occurs
    /// more than once, the first line (in this or an earlier call) owns the entry. Returns the
    /// progress after these lines.
    pub async fn insert_lines(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        records: Vec<Record>,
        progress: &ImportProgress,
    ) -> Result<ImportProgress, StoreError> {
        let (id, shards) = (&mailing.mailing_id, mailing.shards);
        let mut progress = progress.clone();
        progress.place = records.last().map_or(progress.place, |record| record.after);
        let mut first_lines: HashMap<String, u64> = HashMap::with_capacity(records.len());
        let (mut rows, mut fates) = (Vec::new(), Vec::with_capacity(records.len()));
        for Record { line, recipient, .. } in records {
            let fate = match recipient {
                Ok(recipient) => {
                    let id = MailingEntryId::of(id, &recipient.email, shards);
                    match first_lines.entry(id.email_hash.clone()) {
                        Occupied(first) => Fate::Duplicate { of_line: *first.get() },
                        Vacant(first) => {
                            first.insert(line);
                            rows.push(row_of(&MailingEntryRow::new(&id, line, recipient))?);
                            Fate::Recipient { id, at: rows.len() - 1 }
                        }
                    }
                }
                Err(problem) => {
                    let shard = shard_of_line(line, shards);
                    rows.push(line_item(id, shard, &LineRow::invalid(line, problem))?);
                    Fate::Invalid { shard }
                }
            };
            fates.push((line, fate));
        }
        let outcomes = self.insert_at_once(invocation, rows).await?;
        let stored = self.stored_lines(invocation, &fates, &outcomes).await?;
        let mut duplicates = Vec::new();
        for (line, fate) in &fates {
            let line = *line;
            progress.rows += 1;
            let of_line = match fate {
                Fate::Duplicate { of_line } => *of_line,
                Fate::Invalid { shard } => {
                    progress.add_invalid(*shard);
                    continue;
                }
                Fate::Recipient { id, .. } => match duplicate_of(stored.get(id.email_hash.as_str()).copied(), line) {
                    Some(of_line) => of_line,
                    None => {
                        progress.add_recipient(id.shard);
                        continue;
                    }
                },
            };
            if progress.duplicates < MOST_DUPLICATES_REPORTED {
                let shard = shard_of_line(line, shards);
                duplicates.push(line_item(id, shard, &LineRow::duplicate(line, of_line))?);
            }
            progress.duplicates += 1;
        }
        self.insert_at_once(invocation, duplicates).await?;
        Ok(progress)
    }

    /// Inserts rows with several concurrent requests. Returns the outcomes in order.
    async fn insert_at_once(&self, invocation: &Invocation, rows: Vec<Item>) -> Result<Vec<Insert>, StoreError> {
        let inserted: Vec<Vec<Insert>> = futures::stream::iter(rows)
            .chunks(A_REQUEST)
            .map(|batch| self.store.insert_many(invocation, &self.table, batch))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(inserted.into_iter().flatten().collect())
    }

    /// Reads the lines of the entries that existed already, by the hashes of their addresses.
    async fn stored_lines<'f>(
        &self,
        invocation: &Invocation,
        fates: &'f [(u64, Fate)],
        outcomes: &[Insert],
    ) -> Result<HashMap<&'f str, u64>, StoreError> {
        let existing = |(_, fate): &'f (u64, Fate)| match fate {
            Fate::Recipient { id, at } if outcomes[*at] == Insert::There => Some((id, keys::mailing_entry(id))),
            _ => None,
        };
        let (ids, asked): (Vec<_>, Vec<_>) = fates.iter().filter_map(existing).unzip();
        let mut rows = self.store.get_many(invocation, &self.table, &asked).await?;
        let line_of = |(id, key): (&'f MailingEntryId, &Key)| {
            let row = rows.remove(key).ok_or(StoreError::Corrupt("an entry that is there and is not"))?;
            Ok((id.email_hash.as_str(), read_row::<MailingEntryRow>(row)?.line))
        };
        ids.into_iter().zip(&asked).map(line_of).collect()
    }
}

fn line_item(id: &MailingId, shard: u32, row: &LineRow) -> Result<Item, StoreError> {
    let mut item = row_of(row)?;
    item.extend(key_item(&keys::mailing_line(id, shard, row.line)));
    Ok(item)
}
