//! `POST /jobs {id, delay_seconds?}`: one conditional write both creates the job and enqueues it.

use std::sync::Arc;

use serde_json::{Value, json};
use umavez_domain::codes::ProblemCode;
use umavez_platform::http::{Answer, Problem, Request, Route};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{Condition, Write, Written, read_row};

use crate::job::{Job, State, emit, key};
use crate::{Deps, hang};

pub const ROUTES: &[Route] = &[
    Route::public("POST /jobs"),
    Route::public("POST /notify"),
    Route::public("POST /panic"),
    Route::public("POST /hang"),
];

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, request: Request) -> Result<Answer, Problem> {
    match request.route.as_str() {
        "POST /panic" => panic!("a secret in a panic message: canary-panic"),
        "POST /hang" => hang().await,
        "POST /notify" => notify(&deps).await,
        _ => create(&deps, &invocation, &request).await,
    }
}

async fn create(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let body = request.object()?;
    let id = body.get("id").and_then(Value::as_str).unwrap_or_default();
    let owner = request.idempotency_key()?.map_or_else(|| invocation.request_id.clone(), |key| key.as_str().to_owned());
    let delay = body.get("delay_seconds").and_then(Value::as_i64);
    let not_before = delay.map(|seconds| invocation.now.plus_ms(seconds * 1_000).millis());
    let job = Job {
        id: id.to_owned(),
        state: State::Pending,
        owner: owner.clone(),
        emit: Some(emit(id, 1, not_before)),
        check_at: Some(invocation.now.plus_ms(delay.unwrap_or(0) * 1_000 + 60_000).millis()),
        completions: Vec::new(),
    };
    if let Some(broken) = deps.broken {
        return broken.create(deps, invocation, job).await;
    }
    let write = Write::put(&deps.table, key(id), &job)?.when(Condition::Absent);
    match deps.store.write(invocation, write).await? {
        Written::New | Written::Mine => created(&owner),
        Written::Refused(Some(item)) => {
            let there: Job = read_row(item)?;
            Ok(decision(there.owner == owner, &there.owner)?.replayed())
        }
        Written::Refused(None) => Err(Problem::new(500, ProblemCode::Internal, "refused by nothing")),
    }
}

/// Calls a provider once, and returns the status that it got.
async fn notify(deps: &Deps) -> Result<Answer, Problem> {
    let url = format!("{}/bot123:canary-token/sendMessage", deps.telegram_url);
    let call = deps.http.post(url).json(&json!({"chat_id": 7, "text": "olá"})).send();
    let heard = match call.await {
        Ok(response) => json!({"status": response.status().as_u16()}),
        Err(_) => json!({"status": null}),
    };
    Answer::json(200, &heard)
}

pub fn created(owner: &str) -> Result<Answer, Problem> {
    Answer::json(201, &json!({"created": true, "owner": owner}))
}

pub fn decision(created: bool, owner: &str) -> Result<Answer, Problem> {
    Answer::json(200, &json!({"created": created, "owner": owner}))
}
