//! Rules that hold for everything that is delivered: messages, offers and recipients.

use umavez_domain::channels::email::ses_events::Kind;

use crate::net::{Claim, Net};
use crate::providers::Heard;

/// The longest time between the write that begins an attempt and its call. Later, the call could
/// still be under way when the attempt counts as lost.
const LONGEST_MS: u64 = 21_000;

/// I5: every call belongs to an attempt that its own instance began, no attempt has two calls, and
/// no call begins after its attempt counts as lost. `rows` are the rows that the calls may belong
/// to. Returns what does not hold.
pub fn calls_are_attempts(net: &Net, name: &str, rows: &[String], calls: &[&Heard]) -> Vec<String> {
    let mut claims = net.claims(rows);
    let mut violations = Vec::new();
    for call in calls {
        match attempt_of(&claims, call) {
            Some(at) => {
                let late_ms = call.begun_ms.saturating_sub(claims.remove(at).at_ms);
                if late_ms > LONGEST_MS {
                    violations.push(format!("{} was called for {name} {late_ms} ms after its attempt", call.provider));
                }
            }
            None => {
                let Heard { at_ms, instance, provider, .. } = call;
                violations
                    .push(format!("{instance} called {provider} for {name} at {at_ms} without an attempt of its own"));
            }
        }
    }
    violations
}

/// Returns when the attempt of a call began.
pub fn begun_ms(net: &Net, rows: &[String], call: &Heard) -> Option<u64> {
    let claims = net.claims(rows);
    attempt_of(&claims, call).map(|at| claims[at].at_ms)
}

/// Returns the latest attempt that the instance of a call began before it.
fn attempt_of(claims: &[Claim], call: &Heard) -> Option<usize> {
    claims.iter().rposition(|claim| claim.instance == call.instance && claim.at_ms <= call.at_ms)
}

/// I4: returns whether an event that was handled proves that this was sent, and none says that SES
/// refused to send it.
pub fn is_proven_sent(net: &Net, id: &str) -> bool {
    let events = net.mail_events();
    let mut own = events.iter().filter(|event| event.message.as_ref().is_some_and(|(of, _)| of == id)).peekable();
    own.peek().is_some() && own.all(|event| event.kind != Kind::Reject)
}
