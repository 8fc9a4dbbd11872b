//! Bots in the Config table.

use serde_json::{Map, Value};
use umavez_domain::fields::FieldError;
use umavez_domain::keys;
use umavez_domain::senders::bots::BotRow;

use crate::downsells::Downsells;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Write, Written, read_row};

impl Downsells {
    pub async fn bot(&self, invocation: &Invocation, slug: &str) -> Result<Option<BotRow>, StoreError> {
        self.store.get(invocation, &self.config_table, &keys::bot(slug)).await
    }

    /// All bots, by their slugs.
    pub async fn bots(&self, invocation: &Invocation) -> Result<Vec<BotRow>, StoreError> {
        let mut rows: Vec<BotRow> = self.store.scan_prefix(invocation, &self.config_table, keys::BOT_PREFIX).await?;
        rows.sort_by(|a, b| a.slug.cmp(&b.slug));
        Ok(rows)
    }

    /// Nothing if the bot is new; otherwise the one that has its slug.
    pub async fn create_bot(&self, invocation: &Invocation, row: &BotRow) -> Result<Option<BotRow>, StoreError> {
        let write = Write::put(&self.config_table, keys::bot(&row.slug), row)?.when(Condition::Absent);
        match self.store.write(invocation, write).await? {
            Written::New | Written::Mine => Ok(None),
            Written::Refused(item) => item.map(read_row).transpose(),
        }
    }

    /// Changes a bot. `None`: there is no such bot.
    pub async fn change_bot(
        &self,
        invocation: &Invocation,
        slug: &str,
        body: &Map<String, Value>,
    ) -> Result<Option<Result<BotRow, Vec<FieldError>>>, StoreError> {
        let mut standing = self.bot(invocation, slug).await?;
        for _ in 0..10 {
            let Some(before) = standing else { return Ok(None) };
            let row = match before.read_change(body, invocation.now) {
                Ok(row) => row,
                Err(errors) => return Ok(Some(Err(errors))),
            };
            let as_read = Condition::is_number("version", before.version);
            let write = Write::put(&self.config_table, keys::bot(slug), &row)?.when(as_read);
            match self.store.write(invocation, write).await? {
                Written::New | Written::Mine => return Ok(Some(Ok(row))),
                Written::Refused(item) => standing = item.map(read_row).transpose()?,
            }
        }
        Err(StoreError::Conflict)
    }
}
