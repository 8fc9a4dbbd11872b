//! Emits pending jobs again after their time, so that a lost message does not lose the work.

use lambda_runtime::Error;
use serde_json::{Value, json};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{Condition, Write, Written, row_of};

use crate::Deps;
use crate::job::{Job, State, emit, key};

pub async fn run(deps: &Deps, invocation: &Invocation, _tick: Value) -> Result<Value, Error> {
    let jobs: Vec<Job> = deps.store.scan_prefix(invocation, &deps.table, "JOB#").await?;
    let mut emitted = 0;
    for job in jobs {
        let overdue = job.check_at.filter(|at| job.state == State::Pending && *at <= invocation.now.millis());
        if let (Some(check_at), Some(emitted_before)) = (overdue, &job.emit) {
            let seq = emitted_before.seq + 1;
            emitted += u32::from(emit_again(deps, invocation, &job.id, seq, check_at).await?);
        }
    }
    Ok(json!({"emitted": emitted}))
}

/// Emits a job again. The write is conditional on the state that was read, so two concurrent ticks
/// emit once.
async fn emit_again(deps: &Deps, invocation: &Invocation, id: &str, seq: u64, check_at: i64) -> Result<bool, Error> {
    let as_seen = Condition::all([Condition::is("state", "PENDING"), Condition::is_number("check_at", check_at)]);
    let next_check = invocation.now.plus_ms(60_000).millis();
    let mut write = Write::update(&deps.table, key(id)).set_number("check_at", next_check);
    for (name, value) in row_of(&json!({"emit": emit(id, seq, None)}))? {
        write = write.set_value(&name, value);
    }
    let written = deps.store.write(invocation, write.when(as_seen)).await?;
    Ok(!matches!(written, Written::Refused(_)))
}
