//! Copies the output of a process into the logs. Stdout and stderr share one pipe, so their lines
//! keep their order.
//!
//! To find out whether everything printed so far has arrived, the stack writes a mark into the same
//! pipe and waits until it reads the mark at the other end. A pipe is a queue, so everything that
//! was printed before the mark is read before it.

use std::{
    io::{self, PipeWriter, Write},
    os::fd::OwnedFd,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use tokio::{io::AsyncReadExt, net::unix::pipe, sync::mpsc, task::spawn_blocking, time::timeout};

use super::Logs;

/// Longer lines are cut, as CloudWatch does.
const LONGEST_LINE: usize = 256 * 1024;

/// The mark always arrives. This limit is for a machine so loaded that a longer wait does more harm
/// than missing lines.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

pub(super) struct LogPipe {
    writer: Arc<PipeWriter>,
    mark: Arc<[u8]>,
    marks_seen: mpsc::UnboundedReceiver<()>,
}

impl LogPipe {
    /// Opens the pipe. The token makes the mark unique, so that no printed line ends with it.
    pub(super) fn open(function: &str, logs: &Logs, token: &str) -> io::Result<LogPipe> {
        let (reader, writer) = io::pipe()?;
        let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let mark: Arc<[u8]> = format!("\u{1e}{token}\u{1e}").into_bytes().into();
        let (seen, marks_seen) = mpsc::unbounded_channel();
        let splitter = Splitter { mark: mark.clone(), unfinished: Vec::new() };
        tokio::spawn(read(reader, splitter, function.to_owned(), logs.clone(), seen));
        Ok(LogPipe { writer: Arc::new(writer), mark, marks_seen })
    }

    /// Returns a writer for the process to print to.
    pub(super) fn writer(&self) -> io::Result<Stdio> {
        self.writer.try_clone().map(Stdio::from)
    }

    /// Waits until everything that was printed so far is in the logs.
    pub(super) async fn settle(&mut self) {
        let (writer, mark) = (self.writer.clone(), self.mark.clone());
        // This blocks while the pipe is full. The pipe cannot be set to non-blocking, because that
        // would also apply to the process.
        let written = spawn_blocking(move || (&*writer).write_all(&[&mark, b"\n".as_slice()].concat()));
        let seen = async {
            if matches!(written.await, Ok(Ok(()))) {
                self.marks_seen.recv().await;
            }
        };
        if timeout(SETTLE_LIMIT, seen).await.is_err() {
            tracing::warn!("the log lines of an invocation did not arrive in time");
        }
    }
}

/// Copies lines until both the process and the stack have closed their writers.
async fn read(
    mut reader: pipe::Receiver,
    mut splitter: Splitter,
    function: String,
    logs: Logs,
    seen: mpsc::UnboundedSender<()>,
) {
    let mut chunk = Vec::with_capacity(16 * 1024);
    while let Ok(1..) = reader.read_buf(&mut chunk).await {
        for piece in splitter.push(&chunk) {
            match piece {
                Piece::Line(line) => logs.append(&function, line),
                // The receiver may be gone.
                Piece::Mark => _ = seen.send(()),
            }
        }
        chunk.clear();
    }
    if !splitter.unfinished.is_empty() {
        logs.append(&function, text(&splitter.unfinished));
    }
}

#[derive(Debug, PartialEq)]
enum Piece {
    Line(String),
    Mark,
}

struct Splitter {
    mark: Arc<[u8]>,
    unfinished: Vec<u8>,
}

impl Splitter {
    fn push(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.unfinished.extend_from_slice(part);
            if self.unfinished.last() == Some(&b'\n') {
                self.unfinished.pop();
                pieces.push(self.finish_line());
            } else if self.unfinished.len() > LONGEST_LINE {
                // Keep the last bytes: they may be the beginning of a mark.
                let rest = self.unfinished.split_off(self.unfinished.len() - self.mark.len());
                pieces.push(Piece::Line(text(&self.unfinished)));
                self.unfinished = rest;
            }
        }
        pieces
    }

    /// Finishes a line or a mark. A mark can be in the middle of a line that the process is still
    /// printing; the line then continues after the mark.
    fn finish_line(&mut self) -> Piece {
        if self.unfinished.ends_with(&self.mark) {
            self.unfinished.truncate(self.unfinished.len() - self.mark.len());
            return Piece::Mark;
        }
        let line = std::mem::take(&mut self.unfinished);
        Piece::Line(text(&line))
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_complete_however_the_input_is_split() {
        let mut splitter = splitter();
        assert_eq!(splitter.push(b"one\ntw"), [line("one")]);
        assert_eq!(splitter.push(b"o\n\nthree\n"), [line("two"), line(""), line("three")]);
    }

    #[test]
    fn a_mark_in_the_middle_of_a_line_does_not_split_the_line() {
        let mut splitter = splitter();
        assert_eq!(splitter.push(b"begin<ma"), []);
        assert_eq!(splitter.push(b"rk>\nend\n"), [Piece::Mark, line("beginend")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_a_mark_after_it_is_still_found() {
        let mut splitter = splitter();
        let cut = splitter.push("x".repeat(LONGEST_LINE + 1).as_bytes());
        assert_eq!(cut, [line(&"x".repeat(LONGEST_LINE + 1 - 6))]);
        assert_eq!(splitter.push(b"<mark>\n\n"), [Piece::Mark, line("xxxxxx")]);
    }

    fn splitter() -> Splitter {
        Splitter { mark: b"<mark>".as_slice().into(), unfinished: Vec::new() }
    }

    fn line(text: &str) -> Piece {
        Piece::Line(text.to_owned())
    }
}
