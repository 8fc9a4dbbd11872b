//! The definitions of downsells. They are numbered per bot; their count is limited to what one
//! trigger can decide on.

use std::ops::ControlFlow::{self, Break, Continue};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use umavez_domain::change::Row;
use umavez_domain::downsells::{DownsellRow, MOST_DOWNSELLS};
use umavez_domain::fields::FieldError;
use umavez_domain::idempotency::Replay;
use umavez_domain::keys;

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::{Condition, Decided, Query, StoreError, Transacted, Write, read_row};

/// How long the idempotency key of a request is kept.
const REQUEST_DAYS: i64 = 2;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Counter {
    next: u64,
    count: u32,
    version: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct RequestRow {
    id: u64,
    body_hash: String,
    expires_at: i64,
}

/// The outcome of a request to create a downsell.
#[derive(Debug)]
pub enum CreatedDownsell {
    New(DownsellRow),
    /// The same request created this downsell before.
    Replayed(DownsellRow),
    /// The request's idempotency key was used for something else.
    KeyReused,
    TooMany,
}

impl Downsells {
    /// Returns all downsells of a bot, ordered by number.
    pub async fn downsells(&self, invocation: &Invocation, slug: &str) -> Result<Vec<DownsellRow>, StoreError> {
        let query = Query::partition(&self.table, keys::downsells_of(slug)).prefix(keys::DOWNSELL_PREFIX);
        Ok(self.store.page(invocation, &query.limit(MOST_DOWNSELLS as usize)).await?.rows)
    }

    pub async fn downsell(
        &self,
        invocation: &Invocation,
        slug: &str,
        id: u64,
    ) -> Result<Option<DownsellRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::downsell(slug, id)).await
    }

    /// Creates a downsell. `request` is the idempotency key of the request and the hash of its
    /// body.
    pub async fn create_downsell(
        &self,
        invocation: &Invocation,
        slug: &str,
        new: &DownsellRow,
        request: Option<(&str, &str)>,
    ) -> Result<CreatedDownsell, StoreError> {
        self.store.retry(invocation, || self.create_once(invocation, slug, new, request)).await
    }

    async fn create_once(
        &self,
        invocation: &Invocation,
        slug: &str,
        new: &DownsellRow,
        request: Option<(&str, &str)>,
    ) -> Result<ControlFlow<CreatedDownsell>, StoreError> {
        let counter_key = keys::downsell_counter(slug);
        let counter: Option<Counter> = self.store.get(invocation, &self.table, &counter_key).await?;
        let counter = counter.unwrap_or_default();
        if counter.count >= MOST_DOWNSELLS {
            // A duplicate of an earlier request gets its answer even if the bot has no room for
            // another downsell.
            let Some((key, body_hash)) = request else { return Ok(Break(CreatedDownsell::TooMany)) };
            let before: Option<RequestRow> =
                self.store.get(invocation, &self.table, &keys::downsell_request(slug, key)).await?;
            return Ok(Break(match before.filter(|row| row.expires_at > invocation.now.seconds()) {
                Some(before) => self.replayed(invocation, slug, &before, body_hash).await?,
                None => CreatedDownsell::TooMany,
            }));
        }
        let row = DownsellRow { id: counter.next + 1, ..new.clone() };
        let next = Counter { next: row.id, count: counter.count + 1, version: counter.version + 1 };
        let mut writes = vec![
            Write::put(&self.table, counter_key, &next)?.when(Condition::version(counter.version)),
            Write::put(&self.table, row.key(), &row)?.when(Condition::Absent),
        ];
        if let Some((key, body_hash)) = request {
            let expires_at = invocation.now.plus_days(REQUEST_DAYS).seconds();
            let made = RequestRow { id: row.id, body_hash: body_hash.to_owned(), expires_at };
            let free = Condition::any([Condition::Absent, Condition::at_most("expires_at", invocation.now.seconds())]);
            writes.push(Write::put(&self.table, keys::downsell_request(slug, key), &made)?.when(free));
        }
        let refusals = match self.store.transact(invocation, writes).await? {
            Transacted::Done => return Ok(Break(CreatedDownsell::New(row))),
            Transacted::Refused(refusals) => refusals,
        };
        let made = refusals.into_iter().nth(2).flatten().and_then(|refusal| refusal.item);
        match (made, request) {
            (Some(made), Some((_, body_hash))) => {
                self.replayed(invocation, slug, &read_row(made)?, body_hash).await.map(Break)
            }
            _ => Ok(Continue(())),
        }
    }

    async fn replayed(
        &self,
        invocation: &Invocation,
        slug: &str,
        made: &RequestRow,
        body_hash: &str,
    ) -> Result<CreatedDownsell, StoreError> {
        if Replay::of(&made.body_hash, body_hash) == Replay::OtherBody {
            return Ok(CreatedDownsell::KeyReused);
        }
        // A downsell that was deleted since was still created by this key: creating another one
        // needs another key.
        Ok(match self.downsell(invocation, slug, made.id).await? {
            Some(row) => CreatedDownsell::Replayed(row),
            None => CreatedDownsell::KeyReused,
        })
    }

    /// Changes a downsell that was read as `stored` by the fields of `body`. Returns `None` if it
    /// was deleted since. The inner result is the changed row, or the fields that are refused.
    pub async fn change_downsell(
        &self,
        invocation: &Invocation,
        stored: &DownsellRow,
        body: &Map<String, Value>,
    ) -> Result<Option<Result<DownsellRow, Vec<FieldError>>>, StoreError> {
        let rule = |stored: &DownsellRow| {
            Ok(match stored.read_change(body, invocation.now) {
                Ok(row) => Decided::commit(row, Ok(())),
                Err(errors) => Decided::Stop(Err(errors)),
            })
        };
        let changed = self.store.change(invocation, &self.table, stored, rule).await?.row();
        Ok(changed.map(|(row, refused)| refused.map(|()| row)))
    }

    /// Deletes a downsell. Returns whether it existed. Its pending offers are canceled when they
    /// are due.
    pub async fn delete_downsell(&self, invocation: &Invocation, slug: &str, id: u64) -> Result<bool, StoreError> {
        let counter_key = &keys::downsell_counter(slug);
        let step = || async move {
            let counter: Option<Counter> = self.store.get(invocation, &self.table, counter_key).await?;
            let Some(counter) = counter else { return Ok(Break(false)) };
            let as_read = Condition::version(counter.version);
            let count = counter.count.saturating_sub(1);
            let next = Counter { count, version: counter.version + 1, ..counter };
            let writes = vec![
                Write::put(&self.table, counter_key.clone(), &next)?.when(as_read),
                Write::delete(&self.table, keys::downsell(slug, id)).when(Condition::exists()),
            ];
            Ok(match self.store.transact(invocation, writes).await? {
                Transacted::Done => Break(true),
                Transacted::Refused(refusals) if refusals.get(1).is_some_and(Option::is_some) => Break(false),
                Transacted::Refused(_) => Continue(()),
            })
        };
        self.store.retry(invocation, step).await
    }
}
