//! The log of calls through the front: caller, operation, target, result and cost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// How many of the newest calls are kept individually. The totals count all calls.
const KEPT: usize = 50_000;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Call {
    pub number: u64,
    /// The function's binary, or the access key of any other caller.
    pub caller: String,
    pub service: String,
    pub operation: String,
    /// The table, queue, secret or bucket.
    pub target: String,
    /// The key of the row, if the call is about one row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The permissions that the call needs.
    pub actions: Vec<Needed>,
    /// The signer of a presigned URL: the function, or the access key of any other signer. The
    /// signer must have the permissions.
    pub signer: Option<String>,
    /// The status that the caller got; 0 if it got no response.
    pub status: u16,
    /// The fault that applied, if any.
    pub fault: Option<String>,
    pub read_units: f64,
    pub write_units: f64,
}

/// An IAM action, and its resource: a table, index, queue, secret, bucket or object (`bucket/key`).
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
    /// Records a call and sets its number.
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

    /// Returns the number of the next call.
    pub fn position(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next
    }

    pub fn since(&self, position: u64) -> Vec<Call> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.newest.iter().filter(|call| call.number >= position).cloned().collect()
    }

    /// Returns the totals by caller, service and operation.
    pub fn totals(&self) -> Vec<(String, String, String, Total)> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.totals.iter().map(|((a, b, c), total)| (a.clone(), b.clone(), c.clone(), *total)).collect()
    }
}
