//! Selects the pending messages of one batch and sorts them for the responder.
//!
//! The numbers of the messages, which follow the order of arrival, decide which messages a batch
//! has. The write that claims the batch fixes this, so every request to the responder about the
//! batch has the same messages. Within the batch, the messages are in the provider's order.

use super::course::Course;
use super::identity::Via;
use super::responder;
use super::rows::StoredMessage;
use crate::time::{DAY_MS, Timestamp};

/// The maximum number of messages in a batch.
pub const MOST_MESSAGES: usize = 100;
/// The maximum size of all messages of a batch together, in bytes of JSON. A batch always takes its
/// first message, whatever its size.
pub const MOST_BYTES: usize = 256 * 1024;

/// The shortest time for which messages are kept. A message that is missing earlier has not
/// expired.
const SHORTEST_RETENTION_MS: i64 = DAY_MS;

/// The pending messages that a claim takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Portion {
    /// The messages up to `last`. If messages remain, the first of them was received at
    /// `rest_since`.
    UpTo { last: u64, rest_since: Option<Timestamp> },
    /// The messages up to `last` are no longer stored: the retention period ended before they were
    /// answered.
    Expired { last: u64 },
}

/// Decides what the next batch takes. A batch ends at a gap in the numbers. Returns `None` if the
/// read does not show the first pending message yet: it was received too recently to have expired.
///
/// `messages` are the first pending messages, sorted by number. If enough are pending, there must
/// be one more than a batch takes.
pub fn portion(course: &Course, messages: &[StoredMessage], now: Timestamp) -> Option<Portion> {
    let next = course.claimed + 1;
    let number = |message: &StoredMessage| message.number.unwrap_or(0);
    let gap = match messages.first().map(number) {
        None => Some(course.received),
        Some(first) => (first > next).then(|| first - 1),
    };
    if let Some(last) = gap {
        let pending_ms = course.pending_since.map_or(0, |since| now.millis() - since);
        return (pending_ms >= SHORTEST_RETENTION_MS).then_some(Portion::Expired { last });
    }
    let (mut last, mut bytes) = (course.claimed, 0);
    for (count, message) in messages.iter().enumerate() {
        bytes += responder::size(message);
        let fits = count < MOST_MESSAGES && bytes <= MOST_BYTES;
        if (count > 0 && !fits) || number(message) != last + 1 {
            return Some(Portion::UpTo { last, rest_since: Some(message.received_at) });
        }
        last = number(message);
    }
    Some(Portion::UpTo { last, rest_since: None })
}

/// Sorts the messages of a batch in the order in which they were sent: by the provider's time, then
/// by the provider's own order, then by arrival.
///
/// Telegram counts the messages of a chat, so its ids order messages of the same second. WhatsApp's
/// ids are random, and API callers choose their own ids, so there messages of the same time are in
/// order of arrival. A message without a time stays behind the message that arrived before it.
pub fn in_order(via: Via, mut messages: Vec<StoredMessage>) -> Vec<StoredMessage> {
    messages.sort_by_key(|message| message.number);
    let mut time = Timestamp::from_millis(i64::MIN);
    let with_place = |message: StoredMessage| {
        time = message.sent_at.unwrap_or(time);
        let id: u64 = match via {
            Via::Telegram => message.message_id.parse().unwrap_or(0),
            Via::Whatsapp | Via::Api => 0,
        };
        ((time, id, message.number), message)
    };
    let mut placed: Vec<_> = messages.into_iter().map(with_place).collect();
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, message)| message).collect()
}

#[cfg(test)]
mod tests {
    use super::super::inbound::MessageKind;
    use super::super::rows::Author;
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn message(number: u64, text: &str) -> StoredMessage {
        StoredMessage {
            message_id: number.to_string(),
            place: String::new(),
            number: Some(number),
            author: Author::Contact,
            kind: MessageKind::Text,
            text: Some(text.to_owned()),
            media: None,
            sent_at: None,
            received_at: NOW.plus_ms(i64::try_from(number).expect("small")),
            emit: None,
            expires_at: 0,
        }
    }

    fn pending(claimed: u64, received: u64) -> Course {
        Course { received, claimed, answered: claimed, pending_since: Some(NOW.millis()), ..Course::default() }
    }

    /// Calls `portion` at a time long after the messages arrived.
    fn portion(course: &Course, messages: &[StoredMessage]) -> Portion {
        super::portion(course, messages, NOW.plus_days(100)).expect("a portion")
    }

    fn messages(from: u64, to: u64, text: &str) -> Vec<StoredMessage> {
        (from..=to).map(|number| message(number, text)).collect()
    }

    #[test]
    fn a_batch_takes_all_pending_messages_up_to_a_hundred() {
        let all = |count| Portion::UpTo { last: count, rest_since: None };
        assert_eq!(portion(&pending(0, 1), &messages(1, 1, "a")), all(1));
        assert_eq!(portion(&pending(0, 100), &messages(1, 100, "a")), all(100));
        let rest_since = Some(message(101, "a").received_at);
        assert_eq!(portion(&pending(0, 101), &messages(1, 101, "a")), Portion::UpTo { last: 100, rest_since });
        let next = portion(&pending(100, 230), &messages(101, 201, "a"));
        assert_eq!(next, Portion::UpTo { last: 200, rest_since: Some(message(201, "a").received_at) });
    }

    #[test]
    fn a_batch_ends_before_the_message_that_exceeds_its_maximum_size() {
        // This text makes a message exactly a quarter of the maximum size of a batch.
        let quarter = MOST_BYTES / 4;
        let text = "a".repeat(quarter - responder::size(&message(1, "")));
        assert_eq!(responder::size(&message(1, &text)), quarter);
        let four = messages(1, 4, &text);
        assert_eq!(portion(&pending(0, 4), &four), Portion::UpTo { last: 4, rest_since: None });
        let five = messages(1, 5, &text);
        let rest_since = Some(five[4].received_at);
        assert_eq!(portion(&pending(0, 5), &five), Portion::UpTo { last: 4, rest_since });
        let mut more = messages(1, 4, &text);
        more[3].text = more[3].text.take().map(|text| text + "a");
        let rest_since = Some(more[3].received_at);
        assert_eq!(portion(&pending(0, 4), &more), Portion::UpTo { last: 3, rest_since });
    }

    #[test]
    fn a_message_larger_than_a_batch_is_a_batch_of_its_own() {
        let mut two = messages(1, 2, "a");
        two[0].text = Some("a".repeat(MOST_BYTES));
        let rest_since = Some(two[1].received_at);
        assert_eq!(portion(&pending(0, 2), &two), Portion::UpTo { last: 1, rest_since });
    }

    #[test]
    fn expired_messages_are_not_part_of_a_batch() {
        assert_eq!(portion(&pending(3, 9), &messages(7, 9, "a")), Portion::Expired { last: 6 });
        assert_eq!(portion(&pending(3, 9), &[]), Portion::Expired { last: 9 });
        let mut with_gap = messages(4, 9, "a");
        with_gap.remove(2);
        let rest_since = Some(with_gap[2].received_at);
        assert_eq!(portion(&pending(3, 9), &with_gap), Portion::UpTo { last: 5, rest_since }, "it ends at the gap");
    }

    #[test]
    fn a_message_received_within_a_day_has_not_expired() {
        for (ms, expires) in [(0, false), (3_600_000, false), (86_399_999, false), (86_400_000, true)] {
            let now = NOW.plus_ms(ms);
            let expired = |last| expires.then_some(Portion::Expired { last });
            assert_eq!(super::portion(&pending(3, 9), &[], now), expired(9), "{ms}");
            assert_eq!(super::portion(&pending(3, 9), &messages(7, 9, "a"), now), expired(6), "{ms}");
        }
    }

    fn sorted(via: Via, of: &[(&str, Option<i64>)]) -> Vec<String> {
        let stored = (1..).zip(of).map(|(number, (id, sent_at))| {
            let (message_id, sent_at) = ((*id).to_owned(), sent_at.map(Timestamp::from_seconds));
            StoredMessage { message_id, sent_at, ..message(number, "a") }
        });
        in_order(via, stored.collect()).into_iter().map(|message| message.message_id).collect()
    }

    #[test]
    fn telegram_messages_are_sorted_by_time_and_then_by_message_id() {
        let burst = [("12", Some(30)), ("7", Some(10)), ("11", Some(20)), ("9", Some(20)), ("10", Some(20))];
        assert_eq!(sorted(Via::Telegram, &burst), ["7", "9", "10", "11", "12"]);
    }

    #[test]
    fn messages_of_other_channels_are_sorted_by_time_and_then_by_arrival() {
        let burst = [("C", Some(30)), ("Z", Some(20)), ("B", Some(10)), ("A", Some(20))];
        for via in [Via::Whatsapp, Via::Api] {
            assert_eq!(sorted(via, &burst), ["B", "Z", "A", "C"]);
        }
    }

    #[test]
    fn a_message_without_a_time_follows_the_message_that_arrived_before_it() {
        assert_eq!(sorted(Via::Api, &[("b", None), ("a", None)]), ["b", "a"]);
        assert_eq!(
            sorted(Via::Api, &[("c", Some(30)), ("d", None), ("a", Some(10)), ("b", None)]),
            ["a", "b", "c", "d"]
        );
        let first = StoredMessage { sent_at: Some(NOW), ..message(1, "a") };
        let read = vec![message(3, "a"), first.clone(), message(2, "a")];
        let expected = vec![first, message(2, "a"), message(3, "a")];
        assert_eq!(in_order(Via::Api, read), expected, "the order in which they were read does not count");
    }
}
