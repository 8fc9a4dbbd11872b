//! What a sender must know of a bot: whether it and its downsells are active, what they say, and how fast it may write.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use umavez_domain::downsells::DownsellRow;
use umavez_domain::senders::bots::BotRow;
use umavez_domain::senders::rates::Rates;

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::StoreError;

/// How fast a bot may write is read again after this.
const FRESH_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Board {
    pub bot: Option<BotRow>,
    pub downsells: HashMap<u64, DownsellRow>,
}

/// When it was read, and the bot if there is one.
type ReadBot = (Instant, Option<Arc<BotRow>>);

#[derive(Debug)]
pub struct Boards {
    pub downsells: Downsells,
    /// Each of the invocation that read it: what is changed counts from the next delivery on.
    boards: Mutex<HashMap<String, (String, Arc<Board>)>>,
    bots: Mutex<HashMap<String, ReadBot>>,
}

impl Boards {
    pub fn new(downsells: Downsells) -> Self {
        Self { downsells, boards: Mutex::default(), bots: Mutex::default() }
    }

    /// The board of a bot, read once per delivery.
    pub async fn of(&self, invocation: &Invocation, slug: &str) -> Result<Arc<Board>, StoreError> {
        let mut boards = self.boards.lock().await;
        if let Some((_, board)) = boards.get(slug).filter(|(read_by, _)| *read_by == invocation.request_id) {
            return Ok(board.clone());
        }
        boards.retain(|_, (read_by, _)| *read_by == invocation.request_id);
        let (bot, downsells) =
            futures::future::try_join(self.downsells.bot(invocation, slug), self.downsells.downsells(invocation, slug))
                .await?;
        let downsells = downsells.into_iter().map(|row| (row.id, row)).collect();
        let board = Arc::new(Board { bot, downsells });
        boards.insert(slug.to_owned(), (invocation.request_id.clone(), board.clone()));
        Ok(board)
    }

    /// The limits of a channel with those of a bot, if there is one of this name. Without an answer the channel's stand.
    pub async fn rates(&self, invocation: &Invocation, slug: &str, rates: Rates) -> Rates {
        let mut bots = self.bots.lock().await;
        let known = bots.get(slug).filter(|(read_at, _)| read_at.elapsed() < FRESH_FOR).map(|(_, bot)| bot.clone());
        let bot = match known {
            Some(bot) => bot,
            None => match self.downsells.bot(invocation, slug).await {
                Ok(bot) => {
                    let bot = bot.map(Arc::new);
                    bots.insert(slug.to_owned(), (Instant::now(), bot.clone()));
                    bot
                }
                Err(_) => return rates,
            },
        };
        bot.map_or(rates, |bot| bot.rates(rates))
    }
}
