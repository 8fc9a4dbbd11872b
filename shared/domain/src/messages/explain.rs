//! Answers "Why did X (not) get this?": the decisions about one message, one address or one client,
//! ordered by time.

use serde::Serialize;
use serde_with::skip_serializing_none;

use crate::channels::Channel;
use crate::codes::Decision;
use crate::delivery::State;
use crate::intents::{IntentRow, IntentStatus};
use crate::messages::ledger::LedgerEntry;
use crate::messages::{MessageId, MessageRow};
use crate::suppression::SuppressionRow;
use crate::time::Timestamp;

/// A decision and its subject.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    pub message_id: Option<String>,
    pub channel: Option<Channel>,
    pub fingerprint: Option<String>,
    #[serde(flatten)]
    pub decision: LedgerEntry,
}

/// The current state of one message.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MessageState {
    pub message_id: MessageId,
    pub channel: Channel,
    pub status: State,
    pub reason_code: Option<String>,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub messages: Vec<MessageState>,
    pub decisions: Vec<Explained>,
}

pub fn explain(messages: Vec<MessageRow>, intents: Vec<IntentRow>, suppressions: Vec<SuppressionRow>) -> Explanation {
    let mut decisions: Vec<_> = intents.iter().flat_map(of_intent).collect();
    decisions.extend(suppressions.into_iter().map(of_suppression));
    let mut states = Vec::new();
    for row in messages {
        let fingerprint = row.intent.as_ref().map(|intent| intent.fingerprint.clone());
        states.push(MessageState {
            message_id: row.id.clone(),
            channel: row.channel,
            status: row.delivery.state,
            reason_code: row.delivery.reason,
            created_at: row.created_at,
        });
        decisions.extend(row.ledger.into_iter().map(|decision| Explained {
            message_id: Some(row.id.to_string()),
            channel: Some(row.channel),
            fingerprint: fingerprint.clone(),
            decision,
        }));
    }
    decisions.sort_by_key(|explained| explained.decision.at);
    Explanation { messages: states, decisions }
}

/// Explains an intent. If a message holds the intent, the message's ledger explains it; if a check
/// without a message holds it, the intent itself does.
fn of_intent(row: &IntentRow) -> Vec<Explained> {
    if row.holder.starts_with("message:") {
        return Vec::new();
    }
    let until = Timestamp::from_seconds(row.window_until);
    let held = LedgerEntry::new(row.created_at, Decision::IntentHeld).until(until);
    let released_at = row.released_at.filter(|_| row.status == IntentStatus::Released);
    let released = released_at.map(|at| LedgerEntry::new(at, Decision::IntentReleased));
    let explained = |decision: LedgerEntry| Explained {
        message_id: None,
        channel: None,
        fingerprint: Some(row.fingerprint.clone()),
        decision: decision.rule(format!("intent:{}:{}d", row.intent_type, row.window_days)).matched(&row.holder),
    };
    [Some(held), released].into_iter().flatten().map(explained).collect()
}

fn of_suppression(row: SuppressionRow) -> Explained {
    let decision = LedgerEntry::new(row.created_at, Decision::Suppressed).reason(&row.reason).rule("suppression");
    Explained {
        message_id: row.message_id,
        channel: Some(row.channel),
        fingerprint: None,
        decision: decision.matched(row.source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suppression::{reason, source};

    #[test]
    fn a_suppression_is_explained_by_its_reason_and_source() {
        let at = Timestamp::from_seconds(7);
        let row = SuppressionRow::new(Channel::Email, "a@b.co", reason::HARD_BOUNCE, source::SES, Some("msg_1"), at);
        let explained = explain(Vec::new(), Vec::new(), vec![row]);
        let text = serde_json::to_value(&explained.decisions).expect("JSON");
        let expected = serde_json::json!([{
            "message_id": "msg_1", "channel": "email", "at": "1970-01-01T00:00:07Z", "code": "suppressed",
            "reason": "hard_bounce", "rule": "suppression", "matched": "ses",
        }]);
        assert_eq!(text, expected);
    }
}
