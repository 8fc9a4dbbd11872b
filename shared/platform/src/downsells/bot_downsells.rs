//! The data that a sender needs to send the offers of a bot: whether the bot and its downsells are
//! active, and the content of the downsells.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Mutex;
use umavez_domain::downsells::DownsellRow;
use umavez_domain::senders::bots::BotRow;

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::StoreError;

#[derive(Debug)]
pub struct BotDownsells {
    pub bot: Option<BotRow>,
    pub downsells: HashMap<u64, DownsellRow>,
}

#[derive(Debug)]
pub struct BotDownsellsCache {
    pub downsells: Downsells,
    /// The cached bots, each with the id of the invocation that read it. A change of a bot or a
    /// downsell takes effect at the next delivery.
    bots: Mutex<HashMap<String, (String, Arc<BotDownsells>)>>,
}

impl BotDownsellsCache {
    pub fn new(downsells: Downsells) -> Self {
        Self { downsells, bots: Mutex::default() }
    }

    /// Returns a bot with its downsells. It is read once per delivery.
    pub async fn of(&self, invocation: &Invocation, slug: &str) -> Result<Arc<BotDownsells>, StoreError> {
        let mut bots = self.bots.lock().await;
        if let Some((_, read)) = bots.get(slug).filter(|(read_by, _)| *read_by == invocation.request_id) {
            return Ok(read.clone());
        }
        bots.retain(|_, (read_by, _)| *read_by == invocation.request_id);
        let downsells = &self.downsells;
        let (bot, downsells) =
            futures::future::try_join(downsells.bots.get(invocation, slug), downsells.downsells(invocation, slug))
                .await?;
        let downsells = downsells.into_iter().map(|row| (row.id, row)).collect();
        let read = Arc::new(BotDownsells { bot, downsells });
        bots.insert(slug.to_owned(), (invocation.request_id.clone(), read.clone()));
        Ok(read)
    }
}
