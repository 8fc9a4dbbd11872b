//! The environment: for each function, the template sets exactly the variables that the code reads.
//!
//! A function reads the variables that its own sources name, and those that the platform's
//! constructors which it calls read.

use std::collections::{BTreeMap, BTreeSet};

use crate::{model, sources, without_tests};

/// The prefix of the variables that Lambda and the SDK use.
const OF_LAMBDA: &str = "AWS_";

/// Returns the bodies of the platform's constructors that read the environment, as `Type::name` or
/// `module::name`.
fn constructors() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (path, text) in sources("shared/platform/src") {
        let module = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        for function in without_tests(&text).split("\npub fn ").skip(1) {
            let body = function.split("\n}").next().unwrap_or_default();
            let name = function.split(['(', '<']).next().unwrap_or_default();
            if body.contains("config::") || body.contains("::from_env(") {
                found.insert(format!("{module}::{name}"), body.to_owned());
            }
        }
        for block in without_tests(&text).split("\nimpl ").skip(1) {
            let of = block.split([' ', '<']).next().unwrap_or_default();
            let block = block.split("\n}").next().unwrap_or_default();
            for function in block.split(" fn ").skip(1) {
                let name = function.split(['(', '<']).next().unwrap_or_default();
                if function.contains("config::") || function.contains("::from_env(") {
                    found.insert(format!("{of}::{name}"), function.replace("Self::", &format!("{of}::")));
                }
            }
        }
    }
    found
}

/// Returns the sources of a function, with the constructors that they call directly or indirectly.
fn all_that_is_run(function: &str, constructors: &BTreeMap<String, String>) -> String {
    let own = sources(&format!("functions/{function}/src"));
    let mut text: String = own.iter().map(|(_, text)| without_tests(text)).collect();
    // Every function starts with the telemetry.
    let telemetry = sources("shared/platform/src").into_iter().find(|(path, _)| path.ends_with("src/telemetry.rs"));
    text += without_tests(&telemetry.expect("the platform has telemetry").1);
    let mut known = BTreeSet::new();
    loop {
        let is_called = |name: &&String| {
            let calls = ["(", ")?", ",", "::<"].iter().any(|end| text.contains(&format!("{name}{end}")));
            calls && !known.contains(*name)
        };
        let Some(name) = constructors.keys().find(is_called).cloned() else { return text };
        text += &constructors[&name];
        known.insert(name);
    }
}

/// Returns the quoted names that a text passes to the configuration, and those that are variables
/// elsewhere.
fn variables(text: &str, anywhere: &BTreeSet<String>) -> BTreeSet<String> {
    let is_name = |word: &&str| {
        !word.is_empty()
            && word.chars().all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_')
    };
    let mut found = BTreeSet::new();
    for reader in ["required", "text", "optional", "number", "options"] {
        let call = format!("config::{reader}(\"");
        let calls = text.split(&call).skip(1);
        found.extend(calls.filter_map(|rest| rest.split('"').next()).filter(is_name).map(str::to_owned));
    }
    let quoted = text.split('"').filter(is_name).map(str::to_owned);
    found.extend(quoted.filter(|word| anywhere.contains(word)));
    found.retain(|name| !name.starts_with(OF_LAMBDA));
    found
}

#[test]
fn every_variable_that_is_set_is_read_and_every_one_that_is_read_is_set() {
    let model = model();
    let constructors = constructors();
    let anywhere: BTreeSet<_> =
        model.functions.iter().flat_map(|function| function.environment.keys().cloned()).collect();
    for function in &model.functions {
        let read = variables(&all_that_is_run(&function.binary, &constructors), &anywhere);
        let set: BTreeSet<_> = function.environment.keys().cloned().collect();
        let (unread, unset): (Vec<_>, Vec<_>) = (set.difference(&read).collect(), read.difference(&set).collect());
        assert!(unread.is_empty() && unset.is_empty(), "{}: unread {unread:?}, unset {unset:?}", function.binary);
    }
}

#[test]
fn variables_are_found_in_sources_and_in_constructors() {
    let constructors = constructors();
    assert!(constructors["Messages::from_env"].contains("OUTBOUND_TABLE"));
    let of_worker = all_that_is_run("conversation-worker", &constructors);
    let anywhere = ["CONVERSATIONS_QUEUE", "LOG_LEVEL", "LINK_SECRET"].map(str::to_owned);
    let read = variables(&of_worker, &anywhere.into());
    for name in ["CONVERSATIONS_QUEUE", "CONVERSATIONS_TABLE", "MESSAGE_RETENTION_DAYS", "LOG_LEVEL", "RESPONDER_URL"] {
        assert!(read.contains(name), "{name}");
    }
    assert!(!read.contains("LINK_SECRET"));
}
