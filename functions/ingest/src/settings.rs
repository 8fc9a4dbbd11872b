//! Test mode, policies, and the static configuration.

use serde_json::json;
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::FieldError;
use umavez_domain::ingest::{
    LONGEST_LINE, MOST_ERRORS, PolicyKey, PolicyPatch, Schema, System, TRACKING, TestModeRow, TestModeView,
    read_test_mode,
};
use umavez_domain::telemetry::Event;
use umavez_platform::http::{Answer, MAX_BODY, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::{Deps, entries};

pub async fn test_mode(deps: &Deps, invocation: &Invocation) -> Result<Answer, Problem> {
    Answer::json(200, &TestModeView::from(&deps.settings.read(invocation).await?.test_mode))
}

pub async fn set_test_mode(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let wanted = read_test_mode(&request.object()?).map_err(Problem::invalid)?;
    let row = deps.settings.set(invocation, wanted, &request.identity(invocation)?.key).await?;
    log_mode(invocation, &row);
    Answer::json(200, &TestModeView::from(&row))
}

/// Toggles the test mode. A repeated request with the same idempotency key does not toggle again.
pub async fn toggle(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let (row, is_test_mode, again) = deps.settings.toggle(invocation, &request.identity(invocation)?.key).await?;
    let schema = if is_test_mode { Schema::PkmTest } else { Schema::Pkm };
    let view = TestModeView { is_test_mode, schema, updated_at: row.updated_at };
    let answer = Answer::json(200, &view)?;
    if again {
        return Ok(answer.replayed());
    }
    log_mode(invocation, &row);
    Ok(answer)
}

/// Returns the configuration that does not change while this version runs. The test mode is not
/// part of it.
pub fn config() -> Result<Answer, Problem> {
    Answer::json(
        200,
        &json!({
            "schemas": Schema::ALL,
            "sources": System::ALL,
            "policies": PolicyKey::ALL,
            "tracking_parameters": {"version": TRACKING.version},
            "limits": {"body_bytes": MAX_BODY, "backfill_line_bytes": LONGEST_LINE, "backfill_errors": MOST_ERRORS},
        }),
    )
}

/// Returns the policies of the requested schema, or of both schemas if the request names none.
pub async fn policies(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let wanted = entries::schema(request)?;
    let mut policies = deps.settings.read(invocation).await?.policies;
    policies.retain(|row| wanted.is_none_or(|schema| row.schema == schema));
    policies.sort_by_key(|row| (row.schema, row.policy_id));
    Answer::json(200, &json!({"policies": policies}))
}

/// Changes a policy of the requested schema, or of the schema in use if the request names none.
pub async fn patch_policy(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let patch = PolicyPatch::read(&request.object()?).map_err(Problem::invalid)?;
    let wanted = entries::schema(request)?;
    let key = request.path.get("key").and_then(|text| PolicyKey::parse(text));
    let Some(key) = key else {
        let known: Vec<_> = PolicyKey::ALL.iter().map(|key| key.as_str()).collect();
        let detail = format!("must be one of {}", known.join(", "));
        return Err(Problem::invalid(vec![FieldError::new("key", FieldProblem::Unknown, detail)]));
    };
    let schema = match wanted {
        Some(schema) => schema,
        None => deps.settings.read(invocation).await?.schema(),
    };
    let Some((row, is_changed)) = deps.settings.patch(invocation, schema, key, &patch).await? else {
        return Err(Problem::not_found(format!("there is no such policy in {schema}")));
    };
    if is_changed {
        let (policy, schema) = (row.policy_key.as_str(), row.schema.as_str());
        tracing::info!(
            event = Event::PolicyChanged.as_str(),
            policy,
            schema,
            enabled = row.enabled,
            conflict_action = row.conflict_action.as_str(),
            request_id = invocation.request_id
        );
    }
    Answer::json(200, &row)
}

fn log_mode(invocation: &Invocation, row: &TestModeRow) {
    tracing::info!(
        event = Event::TestModeChanged.as_str(),
        schema = row.schema().as_str(),
        request_id = invocation.request_id
    );
}
