//! The reference pages that are written by hand agree with the code: scopes, routes, and what the
//! stack prints when it is ready.

use std::collections::BTreeSet;

use regex_lite::Regex;
use umavez_domain::access::SCOPES;
use umavez_local::binaries::workspace_root;
use umavez_local::greeting::ready;
use umavez_platform::http::Access;
use umavez_tests::docs::pages;

use crate::docs::{name, read};
use crate::routes;

fn page(path: &str) -> String {
    read(&workspace_root().join(path))
}

/// Returns the part of a page below a heading, up to the next heading of that level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, below) = page.split_once(&format!("\n## {heading}")).unwrap_or_else(|| panic!("no heading {heading}"));
    below.split("\n## ").next().unwrap_or_default()
}

/// Returns the rows of the tables of a text, without their heads, as cells.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<_> = text.lines().collect();
    let is_in_body =
        |at: usize| lines[at].starts_with("| ") && !lines.get(at + 1).is_some_and(|next| next.starts_with("|--"));
    let bodies = (0..lines.len()).filter(|at| is_in_body(*at));
    bodies.map(|at| lines[at].trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Returns the words in backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_docs_list_exactly_the_scopes_that_exist() {
    let page = page("docs/reference/scopes.md");
    let listed: Vec<_> = rows(section(&page, "All scopes")).iter().flat_map(|row| quoted(row[0])).collect();
    let known: BTreeSet<_> = SCOPES.iter().map(|scope| (*scope).to_owned()).collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), known);
    assert_eq!(listed.len(), known.len(), "a scope is listed twice");
}

/// Returns the routes of the tables of a page, each with the cell of its scope.
fn listed_routes(page: &str) -> Vec<(String, String)> {
    let route = Regex::new(r"^((?:GET|POST|PUT|PATCH|DELETE) /[^\s?`…]*)(?:\?[^\s`]*)?$").expect("a pattern");
    let mut found = Vec::new();
    for row in page.split("\n## Routes").skip(1).flat_map(rows) {
        for word in quoted(row[0]) {
            let named = route.captures(&word).unwrap_or_else(|| panic!("{word} is not a method and a full path"));
            let scope = if row.len() > 2 { row[1] } else { "none" };
            found.push((named[1].to_owned(), scope.to_owned()));
        }
    }
    found
}

#[test]
fn the_docs_list_the_routes_of_the_api_with_their_scopes() {
    let page = page("docs/reference/api.md");
    let listed = listed_routes(&page);
    let described = umavez_tests::contract::description()["paths"].as_object().expect("paths");
    let operations = described.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods").keys();
        methods.filter(|name| *name != "parameters").map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    let known: BTreeSet<_> = operations.collect();
    assert_eq!(listed.iter().map(|(route, _)| route.clone()).collect::<BTreeSet<_>>(), known);
    assert_eq!(listed.len(), known.len(), "a route is listed twice");
    for route in routes().into_iter().flat_map(|(_, routes)| routes) {
        let Some((_, scope)) = listed.iter().find(|(listed, _)| listed == route.key) else { continue };
        let is_right = match route.access {
            Access::Scope(needed) => *scope == format!("`{}`", needed.0),
            Access::Public => scope.starts_with("none"),
        };
        assert!(is_right, "{} has the scope {scope} in docs/reference/api.md, but {:?}", route.key, route.access);
    }
}

#[test]
fn rows_and_routes_are_read_from_tables() {
    let page = "\n## Routes: a\n\n| route | scope | about |\n|---|---|---|\n| `GET /a?x=\\|y=`, `PUT /a/{id}` | `s` | c |\n\
        \n## Routes: b\n\n| route | about |\n|---|---|\n| `GET /` | d |\n";
    let found = listed_routes(page);
    let found: Vec<_> = found.iter().map(|(route, scope)| (route.as_str(), scope.as_str())).collect();
    assert_eq!(found, [("GET /a", "`s`"), ("PUT /a/{id}", "`s`"), ("GET /", "none")]);
}

#[test]
fn the_docs_show_what_the_stack_prints_when_it_is_ready() {
    let printed = ready("http://127.0.0.1:3000", "local");
    let mut shown = BTreeSet::new();
    for path in pages() {
        let text = read(&path);
        for block in text.split("\n```text\n").skip(1).filter(|block| block.starts_with("ready ")) {
            let block = block.split("```").next().unwrap_or_default();
            assert_eq!(block.trim_end(), printed.trim_end(), "{}", name(&path));
            shown.insert(name(&path));
        }
    }
    assert_eq!(shown, ["docs/reference/cli.md", "docs/start/quickstart.md"].map(str::to_owned).into());
}

/// Editors accept comments and trailing commas in this file, but other tools do not.
#[test]
fn the_description_of_the_development_container_is_json() {
    let text = page(".devcontainer/devcontainer.json");
    let described: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
    assert!(described["image"].is_string());
}
