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
pub struct Board {
    pub bot: Option<BotRow>,
    pub downsells: HashMap<u64, DownsellRow>,
}

#[derive(Debug)]
pub struct Boards {
    pub downsells: Downsells,
    /// The cached boards, each with the id of the invocation that read it. A change of a bot or a
    /// downsell takes effect at the next delivery.
    boards: Mutex<HashMap<String, (String, Arc<Board>)>>,
}

impl Boards {
    pub fn new(downsells: Downsells) -> Self {
        Self { downsells, boards: Mutex::default() }
    }

    /// Returns the board of a bot. It is read once per delivery.
    pub async fn of(&self, invocation: &Invocation, slug: &str) -> Result<Arc<Board>, StoreError> {
        let mut boards = self.boards.lock().await;
        if let Some((_, board)) = boards.get(slug).filter(|(read_by, _)| *read_by == invocation.request_id) {
            return Ok(board.clone());
        }
        boards.retain(|_, (read_by, _)| *read_by == invocation.request_id);
        let (bots, downsells) = (&self.downsells.bots, &self.downsells);
        let (bot, downsells) =
            futures::future::try_join(bots.get(invocation, slug), downsells.downsells(invocation, slug)).await?;
        let downsells = downsells.into_iter().map(|row| (row.id, row)).collect();
        let board = Arc::new(Board { bot, downsells });
        boards.insert(slug.to_owned(), (invocation.request_id.clone(), board.clone()));
        Ok(board)
    }
}
