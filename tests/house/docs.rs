//! Checks of the documentation: links work, lines are short, and tables that repeat the code or the
//! template are up to date. `words` checks its words.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use regex_lite::Regex;
use serde_yaml_ng::Value;
use umavez_local::binaries::workspace_root;
use umavez_tests::docs::{pages, prose};
use umavez_tests::template;

const WIDTH: usize = 100;

pub fn name(page: &Path) -> String {
    page.strip_prefix(workspace_root()).expect("below the root").display().to_string()
}

pub fn read(page: &Path) -> String {
    fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// Returns the anchors of a page's headings, as GitHub generates them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(page) {
        let Some(heading) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim()) else { continue };
        let letters = heading.to_lowercase();
        let kept = letters.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        let anchor: String = kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}")).find(|again| !found.contains(again));
        if !found.insert(anchor) {
            found.extend(again);
        }
    }
    found
}

#[test]
fn no_link_in_the_docs_is_broken() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").expect("a pattern");
    let code = Regex::new("`[^`]*`").expect("a pattern");
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for (number, line) in prose(&text) {
            for found in link.captures_iter(&code.replace_all(line, "")) {
                let target = &found[1];
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (path, anchor) = target.split_once('#').map_or((target, None), |(path, a)| (path, Some(a)));
                let file = if path.is_empty() { page.clone() } else { page.parent().expect("a folder").join(path) };
                let is_there = file.exists() && anchor.is_none_or(|anchor| anchors(&read(&file)).contains(anchor));
                if !is_there {
                    broken.push(format!("{}:{number}: {target}", name(&page)));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_of_the_docs_is_in_the_index() {
    let index = read(&workspace_root().join("docs/README.md"));
    let docs = workspace_root().join("docs");
    for page in pages().into_iter().filter(|page| page.starts_with(&docs)) {
        let path = page.strip_prefix(&docs).expect("below docs").display().to_string();
        let is_listed = path == "README.md" || path.starts_with("decisions/0") || index.contains(&format!("({path})"));
        assert!(is_listed, "docs/README.md has no link to {path}");
    }
}

#[test]
fn lines_of_the_docs_are_at_most_a_hundred_columns_wide() {
    let mut wide = Vec::new();
    for page in pages() {
        for (number, line) in prose(&read(&page)) {
            // A row of a table and a line without spaces cannot be wrapped.
            let is_one_piece = line.trim_start().starts_with('|') || !line.trim().contains(' ');
            if line.chars().count() > WIDTH && !is_one_piece {
                wide.push(format!("{}:{number}", name(&page)));
            }
        }
    }
    assert!(wide.is_empty(), "wider than {WIDTH} columns: {}", wide.join(", "));
}

/// Compares a page with the text generated from the code, or writes it if `UMAVEZ_UPDATE_DOCS` is
/// set.
pub fn is_generated(path: &str, expected: &str) {
    let file = workspace_root().join(path);
    if std::env::var_os("UMAVEZ_UPDATE_DOCS").is_some() {
        fs::write(&file, expected).expect("written");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{path} is out of date: run UMAVEZ_UPDATE_DOCS=1 cargo test --test house docs");
}

#[test]
fn the_docs_list_the_parameters_of_the_template() {
    let template: Value = serde_yaml_ng::from_str(&template()).expect("the template");
    let parameters = template["Parameters"].as_mapping().expect("parameters");
    let mut page = "# Parameters\n\n\
        The parameters of `template.yaml`. Set them with `sam deploy --parameter-overrides Name=Value`,\n\
        or on your machine with `cargo run -- --parameter Name=Value`. This page is generated\nfrom the template.\n\n\
        | parameter | default | allowed | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for (parameter, about) in parameters {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => serde_yaml_ng::to_string(other).expect("a value").trim().to_owned(),
        };
        let field = |name: &str| about.get(name).map(&text);
        let values = about.get("AllowedValues").and_then(Value::as_sequence);
        let values =
            values.map(|values| values.iter().map(|value| format!("`{}`", text(value))).collect::<Vec<_>>().join(", "));
        let range = match (field("MinValue"), field("MaxValue")) {
            (Some(least), Some(most)) => Some(format!("{least} to {most}")),
            (Some(least), None) => Some(format!("at least {least}")),
            (None, Some(most)) => Some(format!("at most {most}")),
            (None, None) => None,
        };
        let allowed = values.or(range).or_else(|| field("ConstraintDescription")).unwrap_or_default();
        let default = field("Default").filter(|default| !default.is_empty());
        let default = default.map_or("none".to_owned(), |default| format!("`{default}`"));
        let parameter = text(parameter);
        let meaning = field("Description").unwrap_or_else(|| panic!("{parameter} has no description"));
        writeln!(page, "| `{parameter}` | {default} | {allowed} | {meaning} |").expect("written");
    }
    is_generated("docs/reference/parameters.md", &page);
}

/// The text of a message can contain quotes and line breaks. A template that puts it between quotes
/// makes invalid JSON.
#[test]
fn the_n8n_recipes_build_json_with_a_function() {
    let page = read(&workspace_root().join("docs/guides/ingest-n8n.md"));
    assert!(!page.contains("\"{{ $json") && !page.contains("\"{{$json"), "a template has a value between quotes");
    let fields = ["$json.message.text", "$json.message.chat.id", "$json.message.message_id", "$json.message.date"];
    for line in page.lines().filter(|line| fields.iter().any(|field| line.contains(field))) {
        let line = line.trim();
        assert!(line.starts_with("{{ JSON.stringify({ ") && line.ends_with(" }) }}"), "{line}");
        // n8n takes the first `}}` as the end.
        assert_eq!(line.matches("}}").count(), 1, "{line}");
    }
    assert!(page.contains("to: String($json.message.chat.id)"));
}
