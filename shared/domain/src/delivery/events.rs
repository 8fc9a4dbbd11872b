//! The effect of a provider's events on a delivery: proof about an attempt, and marks that are set
//! once.
//!
//! The provider may deliver an event more than once and in any order. So each event sets a mark
//! only once, and what it proves about an attempt does not depend on earlier events.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::state::State;
use super::transitions::{Delivery, Settled};
use crate::channels::email::ses;
use crate::channels::email::ses_events::{Kind, SesEvent};
use crate::codes::Decision;
use crate::time::Timestamp;

/// The time of the first event of each kind.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Marks {
    pub delivered_at: Option<Timestamp>,
    pub bounced_at: Option<Timestamp>,
    pub complained_at: Option<Timestamp>,
    pub rejected_at: Option<Timestamp>,
}

/// The effect of an event on a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventEffect {
    pub delivery: Delivery,
    pub marks: Marks,
    /// Whether the event changed the state.
    pub reconciled: bool,
}

impl Marks {
    /// Sets the mark of an event. Returns whether the mark is new.
    fn set(&mut self, kind: Kind, at: Timestamp) -> bool {
        let mark = match kind {
            Kind::Send => return false,
            Kind::Delivery => &mut self.delivered_at,
            Kind::Bounce { .. } => &mut self.bounced_at,
            Kind::Complaint => &mut self.complained_at,
            Kind::Reject => &mut self.rejected_at,
        };
        let is_new = mark.is_none();
        mark.get_or_insert(at);
        is_new
    }
}

impl Kind {
    /// Returns the ledger's decision code for the event.
    pub fn decision(self) -> Decision {
        match self {
            Self::Send => Decision::Reconciled,
            Self::Delivery => Decision::Delivered,
            Self::Bounce { .. } => Decision::Bounced,
            Self::Complaint => Decision::Complained,
            Self::Reject => Decision::Rejected,
        }
    }
}

impl Delivery {
    /// Applies an event about `attempt`. `None` if the delivery already contains everything that
    /// the event says.
    pub fn of_event(&self, marks: Marks, event: &SesEvent, attempt: u32) -> Option<EventEffect> {
        let settled = match event.kind.proves_sent() {
            true => self.confirmed(attempt, &event.provider_id, event.at),
            false => self.rejected(attempt, ses::code::MESSAGE_REJECTED),
        };
        let mut effect = EventEffect { delivery: self.clone(), marks, reconciled: false };
        let learned = matches!(settled, Settled::Now(_));
        if let Settled::Now(delivery) = settled {
            effect.reconciled = delivery.state != self.state;
            effect.delivery = delivery;
        }
        // A rejection of an earlier attempt says nothing about the delivery any more.
        let is_old = event.kind == Kind::Reject && (attempt != self.attempt || self.state == State::Queued);
        let marked = !is_old && effect.marks.set(event.kind, event.at);
        (learned || marked).then_some(effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn event(kind: Kind) -> SesEvent {
        SesEvent { kind, message: None, provider_id: "p".into(), recipients: Vec::new(), at: NOW }
    }

    fn delivery(state: State, attempt: u32) -> Delivery {
        Delivery { state, attempt, ..Delivery::default() }
    }

    #[test]
    fn an_event_settles_and_marks_a_delivery_once_and_its_repeat_is_a_no_op() {
        let unknown = Delivery { doubts: vec![1], ..delivery(State::Unknown, 1) };
        let bounce = event(Kind::Bounce { permanent: true });
        let first = unknown.of_event(Marks::default(), &bounce, 1).expect("news");
        assert_eq!((first.delivery.state, first.reconciled, first.marks.bounced_at), (State::Sent, true, Some(NOW)));
        assert_eq!(first.delivery.of_event(first.marks, &bounce, 1), None);
        let complaint = first.delivery.of_event(first.marks, &event(Kind::Complaint), 1).expect("a mark");
        assert_eq!((complaint.reconciled, complaint.marks.complained_at), (false, Some(NOW)));
        assert_eq!(complaint.delivery.of_event(complaint.marks, &event(Kind::Send), 1), None);
    }

    #[test]
    fn proof_of_sending_updates_a_failed_or_operator_settled_delivery() {
        let failed = delivery(State::Failed, 1).of_event(Marks::default(), &event(Kind::Delivery), 1).expect("news");
        assert_eq!((failed.delivery.state, failed.reconciled), (State::Sent, true));
        let declared = delivery(State::Sent, 1).of_event(Marks::default(), &event(Kind::Send), 1).expect("news");
        assert_eq!((declared.delivery.provider_id.as_deref(), declared.reconciled), (Some("p"), false));
    }

    #[test]
    fn a_rejection_of_an_earlier_attempt_leaves_no_mark() {
        let second = Delivery { doubts: vec![1], ..delivery(State::Sending, 2) };
        let effect = second.of_event(Marks::default(), &event(Kind::Reject), 1).expect("the doubt is gone");
        assert_eq!((effect.delivery.doubts.len(), effect.marks.rejected_at, effect.reconciled), (0, None, false));
        let effect = second.of_event(Marks::default(), &event(Kind::Reject), 2).expect("news");
        assert_eq!((effect.delivery.state, effect.marks.rejected_at), (State::Unknown, Some(NOW)));
    }
}
