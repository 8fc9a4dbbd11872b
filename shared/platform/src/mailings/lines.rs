//! Turns the lines of a file into rows: one entry per recipient, invalid lines with their reason,
//! and a note about duplicate lines.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::AttributeValue::{M, N, S};
use futures::{StreamExt, TryStreamExt};
use umavez_domain::keys;
use umavez_domain::mailings::{
    DUPLICATE, EntryRow, EntryState, ImportProgress, Inserted, LineRow, MOST_DUPLICATES_TOLD, MailingEntryId,
    MailingId, MailingRow, Record, judge_entry, shard_of_line,
};

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Insert, Item, StoreError, read_row, row_of};

/// Rows per request, and concurrent requests.
const A_REQUEST: usize = 25;
const AT_ONCE: usize = 16;

/// A line of the file, and the row that it gets.
#[derive(Debug)]
pub struct Line {
    pub record: Record,
    shard: u32,
    entry: Option<MailingEntryId>,
}

impl Line {
    pub fn of(mailing: &MailingId, record: Record, shards: u32) -> Self {
        let entry = record.row.as_ref().ok().map(|row| MailingEntryId::of(mailing, &row.email, shards));
        let shard = entry.as_ref().map_or_else(|| shard_of_line(record.line, shards), |entry| entry.shard);
        Self { record, shard, entry }
    }
}

/// The outcome of the lines between two checkpoints.
#[derive(Debug)]
pub struct LinesInserted {
    pub progress: ImportProgress,
}

impl Mailings {
    /// Writes the rows of some lines, each once, and counts them by outcome. If an address occurs
    /// more than once, the first line (in this or an earlier call) owns the entry.
    pub async fn insert_lines(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        lines: Vec<Line>,
        progress: &ImportProgress,
    ) -> Result<LinesInserted, StoreError> {
        let after = lines.last().map(|line| line.record.after);
        let mut first: HashMap<String, u64> = HashMap::with_capacity(lines.len());
        let (mut rows, mut judged): (Vec<Item>, Vec<Judged>) = (Vec::new(), Vec::with_capacity(lines.len()));
        for line in lines {
            let number = line.record.line;
            match (line.record.row, line.entry) {
                (Ok(row), Some(entry)) => {
                    if let Some(of_line) = first.get(&entry.email_hash) {
                        judged.push(Judged {
                            line: number,
                            shard: line.shard,
                            what: What::Twice { of_line: *of_line },
                        });
                        continue;
                    }
                    first.insert(entry.email_hash.clone(), number);
                    rows.push(new_entry(&entry, row.email, row.variables, number)?);
                    judged.push(Judged {
                        line: number,
                        shard: line.shard,
                        what: What::Entry { id: entry, at: rows.len() - 1 },
                    });
                }
                (Err(problem), _) => {
                    let told = LineRow {
                        line: number,
                        state: Some(EntryState::Invalid),
                        reason: problem.as_str().to_owned(),
                        of_line: None,
                    };
                    rows.push(self.line_row(&mailing.mailing_id, line.shard, &told)?);
                    judged.push(Judged { line: number, shard: line.shard, what: What::Invalid });
                }
                (Ok(_), None) => return Err(StoreError::Corrupt("a recipient without an identity")),
            }
        }
        let outcomes = self.insert_at_once(invocation, rows).await?;
        let met = self.met(invocation, &judged, &outcomes).await?;
        let mut progress = progress.clone();
        let mut duplicates = Vec::new();
        for one in judged {
            progress.rows += 1;
            let of_line = match one.what {
                What::Invalid => {
                    progress.add_invalid(one.shard);
                    continue;
                }
                What::Twice { of_line } => of_line,
                What::Entry { id, at } => {
                    let stored = (outcomes[at] == Insert::There).then(|| met.get(&id.email_hash)).flatten();
                    match judge_entry(stored.copied(), one.line) {
                        Inserted::New | Inserted::Mine => {
                            progress.add_recipient(one.shard);
                            continue;
                        }
                        Inserted::Duplicate { of_line } => of_line,
                    }
                }
            };
            if progress.duplicates < MOST_DUPLICATES_TOLD {
                let shard = shard_of_line(one.line, mailing.shards);
                let told =
                    LineRow { line: one.line, state: None, reason: DUPLICATE.to_owned(), of_line: Some(of_line) };
                duplicates.push(self.line_row(&mailing.mailing_id, shard, &told)?);
            }
            progress.duplicates += 1;
        }
        self.insert_at_once(invocation, duplicates).await?;
        progress.place = after.unwrap_or(progress.place);
        Ok(LinesInserted { progress })
    }

    /// Inserts rows with several concurrent requests. Returns the outcomes in order.
    async fn insert_at_once(&self, invocation: &Invocation, rows: Vec<Item>) -> Result<Vec<Insert>, StoreError> {
        let mut batches: Vec<Vec<Item>> = Vec::with_capacity(rows.len() / A_REQUEST + 1);
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            batches.push(rows.by_ref().take(A_REQUEST).collect());
        }
        let inserted: Vec<Vec<Insert>> = futures::stream::iter(batches)
            .map(|batch| self.store.insert_many(invocation, &self.table, batch))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(inserted.into_iter().flatten().collect())
    }

    /// Reads the lines of the entries that existed already, by the hashes of their addresses.
    async fn met(
        &self,
        invocation: &Invocation,
        judged: &[Judged],
        outcomes: &[Insert],
    ) -> Result<HashMap<String, u64>, StoreError> {
        let there: Vec<&MailingEntryId> = judged
            .iter()
            .filter_map(|one| match &one.what {
                What::Entry { id, at } if outcomes[*at] == Insert::There => Some(id),
                _ => None,
            })
            .collect();
        let asked: Vec<_> = there.iter().map(|id| keys::mailing_entry(id)).collect();
        let mut rows = self.store.get_many(invocation, &self.table, &asked).await?;
        let mut met = HashMap::new();
        for (id, key) in there.into_iter().zip(asked) {
            let row = rows.remove(&key).ok_or(StoreError::Corrupt("an entry that is there and is not"))?;
            met.insert(id.email_hash.clone(), read_row::<EntryRow>(row)?.line);
        }
        Ok(met)
    }

    fn line_row(&self, id: &MailingId, shard: u32, told: &LineRow) -> Result<Item, StoreError> {
        keyed(&keys::mailing_line(id, shard, told.line), row_of(told)?)
    }
}

struct Judged {
    line: u64,
    shard: u32,
    what: What,
}

enum What {
    /// `at` is the index of the row among the rows to insert.
    Entry {
        id: MailingEntryId,
        at: usize,
    },
    Invalid,
    /// An earlier line of the same call has the same address.
    Twice {
        of_line: u64,
    },
}

fn new_entry(
    id: &MailingEntryId,
    email: String,
    variables: BTreeMap<String, String>,
    line: u64,
) -> Result<Item, StoreError> {
    let text = |text: &str| S(text.to_owned());
    let mut item = Item::from([
        ("email".to_owned(), S(email)),
        ("line".to_owned(), N(line.to_string())),
        ("state".to_owned(), text(EntryState::Pending.stored())),
    ]);
    // An empty value means the same as an absent one.
    let variables: HashMap<_, _> =
        variables.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, S(value))).collect();
    if !variables.is_empty() {
        item.insert("variables".to_owned(), M(variables));
    }
    keyed(&keys::mailing_entry(id), item)
}

fn keyed(key: &keys::Key, mut item: Item) -> Result<Item, StoreError> {
    item.insert("pk".to_owned(), S(key.pk.clone()));
    item.insert("sk".to_owned(), S(key.sk.clone()));
    Ok(item)
}
