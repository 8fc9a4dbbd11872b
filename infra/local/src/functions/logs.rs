//! The output of the processes, line by line: the last lines are in memory, and on request also in
//! files and on stderr.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::timeout};

use super::lock;
use crate::StackError;

const CAPACITY: usize = 20_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Lines are numbered from 0 in the order of arrival, over all functions.
    pub number: u64,
    pub function: String,
    pub at: SystemTime,
    pub line: String,
}

/// A handle: clones are cheap and share the lines.
#[derive(Clone)]
pub struct Logs(Arc<Shared>);

struct Shared {
    capacity: usize,
    directory: Option<PathBuf>,
    echo: bool,
    lines: Mutex<Lines>,
    /// The number of the next line.
    position: watch::Sender<u64>,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<LogLine>,
    files: BTreeMap<String, File>,
}

impl Logs {
    /// Keeps the last 20,000 lines in memory. With a directory, also appends each function's lines
    /// to `<function>.log` there; with echo, also prints them to stderr.
    pub fn new(directory: Option<&Path>, echo: bool) -> Result<Logs, StackError> {
        if let Some(directory) = directory {
            fs::create_dir_all(directory).map_err(|error| StackError::unusable(directory, error))?;
        }
        Ok(Logs::with_capacity(CAPACITY, directory.map(Path::to_owned), echo))
    }

    /// Keeps the last 20,000 lines in memory and does nothing else.
    pub fn in_memory() -> Logs {
        Logs::with_capacity(CAPACITY, None, false)
    }

    fn with_capacity(capacity: usize, directory: Option<PathBuf>, echo: bool) -> Logs {
        let (lines, position) = (Mutex::default(), watch::Sender::new(0));
        Logs(Arc::new(Shared { capacity, directory, echo, lines, position }))
    }

    /// Returns the number of the next line. `since` and `wait_for` accept it to mean "from now on".
    pub fn position(&self) -> u64 {
        *self.0.position.borrow()
    }

    /// Returns the lines in memory from a position on, oldest first.
    pub fn since(&self, position: u64) -> Vec<LogLine> {
        let lines = lock(&self.0.lines);
        let first = lines.kept.partition_point(|line| line.number < position);
        lines.kept.range(first..).cloned().collect()
    }

    /// Returns the last `count` lines, oldest first.
    pub fn tail(&self, count: usize) -> Vec<LogLine> {
        let lines = lock(&self.0.lines);
        let first = lines.kept.len().saturating_sub(count);
        lines.kept.range(first..).cloned().collect()
    }

    /// Returns the first line from a position on that matches `wanted`, waiting for it if
    /// necessary, or `None` after the limit. Use this for output outside of an invocation; the
    /// output of an invocation is complete when `invoke` returns.
    pub async fn wait_for(&self, position: u64, limit: Duration, wanted: impl Fn(&LogLine) -> bool) -> Option<LogLine> {
        let mut from = position;
        let mut news = self.0.position.subscribe();
        let search = async {
            loop {
                let lines = self.since(from);
                if let Some(line) = lines.iter().find(|line| wanted(line)) {
                    return Some(line.clone());
                }
                from = lines.last().map_or(from, |line| line.number + 1);
                news.wait_for(|position| *position > from).await.ok()?;
            }
        };
        timeout(limit, search).await.ok().flatten()
    }

    pub(super) fn append(&self, function: &str, line: String) {
        let shared = &*self.0;
        if shared.echo {
            eprintln!("[{function}] {line}");
        }
        let mut lines = lock(&shared.lines);
        if let Some(directory) = &shared.directory
            && let Err(error) = lines.append_to_file(directory, function, &line)
        {
            tracing::warn!(function, %error, "a log line could not be written to its file");
        }
        if lines.kept.len() == shared.capacity {
            lines.kept.pop_front();
        }
        let number = *shared.position.borrow();
        lines.kept.push_back(LogLine { number, function: function.to_owned(), at: SystemTime::now(), line });
        shared.position.send_replace(number + 1);
    }
}

impl Lines {
    fn append_to_file(&mut self, directory: &Path, function: &str, line: &str) -> io::Result<()> {
        if !self.files.contains_key(function) {
            let path = directory.join(format!("{function}.log"));
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            self.files.insert(function.to_owned(), file);
        }
        match self.files.get_mut(function) {
            Some(file) => file.write_all(format!("{line}\n").as_bytes()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_are_dropped_and_the_others_keep_their_numbers() {
        let logs = Logs::with_capacity(3, None, false);
        for n in 0..5 {
            logs.append("f", format!("line {n}"));
        }
        let kept = logs.since(0);
        assert_eq!(kept.iter().map(|line| line.number).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(logs.since(4), logs.tail(1));
        assert_eq!(logs.since(5), []);
        assert_eq!(logs.position(), 5);
    }

    #[tokio::test]
    async fn wait_for_returns_a_matching_line_that_is_logged_before_or_after_the_call() {
        let logs = Logs::in_memory();
        logs.append("f", "before".to_owned());
        let limit = Duration::from_secs(10);
        assert!(logs.wait_for(0, limit, |line| line.line == "before").await.is_some());
        assert!(logs.wait_for(0, Duration::ZERO, |line| line.line == "after").await.is_none());
        let (found, ()) = tokio::join!(logs.wait_for(0, limit, |line| line.line == "after"), async {
            logs.append("f", "other".to_owned());
            tokio::task::yield_now().await;
            logs.append("f", "after".to_owned());
        });
        assert_eq!(found.map(|line| line.number), Some(2));
    }
}
