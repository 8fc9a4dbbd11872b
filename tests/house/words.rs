//! Plain words in the documentation, in comments, in descriptions and in the names of tests.

use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;
use serde_yaml_ng::Value;
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
    ("taken for", "mistaken for, or counted as"),
    ("gets no word", "gets no answer, or is not notified"),
    ("and nothing else is", "only"),
    ("nothing else is one", "only"),
    ("mended", "fixed"),
    ("what cannot be", "name the thing: invalid, unreadable or refused"),
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

    /// Returns the complaints about the comments of a file.
    fn complaints_about_comments(&self, path: &Path, text: &str, form: &Comments) -> Vec<String> {
        let comments = form.lines(text).into_iter();
        comments.flat_map(|(at, line)| self.complaints(&format!("{}:{at}", name(path)), line)).collect()
    }

    /// Returns the complaints about the texts under some keys, at any depth.
    fn complaints_about_texts(&self, file: &str, keys: &[&str], value: &Value) -> Vec<String> {
        match value {
            Value::Mapping(fields) => {
                let complaints = |(key, value): (&Value, &Value)| match (key.as_str(), text_of(value)) {
                    (Some(key), Some(text)) if keys.contains(&key) => {
                        let start: String = text.chars().take(40).collect();
                        self.complaints(&format!("{file}: {key}: {start:?}"), text)
                    }
                    _ => self.complaints_about_texts(file, keys, value),
                };
                fields.iter().flat_map(complaints).collect()
            }
            Value::Sequence(items) => {
                items.iter().flat_map(|item| self.complaints_about_texts(file, keys, item)).collect()
            }
            Value::Tagged(tagged) => self.complaints_about_texts(file, keys, &tagged.value),
            _ => Vec::new(),
        }
    }
}

/// Returns a text, also if a tag is before it (`!Sub`).
fn text_of(value: &Value) -> Option<&str> {
    match value {
        Value::Tagged(tagged) => tagged.value.as_str(),
        value => value.as_str(),
    }
}

/// How the comments of a language are written: a line that begins with a mark, or a block whose
/// first line begins with the first text and whose last line has the second.
struct Comments {
    marks: &'static [&'static str],
    blocks: &'static [(&'static str, &'static str)],
}

const RUST: Comments = Comments { marks: &["//"], blocks: &[] };
const HASH: Comments = Comments { marks: &["#"], blocks: &[] };
const PYTHON: Comments = Comments { marks: &["#"], blocks: &[("\"\"\"", "\"\"\"")] };
const PAGE: Comments = Comments { marks: &["//"], blocks: &[("/*", "*/"), ("<!--", "-->")] };

impl Comments {
    /// Returns the lines that belong to comments, with their numbers.
    fn lines<'a>(&self, text: &'a str) -> Vec<(usize, &'a str)> {
        let mut found = Vec::new();
        let mut until: Option<&str> = None;
        for (at, line) in text.lines().map(str::trim_start).enumerate() {
            let block = self.blocks.iter().find(|(from, _)| line.starts_with(from)).filter(|_| until.is_none());
            let rest = block.map_or(line, |(from, _)| &line[from.len()..]);
            until = until.or(block.map(|(_, to)| *to));
            if until.is_some() || self.marks.iter().any(|mark| line.starts_with(mark)) {
                found.push((at + 1, line));
            }
            until = until.filter(|to| !rest.contains(to));
        }
        found
    }
}

/// Returns the shell scripts in a folder and the folders below it: files that end in `.sh`, or have
/// no extension and begin with `#!`.
fn scripts(below: &str) -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
        for path in fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()) {
            match path.extension() {
                _ if path.is_dir() => walk(&path, into),
                Some(extension) if extension == "sh" => into.push((path.clone(), read(&path))),
                None => {
                    let text = String::from_utf8(fs::read(&path).expect("a file")).unwrap_or_default();
                    into.extend(text.starts_with("#!").then_some((path, text)));
                }
                Some(_) => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(&workspace_root().join(below), &mut found);
    found
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
    let forms: [(&[&str], &Comments); 4] =
        [(&["rs"], &RUST), (&["yaml", "toml"], &HASH), (&["py"], &PYTHON), (&["html", "js"], &PAGE)];
    for below in FOLDERS {
        for (extensions, form) in forms {
            for (path, text) in files(below, extensions) {
                found.extend(finder.complaints_about_comments(&path, &text, form));
            }
        }
    }
    let scripts: Vec<_> = [".ci", "infra"].into_iter().flat_map(scripts).collect();
    assert!(scripts.len() > 3, "only {} scripts were found", scripts.len());
    for (path, text) in scripts {
        found.extend(finder.complaints_about_comments(&path, &text, &HASH));
    }
    for file in ["template.yaml", "samconfig.toml", "Cargo.toml", "justfile", "Dockerfile", ".github/workflows/ci.yml"]
    {
        let path = workspace_root().join(file);
        found.extend(finder.complaints_about_comments(&path, &read(&path), &HASH));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn descriptions_are_in_plain_words() {
    let finder = Finder::new();
    let texts =
        [("template.yaml", &["Description", "AlarmDescription"]), ("infra/openapi.yaml", &["summary", "description"])];
    for (file, keys) in texts {
        let value: Value = serde_yaml_ng::from_str(&read(&workspace_root().join(file))).expect("YAML");
        let found = finder.complaints_about_texts(file, keys, &value);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
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
    let found = Finder::new().complaints_about_comments(&workspace_root().join("a.rs"), source, &RUST);
    let expected =
        ["a.rs:2: \"somebody\"; name the person", "a.rs:3: \"told\"; say who reports what"].map(str::to_owned);
    assert!(
        found.len() == 2 && found.iter().zip(&expected).all(|(found, start)| found.starts_with(start)),
        "{found:?}"
    );
}

#[test]
fn comments_are_found_in_pages_and_in_python() {
    let lines = |form: &Comments, text| form.lines(text).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    let page = "<p>\n<!-- a\nb -->\n<b>\n/* c */\nx; /* d */\n  // e\n/*\nf\n*/\ng\n";
    assert_eq!(lines(&PAGE, page), [2, 3, 5, 7, 8, 9, 10]);
    assert_eq!(lines(&PYTHON, "\"\"\"a\nb\"\"\"\nc = 1\n# d\n\"\"\"e\"\"\"\nf\n"), [1, 2, 4, 5]);
}

#[test]
fn a_word_to_avoid_is_found_in_a_description() {
    let template = "A:\n  Description: !Sub 'Somebody ${x}'\n  Name: nobody\nB: [{Description: told}]\n";
    let value: Value = serde_yaml_ng::from_str(template).expect("YAML");
    let found = Finder::new().complaints_about_texts("t", &["Description"], &value);
    assert!(matches!(&found[..], [a, b] if a.contains("somebody") && b.contains("told")), "{found:?}");
}
