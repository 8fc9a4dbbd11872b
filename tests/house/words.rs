//! Plain words in the documentation, in comments and in the names of tests.

use std::path::Path;

use regex_lite::Regex;
use umavez_local::binaries::workspace_root;
use umavez_tests::docs::{pages, prose};

use crate::docs::{name, read};
use crate::{files, sources};

/// Words that a reader has to decode, and what to write instead.
const WORDS_TO_AVOID: &[(&str, &str)] = &[
    ("whoever", "name the person or the program"),
    ("somebody", "name the person or the program"),
    ("nobody", "say what does not happen"),
    ("told", "say who reports what: logged, returned, sent, answered"),
    ("tells of", "reports"),
    ("the truth", "say what is answered, and when that holds"),
    ("what came of", "the outcome of"),
    ("what became of", "the outcome of"),
    ("how it stands", "its state"),
    ("stands still", "stops, or is not polled"),
    ("so that they meet", "so that they conflict"),
    ("swallowed", "ignored, lost or deduplicated"),
    ("passed over", "ignored or skipped"),
    ("looked for", "checked by recovery"),
    ("given back", "released"),
    ("gives back", "releases"),
    ("for want of", "because there is no"),
    ("in the dark", "unknown"),
];

/// The folders with sources and manifests.
const FOLDERS: &[&str] = &["shared", "functions", "infra", "tests"];

/// Finds the words to avoid.
struct Finder(Regex);

impl Finder {
    fn new() -> Self {
        let words: Vec<_> = WORDS_TO_AVOID.iter().map(|(word, _)| *word).collect();
        Self(Regex::new(&format!(r"\b({})\b", words.join("|"))).expect("a pattern"))
    }

    /// Returns a complaint for every word to avoid in a text.
    fn complaints(&self, place: &str, text: &str) -> Vec<String> {
        let text = text.to_lowercase();
        let complaint = |word: &str| {
            let instead = WORDS_TO_AVOID.iter().find(|(known, _)| *known == word).map_or("", |(_, instead)| *instead);
            format!("{place}: {word:?}; {instead}")
        };
        self.0.find_iter(&text).map(|found| complaint(found.as_str())).collect()
    }

    /// Returns the complaints about the comments of a file, which are the lines that begin with
    /// `mark`.
    fn complaints_about_comments(&self, path: &Path, text: &str, mark: &str) -> Vec<String> {
        let lines = text.lines().map(str::trim_start).enumerate();
        let comments = lines.filter(|(_, line)| line.starts_with(mark));
        comments.flat_map(|(at, line)| self.complaints(&format!("{}:{}", name(path), at + 1), line)).collect()
    }
}

#[test]
fn the_docs_are_in_plain_words() {
    let finder = Finder::new();
    let mut found = Vec::new();
    for page in pages() {
        for (number, line) in prose(&read(&page)) {
            found.extend(finder.complaints(&format!("{}:{number}", name(&page)), line));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn comments_are_in_plain_words() {
    let finder = Finder::new();
    let mut found = Vec::new();
    for below in FOLDERS {
        for (path, text) in sources(below) {
            found.extend(finder.complaints_about_comments(&path, &text, "//"));
        }
        for (path, text) in files(below, &["yaml", "toml"]) {
            found.extend(finder.complaints_about_comments(&path, &text, "#"));
        }
    }
    for file in ["template.yaml", "samconfig.toml", "Cargo.toml"] {
        let path = workspace_root().join(file);
        found.extend(finder.complaints_about_comments(&path, &read(&path), "#"));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn names_of_tests_are_in_plain_words() {
    let finder = Finder::new();
    let test = Regex::new(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)").expect("a pattern");
    let (mut found, mut tests) = (Vec::new(), 0);
    for (path, text) in FOLDERS.iter().flat_map(|below| sources(below)) {
        for named in test.captures_iter(&text) {
            tests += 1;
            found.extend(finder.complaints(&format!("{}: {}", name(&path), &named[1]), &named[1].replace('_', " ")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(tests > 500, "the pattern finds only {tests} tests");
}

#[test]
fn a_word_to_avoid_is_found_in_a_comment_and_not_in_code() {
    let source = "let told = 1;\n    // Somebody waits.\n    // It was TOLD late.\n";
    let found = Finder::new().complaints_about_comments(&workspace_root().join("a.rs"), source, "//");
    let expected =
        ["a.rs:2: \"somebody\"; name the person", "a.rs:3: \"told\"; say who reports what"].map(str::to_owned);
    assert!(
        found.len() == 2 && found.iter().zip(&expected).all(|(found, start)| found.starts_with(start)),
        "{found:?}"
    );
}
