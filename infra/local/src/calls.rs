//! What passed the front: who called which operation on what, how it ended, and what it cost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// The newest calls are kept one by one; the totals count all.
const KEPT: usize = 50_000;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Call {
    pub number: u64,
    /// The function's binary, or the access key of whoever else called.
    pub caller: String,
    pub service: String,
    pub operation: String,
    /// The table, queue, secret or bucket.
    pub target: String,
    /// The key of the row, of a call that is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What a policy has to grant for it.
    pub actions: Vec<Needed>,
    /// Of a presigned URL: the function (or the access key of whoever else) that signed it and must
    /// be granted this.
    pub signer: Option<String>,
    /// What the caller was told; 0 when it was told nothing.
    pub status: u16,
    /// The fault that struck, if one did.
    pub fault: Option<String>,
    pub read_units: f64,
    pub write_units: f64,
}

/// An IAM action, and the table, index, queue, secret, bucket or object (`bucket/key`) that it is
/// on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Needed {
    pub action: String,
    pub on: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Total {
    pub calls: u64,
    pub read_units: f64,
    pub write_units: f64,
}

#[derive(Debug, Clone, Default)]
pub struct Calls(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    newest: VecDeque<Call>,
    totals: BTreeMap<(String, String, String), Total>,
}

impl Calls {
    /// Notes a call; its number is set here.
    pub fn note(&self, mut call: Call) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        call.number = state.next;
        state.next += 1;
        let total =
            state.totals.entry((call.caller.clone(), call.service.clone(), call.operation.clone())).or_default();
        total.calls += 1;
        total.read_units += call.read_units;
        total.write_units += call.write_units;
        state.newest.push_back(call);
        if state.newest.len() > KEPT {
            state.newest.pop_front();
        }
    }

    /// The number that the next call will have.
    pub fn position(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next
    }

    pub fn since(&self, position: u64) -> Vec<Call> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.newest.iter().filter(|call| call.number >= position).cloned().collect()
    }

    /// Totals by caller, service and operation.
    pub fn totals(&self) -> Vec<(String, String, String, Total)> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.totals.iter().map(|((a, b, c), total)| (a.clone(), b.clone(), c.clone(), *total)).collect()
    }
}
