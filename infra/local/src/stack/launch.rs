//! The settings that the processes of a function start with.

use std::collections::BTreeMap;
use std::path::Path;

use umavez_platform::clock::OFFSET_VARIABLE;

use super::Options;
use crate::clock::Clock;
use crate::front::{self, PROVIDER_URL_BASE};
use crate::functions::FunctionSpec;
use crate::model::Function;
use crate::s3::FUNCTION_SECRET;
use crate::template::{self, API_URL, QUEUE_URL_BASE, REGION};

/// The addresses at which the stack listens.
#[derive(Clone, Copy)]
pub(super) struct Addresses<'a> {
    pub(super) api: &'a str,
    /// The emulators.
    pub(super) front: &'a str,
}

/// Returns the environment and settings that Lambda gives a function, with the addresses of the
/// emulators. The function cannot see from them that it runs locally.
pub(super) fn spec(
    function: &Function,
    directory: &Path,
    at: Addresses<'_>,
    clock: &Clock,
    options: &Options,
) -> FunctionSpec {
    let queue_base = format!("{}/{}/", at.front, template::ACCOUNT);
    let provider_base = front::provider_base(at.front, &function.binary);
    let mut environment: BTreeMap<_, _> = function
        .environment
        .iter()
        .map(|(name, value)| {
            let value = value.replace(QUEUE_URL_BASE, &queue_base).replace(PROVIDER_URL_BASE, &provider_base);
            (name.clone(), value.replace(API_URL, at.api))
        })
        .collect();
    environment.extend(
        [
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_DEFAULT_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", access_key(function)),
            ("AWS_SECRET_ACCESS_KEY", FUNCTION_SECRET.to_owned()),
            ("AWS_ENDPOINT_URL", at.front.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let skew_ms = options.clock_skews_ms.get(&function.binary).copied().unwrap_or(0);
    move_clock(&mut environment, clock.offset_ms().saturating_add(skew_ms));
    FunctionSpec {
        name: function.name.clone(),
        program: directory.join(&function.binary),
        arguments: Vec::new(),
        environment,
        timeout: function.timeout,
        memory_mb: function.memory_mb,
        concurrency: concurrency(function, options),
    }
}

/// Moves the clock that a process starts with.
pub(super) fn move_clock(environment: &mut BTreeMap<String, String>, by_ms: i64) {
    let before: i64 = environment.get(OFFSET_VARIABLE).and_then(|offset| offset.parse().ok()).unwrap_or(0);
    environment.insert(OFFSET_VARIABLE.to_owned(), before.saturating_add(by_ms).to_string());
}

pub(super) fn access_key(function: &Function) -> String {
    format!("local-{}", function.binary)
}

pub(super) fn concurrency(function: &Function, options: &Options) -> usize {
    function.reserved_concurrency.map_or(options.concurrency, |most| (most as usize).min(options.concurrency)).max(1)
}
