//! Emits again what is pending past its time: the work is still found when a message was lost.

use std::sync::Arc;

use lambda_runtime::Error;
use serde_json::{Value, json};
use umavez_domain::time::Timestamp;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{Condition, Write, Written, row_of};

use crate::Deps;
use crate::job::{Job, State, emit, key};

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, _tick: Value) -> Result<Value, Error> {
    let jobs: Vec<Job> = deps.store.scan_prefix(&invocation, &deps.table, "JOB#").await?;
    let mut emitted = 0;
    for job in jobs {
        if job.state == State::Pending && job.check_at <= invocation.now.millis() {
            emitted += u32::from(emit_again(&deps, &invocation, &job, invocation.now).await?);
        }
    }
    Ok(json!({"emitted": emitted}))
}

/// Conditional on the state that was read, so two ticks at once emit once.
async fn emit_again(deps: &Deps, invocation: &Invocation, job: &Job, now: Timestamp) -> Result<bool, Error> {
    let as_seen = Condition::all([Condition::is("state", "PENDING"), Condition::is_number("check_at", job.check_at)]);
    let next = row_of(&json!({"emit": emit(&job.id, job.emit.seq + 1, None)}))?;
    let mut write = Write::update(&deps.table, key(&job.id)).set_number("check_at", now.plus_ms(60_000).millis());
    for (name, value) in next {
        write = write.set_value(&name, value);
    }
    let written = deps.store.write(invocation, write.when(as_seen)).await?;
    Ok(!matches!(written, Written::Refused(_)))
}
