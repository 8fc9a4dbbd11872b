//! A small model of the answers of the intents API, and a search for an order of events that
//! explains what clients saw.
//!
//! Operations of one round overlap in time, so any order of them is possible. An operation without
//! an answer may or may not have taken effect. A round is explained if, from some state in which
//! the previous round could have ended, some order gives exactly the answers that clients got.

use std::collections::BTreeSet;

/// One intent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Never,
    Held(String),
    Released,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Check {
        key: String,
    },
    /// Releases the hold of a named holder, or of any holder.
    Release {
        holder: Option<String>,
    },
    Read,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    Allowed,
    Blocked {
        by: String,
    },
    Released,
    AlreadyReleased,
    HeldByAnother,
    NotFound,
    Is(State),
    /// No answer.
    Nothing,
}

#[derive(Debug, Clone)]
pub struct Event {
    pub operation: Operation,
    pub seen: Seen,
}

/// Returns the states in which the round can have ended. An empty set means that nothing explains
/// the round.
pub fn explain(from: &BTreeSet<State>, round: &[Event]) -> BTreeSet<State> {
    let mut ends = BTreeSet::new();
    for state in from {
        search(state, &mut (0..round.len()).collect(), round, &mut ends);
    }
    ends
}

fn search(state: &State, left: &mut Vec<usize>, round: &[Event], ends: &mut BTreeSet<State>) {
    if left.is_empty() {
        ends.insert(state.clone());
        return;
    }
    for at in 0..left.len() {
        let event = &round[left[at]];
        let (next, answer) = apply(state, &event.operation);
        let chosen = left.remove(at);
        if event.seen == Seen::Nothing {
            search(&next, left, round, ends);
            search(state, left, round, ends);
        } else if event.seen == answer {
            search(&next, left, round, ends);
        }
        left.insert(at, chosen);
    }
}

/// Returns the state of the intent after the operation, and the answer to the caller.
fn apply(state: &State, operation: &Operation) -> (State, Seen) {
    match (operation, state) {
        (Operation::Check { key }, State::Held(by)) if by != key => (state.clone(), Seen::Blocked { by: by.clone() }),
        (Operation::Check { key }, _) => (State::Held(key.clone()), Seen::Allowed),
        (Operation::Release { .. }, State::Never) => (State::Never, Seen::NotFound),
        (Operation::Release { .. }, State::Released) => (State::Released, Seen::AlreadyReleased),
        (Operation::Release { holder: Some(holder) }, State::Held(by)) if holder != by => {
            (state.clone(), Seen::HeldByAnother)
        }
        (Operation::Release { .. }, State::Held(_)) => (State::Released, Seen::Released),
        (Operation::Read, State::Never) => (State::Never, Seen::NotFound),
        (Operation::Read, state) => (state.clone(), Seen::Is(state.clone())),
    }
}

/// Checks that the model accepts correct rounds and rejects wrong ones.
pub fn check_itself() -> Result<(), &'static str> {
    let check = |key: &str, seen: Seen| Event { operation: Operation::Check { key: key.to_owned() }, seen };
    let release = |seen: Seen| Event { operation: Operation::Release { holder: None }, seen };
    let by = |key: &str| Seen::Blocked { by: key.to_owned() };
    let never = BTreeSet::from([State::Never]);
    let fine = [
        vec![check("a", Seen::Allowed), check("b", by("a")), check("a", Seen::Allowed)],
        vec![check("a", Seen::Allowed), release(Seen::Released), check("b", Seen::Allowed)],
        vec![check("a", Seen::Nothing), check("b", Seen::Allowed)],
        vec![check("a", Seen::Nothing), check("b", by("a"))],
    ];
    let wrong = [
        vec![check("a", Seen::Allowed), check("b", Seen::Allowed)],
        vec![check("a", by("a"))],
        vec![check("a", by("b"))],
        vec![check("a", Seen::Nothing), check("b", by("c"))],
        vec![release(Seen::Released)],
    ];
    if fine.iter().any(|round| explain(&never, round).is_empty()) {
        return Err("the model rejects a correct round");
    }
    if wrong.iter().any(|round| !explain(&never, round).is_empty()) {
        return Err("the model accepts a wrong round");
    }
    Ok(())
}
