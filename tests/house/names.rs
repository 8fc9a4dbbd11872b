//! Names in the documentation exist: events, metrics, parameters, environment variables, states and
//! codes. A page that keeps the old name after a rename fails here.

use std::collections::BTreeSet;
use std::path::Path;

use regex_lite::Regex;
use umavez_local::binaries::workspace_root;
use umavez_tests::docs::{pages, prose};

use crate::docs::{name, read};
use crate::files;

/// Names that are not ours, or no name at all.
const OF_OTHERS: &[&str] = &[
    // An action of an update in DynamoDB.
    "ADD",
    // The argument of `--data`.
    "DIR",
    // A kind of change set in CloudFormation.
    "IMPORT",
    // The answer of `GetSendQuota` in SES.
    "MaxSendRate",
    // The form of the name of a metric.
    "PascalCase",
    // A file of a release.
    "SHA256SUMS",
];

/// Returns the words in a source, without the lines that are comments. A word consists of letters,
/// digits and `_`.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let lines =
        text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.trim_start().starts_with("# "));
    lines.flat_map(|line| line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_'))
}

/// The checks that quote the documentation.
const QUOTING: &[&str] = &["tests/house/codes.rs", "tests/house/names.rs"];

/// Returns all words in the sources, manifests and templates.
fn known_words() -> BTreeSet<String> {
    let extensions = ["rs", "yaml", "json", "py", "html"];
    let below = ["shared", "functions", "infra", "tests"].into_iter().flat_map(|below| files(below, &extensions));
    let mut known = BTreeSet::new();
    for (_, text) in below.filter(|(path, _)| !QUOTING.contains(&name(path).as_str())) {
        known.extend(words_of(&text).map(str::to_owned));
    }
    for file in ["template.yaml", ".ci/run", "infra/independent-check"] {
        known.extend(words_of(&read(&workspace_root().join(file))).map(str::to_owned));
    }
    known
}

/// Returns the names in the backticks of a line that must exist: a word of capitals if it has a `_`
/// or is alone, and a word of several capitalized parts if it is alone or before a `=`.
fn names(line: &str) -> Vec<String> {
    let capitals = Regex::new(r"^[A-Z][A-Z0-9]{2,}$").expect("a pattern");
    let snake = Regex::new(r"^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$").expect("a pattern");
    let pascal = Regex::new(r"^([A-Z][a-z0-9]+([A-Z][a-z0-9]*)+)(=.*)?$").expect("a pattern");
    let mut found = Vec::new();
    for quoted in line.split('`').skip(1).step_by(2).filter(|quoted| !quoted.contains(".md")) {
        let words = quoted.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        found.extend(words.filter(|word| snake.is_match(word)).map(str::to_owned));
        found.extend(capitals.is_match(quoted).then(|| quoted.to_owned()));
        found.extend(pascal.captures(quoted).map(|word| word[1].to_owned()));
    }
    found
}

#[test]
fn every_name_in_the_docs_exists() {
    let known = known_words();
    let mut unknown = Vec::new();
    let mut compared = 0;
    // The changelog also has the names of earlier versions.
    for page in pages().into_iter().filter(|page| !page.ends_with(Path::new("CHANGELOG.md"))) {
        for (number, line) in prose(&read(&page)) {
            for word in names(line) {
                compared += 1;
                if !known.contains(&word) && !OF_OTHERS.contains(&word.as_str()) {
                    unknown.push(format!("{}:{number}: {word}", name(&page)));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "not in the sources:\n{}", unknown.join("\n"));
    assert!(compared > 400, "only {compared} names were found");
}

#[test]
fn names_are_found_in_backticks() {
    let line = "`A_B` and `QUEUED`, X_Y, `LogLevel=INFO`, `GET /a`, `run C_D --all`, `PIX.md`, `Html`, `FooBar`, `AB`";
    assert_eq!(names(line), ["A_B", "QUEUED", "LogLevel", "C_D", "FooBar"]);
}

#[test]
fn comments_are_not_names() {
    assert_eq!(
        words_of("// OLD\nlet a = \"NEW\";\n# OLD\n").filter(|word| word.len() == 3).collect::<Vec<_>>(),
        ["let", "NEW"]
    );
}
