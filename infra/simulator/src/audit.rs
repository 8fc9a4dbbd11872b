//! Rules that hold for everything that is delivered: messages, offers and recipients.

use crate::net::{Claim, Net};
use crate::providers::Heard;

/// I5: every call belongs to an attempt that its own instance began, and no attempt has two calls.
/// `rows` are the rows that the calls may belong to. Returns what does not hold.
pub fn calls_are_attempts(net: &Net, name: &str, rows: &[String], calls: &[&Heard]) -> Vec<String> {
    let mut claims = net.claims(rows);
    let mut violations = Vec::new();
    for call in calls {
        match attempt_of(&claims, call) {
            Some(at) => drop(claims.remove(at)),
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
