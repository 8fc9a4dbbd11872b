//! The desk: received messages, between the emulator and the functions, with the times that they
//! wait for.

use std::collections::HashMap;

use serde_json::Value;

#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Due times by message id, of delayed messages that have not been received yet.
    delayed: HashMap<String, i64>,
    /// Messages on the desk, by receipt handle.
    held: HashMap<String, Held>,
    received: u64,
}

/// A message that was received from the emulator and has been neither returned nor deleted.
#[derive(Debug, Clone)]
struct Held {
    /// Its position in the order of receipt.
    number: u64,
    queue: String,
    message: Value,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Sent with a delay; deliverable from this time on.
    Delayed(i64),
    Ready,
    /// With a function. If it fails, it is hidden until this time.
    InFlight(i64),
    /// Failed; returned to the emulator at this time.
    Hidden(i64),
}

impl State {
    fn waits_for(self) -> Option<i64> {
        match self {
            Self::Delayed(at) | Self::Hidden(at) => Some(at),
            Self::Ready | Self::InFlight(_) => None,
        }
    }
}

impl Desk {
    pub(super) fn note_delay(&mut self, message_id: &str, due: i64) {
        self.delayed.insert(message_id.to_owned(), due);
    }

    pub(super) fn delay_of(&self, message_id: &str) -> Option<i64> {
        self.delayed.get(message_id).copied()
    }

    /// Adds a received message.
    pub(super) fn take_in(&mut self, queue: &str, message: &Value, now: i64) {
        let state = match self.delayed.remove(text(message, "MessageId")) {
            Some(due) if due > now => State::Delayed(due),
            _ => State::Ready,
        };
        self.received += 1;
        let held = Held { number: self.received, queue: queue.to_owned(), message: message.clone(), state };
        self.held.insert(text(message, "ReceiptHandle").to_owned(), held);
    }

    pub(super) fn has_ready(&self, queue: &str) -> bool {
        self.of(queue).any(|held| held.state == State::Ready)
    }

    /// Hands out up to `limit` ready messages. If they fail, they are hidden until `hidden_until`.
    pub(super) fn hand_out(&mut self, queue: &str, limit: usize, newest_first: bool, hidden_until: i64) -> Vec<Value> {
        let mut ready: Vec<_> =
            self.held.values_mut().filter(|held| held.queue == queue && held.state == State::Ready).collect();
        ready.sort_by_key(|held| held.number);
        if newest_first {
            ready.reverse();
        }
        ready.truncate(limit);
        ready.iter_mut().for_each(|held| held.state = State::InFlight(hidden_until));
        ready.into_iter().map(|held| held.message.clone()).collect()
    }

    /// Puts messages that were handed out back to wait, as if they had been sent with a delay.
    pub(super) fn postpone(&mut self, messages: &[Value], due: i64) {
        for message in messages {
            if let Some(held) = self.held.get_mut(text(message, "ReceiptHandle")) {
                held.state = State::Delayed(due);
            }
        }
    }

    /// Changes the time until which a message is hidden. Returns `false` if it is not on the desk.
    pub(super) fn hide(&mut self, receipt: &str, until: i64) -> bool {
        let Some(held) = self.held.get_mut(receipt) else { return false };
        held.state = match held.state {
            State::InFlight(_) => State::InFlight(until),
            _ => State::Hidden(until),
        };
        true
    }

    pub(super) fn failed(&mut self, receipt: &str) {
        if let Some(held) = self.held.get_mut(receipt)
            && let State::InFlight(until) = held.state
        {
            held.state = State::Hidden(until);
        }
    }

    pub(super) fn forget(&mut self, receipt: &str) {
        self.held.remove(receipt);
    }

    /// Makes delayed messages ready if they are due. Returns the receipts of hidden messages whose
    /// visibility timeout has passed.
    pub(super) fn wake(&mut self, queue: &str, now: i64) -> Vec<String> {
        let mut over = Vec::new();
        for (receipt, held) in self.held.iter_mut().filter(|(_, held)| held.queue == queue) {
            match held.state {
                State::Delayed(due) if due <= now => held.state = State::Ready,
                State::Hidden(until) if until <= now => over.push(receipt.clone()),
                _ => {}
            }
        }
        over
    }

    /// Moves all times back after the clock was set back, so that remaining waits stay the same.
    pub(super) fn set_back(&mut self, by_ms: i64) {
        self.delayed.values_mut().for_each(|due| *due -= by_ms);
        for held in self.held.values_mut() {
            held.state = match held.state {
                State::Delayed(due) => State::Delayed(due - by_ms),
                State::InFlight(until) => State::InFlight(until - by_ms),
                State::Hidden(until) => State::Hidden(until - by_ms),
                State::Ready => State::Ready,
            };
        }
    }

    /// Returns the earliest time at which a message of this queue is due.
    pub(super) fn next_due(&self, queue: &str) -> Option<i64> {
        self.of(queue).filter_map(|held| held.state.waits_for()).min()
    }

    /// Returns how many messages of a queue are to be processed now, and how many wait for a time.
    pub(super) fn count(&self, queue: &str, now: i64) -> (usize, usize) {
        let waiting = self.of(queue).filter(|held| held.state.waits_for().is_some_and(|at| at > now)).count();
        (self.of(queue).count() - waiting, waiting)
    }

    /// Returns the receipts of all messages of a queue that wait for a time.
    pub(super) fn waiting(&self, queue: &str) -> Vec<String> {
        let waits = |held: &Held| held.queue == queue && held.state.waits_for().is_some();
        self.held.iter().filter(|(_, held)| waits(held)).map(|(receipt, _)| receipt.clone()).collect()
    }

    /// Returns everything on the desk: queue, message, and the time that it waits for.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &Value, Option<i64>)> {
        self.held.values().map(|held| (held.queue.as_str(), &held.message, held.state.waits_for()))
    }

    fn of(&self, queue: &str) -> impl Iterator<Item = &Held> {
        self.held.values().filter(move |held| held.queue == queue)
    }
}

fn text<'a>(message: &'a Value, name: &str) -> &'a str {
    message[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(id: &str) -> Value {
        json!({"MessageId": id, "ReceiptHandle": format!("r-{id}")})
    }

    fn ids(messages: &[Value]) -> Vec<&str> {
        messages.iter().map(|message| text(message, "MessageId")).collect()
    }

    #[test]
    fn a_delayed_message_is_handed_out_from_its_time_on() {
        let mut desk = Desk::default();
        desk.note_delay("a", 100);
        desk.take_in("q", &message("a"), 50);
        assert!(!desk.has_ready("q"));
        assert_eq!((desk.next_due("q"), desk.count("q", 50)), (Some(100), (0, 1)));
        assert_eq!(desk.wake("q", 99), Vec::<String>::new());
        desk.wake("q", 100);
        assert_eq!(ids(&desk.hand_out("q", 10, false, 500)), ["a"]);
        assert_eq!(ids(&desk.hand_out("q", 10, false, 500)), Vec::<&str>::new(), "it is handed out once");
    }

    #[test]
    fn a_failed_message_is_hidden_for_its_timeout_and_then_returned() {
        let mut desk = Desk::default();
        desk.take_in("q", &message("a"), 0);
        desk.hand_out("q", 1, false, 60);
        desk.failed("r-a");
        assert_eq!(desk.wake("q", 59), Vec::<String>::new());
        assert_eq!(desk.wake("q", 60), ["r-a"]);
        assert!(desk.hide("r-a", 200));
        assert_eq!(desk.wake("q", 60), Vec::<String>::new(), "its function extended the timeout");
        assert!(!desk.hide("r-z", 1));
    }

    #[test]
    fn a_remaining_wait_stays_the_same_when_the_clock_is_set_back() {
        let mut desk = Desk::default();
        for id in ["a", "b", "c"] {
            desk.note_delay(id, 1_100);
        }
        desk.take_in("q", &message("a"), 1_050);
        desk.take_in("q", &message("b"), 1_200);
        desk.hand_out("q", 1, false, 1_300);
        desk.failed("r-b");
        desk.set_back(1_000);
        assert_eq!((desk.next_due("q"), desk.delay_of("c")), (Some(100), Some(100)));
        desk.wake("q", 100);
        assert_eq!(ids(&desk.hand_out("q", 10, false, 500)), ["a"]);
        assert_eq!(desk.wake("q", 299), Vec::<String>::new());
        assert_eq!(desk.wake("q", 300), ["r-b"]);
    }

    #[test]
    fn messages_are_handed_out_in_order_of_receipt_or_reversed() {
        let mut desk = Desk::default();
        for id in ["a", "b", "c"] {
            desk.take_in("q", &message(id), 0);
        }
        desk.take_in("other", &message("x"), 0);
        assert_eq!(ids(&desk.hand_out("q", 1, false, 9)), ["a"]);
        assert_eq!(ids(&desk.hand_out("q", 9, true, 9)), ["c", "b"]);
    }
}
