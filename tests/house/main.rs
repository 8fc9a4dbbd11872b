//! Rules of the repository that a machine can check.

mod codes;
mod deployment;
mod docs;
mod mechanisms;
mod names;
mod reference;
mod telemetry;
mod variables;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use umavez_domain::codes::{Decision, FileProblem, ProblemCode, Reason, RowProblem, SendingHold};
use umavez_domain::delivery::reason_codes;
use umavez_domain::ingest::normalize_email;
use umavez_domain::mailings::{DUPLICATE, EntryState, MailingState};
use umavez_local::binaries::workspace_root;
use umavez_local::model::Model;
use umavez_local::template::load;
use umavez_platform::http::{Access, QueryParameters, Route};
use umavez_tests::template;

/// The only routes that need no API key.
const PUBLIC: &[&str] = &[
    "GET /health",
    "GET /u/{token}",
    "POST /u/{token}",
    "POST /webhooks/evolution/{instance}",
    "POST /api/payment/webhook/payment-approved",
    "POST /api/payment/webhook/pix-created",
    "POST /api/payment/webhook/pix-expired",
    "POST /webhooks/telegram/{bot}",
    "GET /console",
    "GET /",
];

fn model() -> Model {
    load(&template(), &Default::default()).expect("the template loads")
}

/// Returns the routes of every HTTP function, with its binary.
fn routes() -> Vec<(&'static str, &'static [Route])> {
    vec![
        ("admin", admin::ROUTES),
        ("outbound-api", outbound_api::ROUTES),
        ("ingest", ingest::ROUTES),
        ("mailings-api", mailings_api::ROUTES),
        ("webhook-intake", webhook_intake::ROUTES),
        ("conversations-api", conversations_api::ROUTES),
    ]
}

fn sources(below: &str) -> Vec<(PathBuf, String)> {
    files(below, &["rs"])
}

/// Returns the files with one of these extensions in a folder and the folders below it.
fn files(below: &str, extensions: &[&str]) -> Vec<(PathBuf, String)> {
    fn walk(directory: &Path, extensions: &[&str], into: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, extensions, into);
            } else if path.extension().is_some_and(|found| extensions.iter().any(|extension| found == *extension)) {
                let text = fs::read_to_string(&path).expect("a source");
                into.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    walk(&workspace_root().join(below), extensions, &mut found);
    found
}

/// Returns a source without its unit tests, which are at its end.
fn without_tests(text: &str) -> &str {
    match text.rfind("#[cfg(test)]") {
        Some(at) if text[at..].contains("mod tests {") => &text[..at],
        _ => text,
    }
}

#[test]
fn every_function_is_a_folder_a_package_and_a_resource() {
    let deployed: BTreeSet<_> = model().functions.iter().map(|function| function.binary.clone()).collect();
    let folders: BTreeSet<_> = fs::read_dir(workspace_root().join("functions"))
        .expect("functions")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(deployed, folders);
    for function in model().functions {
        let manifest = fs::read_to_string(workspace_root().join("functions").join(&function.binary).join("Cargo.toml"));
        assert!(manifest.expect("a manifest").contains(&format!("name = \"{}\"", function.binary)));
        let camel: String = function.binary.split('-').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
        assert_eq!(function.logical_id, camel);
        assert!(function.name.ends_with(&format!("-{}", function.binary)));
    }
}

#[test]
fn the_template_and_the_functions_have_the_same_routes_with_the_same_access() {
    let model = model();
    let api = model.api.expect("an API");
    let name = |binary: &str| model.functions.iter().find(|f| f.binary == binary).map(|f| f.name.clone());
    let deployed: BTreeSet<_> = api
        .routes
        .iter()
        .map(|route| (route.function.clone(), format!("{} {}", route.method, route.path), route.authorized))
        .collect();
    let served: BTreeSet<_> = routes()
        .into_iter()
        .flat_map(|(binary, routes)| routes.iter().map(move |route| (binary, route)))
        .map(|(binary, route)| (name(binary).expect("deployed"), route.key.to_owned(), route.access != Access::Public))
        .collect();
    assert_eq!(deployed, served);
}

#[test]
fn every_route_has_the_authorizer_unless_it_is_on_the_short_list() {
    let api = model().api.expect("an API");
    assert!(api.authorizer.is_some());
    let open: Vec<_> = api
        .routes
        .iter()
        .filter(|route| !route.authorized)
        .map(|route| format!("{} {}", route.method, route.path))
        .collect();
    assert_eq!(open, PUBLIC);
}

#[test]
fn the_api_description_has_the_routes_of_the_template() {
    let described = umavez_tests::contract::description();
    let mut operations = BTreeSet::new();
    for (path, methods) in described["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let open = operation["security"].as_array().is_some_and(Vec::is_empty);
            operations.insert((format!("{} {path}", method.to_uppercase()), !open));
        }
    }
    let api = model().api.expect("an API");
    let deployed: BTreeSet<_> =
        api.routes.iter().map(|route| (format!("{} {}", route.method, route.path), route.authorized)).collect();
    assert_eq!(operations, deployed);
}

#[test]
fn the_api_description_has_the_parameters_that_the_routes_take() {
    let described = umavez_tests::contract::description();
    for route in routes().into_iter().flat_map(|(_, routes)| routes) {
        let (method, path) = route.key.split_once(' ').expect("a method and a path");
        let methods = &described["paths"][path];
        let own = methods[method.to_lowercase()]["parameters"].as_array().cloned().unwrap_or_default();
        let shared = methods["parameters"].as_array().cloned().unwrap_or_default();
        let resolved = own.into_iter().chain(shared).map(|parameter| match parameter["$ref"].as_str() {
            Some(reference) => described.pointer(reference.trim_start_matches('#')).expect("a parameter").clone(),
            None => parameter,
        });
        let names: BTreeSet<_> = resolved
            .filter(|parameter| parameter["in"] == "query")
            .map(|parameter| parameter["name"].as_str().expect("a name").to_owned())
            .collect();
        if let QueryParameters::Only(known) = route.query {
            assert_eq!(names, known.iter().map(|name| (*name).to_owned()).collect(), "{}", route.key);
        }
    }
}

#[test]
fn the_api_description_lists_every_code() {
    let described = umavez_tests::contract::description();
    let listed = |name: &str, pointer: &str| -> BTreeSet<String> {
        let codes =
            described.pointer(pointer).and_then(|codes| codes.as_array()).unwrap_or_else(|| panic!("no {name}"));
        codes.iter().filter_map(|code| code.as_str().map(str::to_owned)).collect()
    };
    let reasons: BTreeSet<_> = reason_codes().into_iter().map(str::to_owned).collect();
    assert_eq!(listed("reasons", "/components/schemas/ReasonCode/enum"), reasons);
    let decisions: BTreeSet<_> = Decision::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    assert_eq!(listed("decisions", "/components/schemas/Decision/properties/code/enum"), decisions);
    let problems: BTreeSet<_> = ProblemCode::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    assert_eq!(listed("problems", "/components/schemas/Problem/properties/code/enum"), problems);
    let files: BTreeSet<_> = FileProblem::ALL
        .iter()
        .map(|code| code.as_str())
        .chain([Reason::InputMissing.as_str(), Reason::InputChanged.as_str()])
        .map(str::to_owned)
        .collect();
    assert_eq!(listed("problems of files", "/components/schemas/FileProblem/properties/code/enum"), files);
    let rows: BTreeSet<_> =
        RowProblem::ALL.iter().map(|code| code.as_str()).chain([DUPLICATE]).map(str::to_owned).collect();
    assert_eq!(listed("problems of rows", "/components/schemas/ReportLine/properties/reason/enum"), rows);
    let holds: BTreeSet<_> = SendingHold::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    assert_eq!(listed("holds", "/components/schemas/Mailing/properties/paused_for/enum"), holds);
    let mailings: BTreeSet<_> = MailingState::ALL.iter().map(|state| state.as_str().to_owned()).collect();
    assert_eq!(listed("mailing states", "/components/schemas/MailingStatus/enum"), mailings);
    let entries: BTreeSet<_> = EntryState::ALL.iter().map(|state| state.as_str().to_owned()).collect();
    assert_eq!(listed("entry states", "/components/schemas/MailingEntryStatus/enum"), entries);
}

#[test]
fn an_email_needs_the_fields_that_are_documented() {
    let described = umavez_tests::contract::description();
    let item = described.pointer("/components/schemas/EmailItem").expect("an item");
    let mail = |kind: &str| {
        json!({"raw_text": "x", "html": "<p>x", "from": "a@b.co", "subject": "s", "metadata": {}, "content_type": kind,
            "source": {"message_id": "<a@b>"}})
    };
    // A field that one of the two kinds does not need is not required.
    let without = |names: &[&str]| {
        ["newsletter", "correspondence_thread"].into_iter().any(|kind| {
            let mut body = mail(kind).as_object().expect("an object").clone();
            names.iter().for_each(|name| drop(body.remove(*name)));
            normalize_email(&body).is_ok()
        })
    };
    let known: BTreeSet<_> = mail("newsletter").as_object().expect("an object").keys().cloned().collect();
    let documented = item["properties"].as_object().expect("properties").keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(known, documented);
    let required: Vec<_> = known.iter().filter(|name| !without(&[name.as_str()])).collect();
    assert_eq!(json!(required), item["required"]);
    assert_eq!(item["anyOf"], json!([{"required": ["raw_text"]}, {"required": ["html"]}]));
    assert!(!without(&["raw_text", "html"]));
}

#[test]
fn keys_are_formatted_in_one_place() {
    let mut literals = Vec::new();
    for below in ["shared/domain/src", "shared/platform/src", "functions"] {
        for (path, text) in sources(below) {
            if path.ends_with("domain/src/keys.rs") {
                continue;
            }
            for quoted in without_tests(&text).split('"').skip(1).step_by(2) {
                let (word, rest) = quoted.split_once('#').unwrap_or(("", ""));
                if !word.is_empty() && word.chars().all(|letter| letter.is_ascii_uppercase()) && !rest.contains(' ') {
                    literals.push(format!("{}: {quoted}", path.display()));
                }
            }
        }
    }
    assert_eq!(literals, Vec::<String>::new());
}

/// Dependencies that a pure crate must not have.
const IMPURE: &[&str] =
    &["tokio", "aws-", "futures", "async-", "getrandom", "rand", "fastrand", "chrono", "reqwest", "hyper", "lambda"];

#[test]
fn the_domain_depends_on_no_async_random_or_clock_crate() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .current_dir(workspace_root())
        .args([
            "tree",
            "--offline",
            "--package",
            "umavez-domain",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p} {f}",
        ])
        .output()
        .expect("cargo tree");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).expect("text");
    assert!(tree.contains("umavez-domain"));
    for line in tree.lines() {
        let (name, features) = line.split_once(' ').unwrap_or((line, ""));
        assert!(!IMPURE.iter().any(|word| name.starts_with(word)), "the domain depends on {name}");
        // The clock of `time` is in its `std`; randomness of `uuid` is in its `v4` and `v7`.
        let impure = |feature: &str| match name {
            "time" => ["std", "local-offset", "rand"].contains(&feature),
            "uuid" => ["v4", "v7", "rng"].contains(&feature),
            _ => false,
        };
        let features = features.rsplit(' ').next().unwrap_or_default();
        assert!(!features.split(',').any(impure), "the domain's {name} has {features}");
    }
}

#[test]
fn the_domain_reads_no_clock_and_no_environment() {
    for (path, text) in sources("shared/domain/src") {
        for word in ["SystemTime", "Instant", "std::env", "std::fs", "std::net", "async fn", "now_utc", "new_v4"] {
            assert!(!without_tests(&text).contains(word), "{}: {word}", path.display());
        }
    }
}

/// Names of SES that contain one of our words.
const OF_AWS: &[&str] = &["SuppressionOptions", "\"Suppressed\"", "suppressionlist", "suppression list"];

#[test]
fn the_local_stack_contains_no_business_word() {
    for (path, text) in sources("infra/local/src") {
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        for word in ["intent", "mailing", "downsell", "conversation", "campaign", "suppress", "ingest", "offer", "pix"]
        {
            let own = OF_AWS.iter().fold(without_tests(&text).to_owned(), |text, name| text.replace(name, ""));
            let found = own.to_lowercase().contains(word);
            assert!(is_test || !found, "{}: {word}", path.display());
        }
    }
}

#[test]
fn the_functions_and_the_platform_do_not_know_the_local_stack() {
    for below in ["shared", "functions"] {
        for (path, text) in sources(below) {
            assert!(!text.contains("umavez_local") && !text.contains("_local/"), "{}", path.display());
        }
    }
}

#[test]
fn versions_are_set_in_one_place() {
    let root = workspace_root();
    let mut members: Vec<_> =
        ["shared/domain", "shared/platform", "infra/local", "infra/simulator", "tests", "tests/probe"]
            .iter()
            .map(|path| root.join(path))
            .collect();
    members.extend(fs::read_dir(root.join("functions")).expect("functions").flatten().map(|entry| entry.path()));
    for member in members {
        let manifest = fs::read_to_string(member.join("Cargo.toml")).expect("a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        for line in dependencies.lines().filter(|line| !line.is_empty() && !line.starts_with('[')) {
            assert!(line.ends_with(".workspace = true"), "{}: {line}", member.display());
        }
    }
}
