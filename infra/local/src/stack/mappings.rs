//! Everything that runs by itself: the event source mappings of queues and streams, and the
//! schedules.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use crate::StackError;
use crate::model::{Function, Model};
use crate::parts::Parts;
use crate::schedules::Ticker;
use crate::sources::{QueueMapping, StreamMapping};

pub(super) struct Mappings {
    queues: Vec<QueueMapping>,
    streams: Vec<StreamMapping>,
    tickers: Vec<Ticker>,
}

impl Mappings {
    /// `at_once` is the number of batches that a function processes concurrently.
    pub(super) fn of(
        model: &Model,
        parts: &Parts,
        checkpoints: &BTreeMap<String, String>,
        at_once: impl Fn(&Function) -> usize,
    ) -> Self {
        let mut all = Self { queues: Vec::new(), streams: Vec::new(), tickers: Vec::new() };
        for function in &model.functions {
            let name = || function.name.clone();
            for source in &function.queue_sources {
                all.queues.push(QueueMapping::new(source.clone(), name(), parts.clone(), at_once(function)));
            }
            for source in &function.stream_sources {
                let checkpoint = checkpoints.get(&source.id).cloned();
                all.streams.push(StreamMapping::new(source.clone(), name(), parts.clone(), checkpoint));
            }
            for schedule in &function.schedules {
                all.tickers.push(Ticker::new(schedule.clone(), name(), parts.clone()));
            }
        }
        all
    }

    pub(super) fn spawn(&self, schedules: bool, tasks: &mut JoinSet<()>) {
        self.queues.iter().for_each(|mapping| mapping.spawn(tasks));
        self.streams.iter().for_each(|mapping| mapping.spawn(tasks));
        if schedules {
            self.tickers.iter().for_each(|ticker| ticker.spawn(tasks));
        }
    }

    /// Returns a description of something that still has work to do; `None` if everything is idle.
    pub(super) async fn busy_with(&self) -> Result<Option<String>, StackError> {
        for mapping in &self.streams {
            if !mapping.is_at_rest().await? {
                return Ok(Some(format!("the stream mapping {}", mapping.source.id)));
            }
        }
        for mapping in &self.queues {
            if !mapping.is_at_rest().await? {
                return Ok(Some(format!("the queue {}", mapping.source.queue)));
            }
        }
        let ticker = self.tickers.iter().find(|ticker| !ticker.is_at_rest());
        Ok(ticker.map(|ticker| format!("the schedule {}", ticker.schedule.id)))
    }

    /// Returns the earliest time at which a message of a mapped queue is due.
    pub(super) fn next_due(&self) -> Option<i64> {
        self.queues.iter().filter_map(QueueMapping::next_due).min()
    }

    pub(super) fn ticker(&self, schedule: &str) -> Option<&Ticker> {
        self.tickers.iter().find(|ticker| ticker.schedule.id == schedule)
    }

    /// Returns the checkpoint of each stream.
    pub(super) fn checkpoints(&self) -> BTreeMap<String, String> {
        let known = |mapping: &StreamMapping| Some((mapping.source.id.clone(), mapping.checkpoint()?));
        self.streams.iter().filter_map(known).collect()
    }
}
