//! A copy of the workspace whose crates have all their mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mutate::{Mutant, mutate};

/// What has mutants: the crate, and the files or folders in it that decide something. Calls to AWS,
/// HTTP, start-up and telemetry have tests of their own kind.
const SCOPE: &[(&str, &[&str])] = &[
    ("shared/domain", &["src"]),
    (
        "shared/platform",
        &[
            "src/batch",
            "src/conversations",
            "src/delivery",
            "src/downsells",
            "src/due.rs",
            "src/ingest",
            "src/intents",
            "src/intents.rs",
            "src/lease.rs",
            "src/limiter.rs",
            "src/mailings",
            "src/messages",
            "src/outbox.rs",
            "src/store",
            "src/suppressions.rs",
            "src/visibility.rs",
        ],
    ),
];

/// A mutant and its file, relative to the workspace.
#[derive(Debug, Clone)]
pub struct Placed {
    pub file: PathBuf,
    pub mutant: Mutant,
}

pub struct Tree {
    pub root: PathBuf,
    pub mutants: BTreeMap<u32, Placed>,
}

impl Tree {
    /// Copies the workspace, and mutates the files whose path contains one of these texts. Lines
    /// that are left out have no mutants.
    pub fn make(from: &Path, to: &Path, files: &[String], left_out: &BTreeMap<PathBuf, BTreeSet<usize>>) -> Self {
        let mut mutants = BTreeMap::new();
        let (mut next, none) = (1, BTreeSet::new());
        for file in tracked(from) {
            let Ok(bytes) = fs::read(from.join(&file)) else { continue };
            let path = file.to_string_lossy();
            let is_chosen = files.is_empty() || files.iter().any(|part| path.contains(part));
            let bytes = match in_scope(&path) && is_chosen {
                true => {
                    let source = String::from_utf8(bytes).expect("Rust is UTF-8");
                    let (text, found) = mutate(&source, next, left_out.get(&file).unwrap_or(&none));
                    next += u32::try_from(found.len()).expect("fewer mutants");
                    let placed = found.into_iter().map(|mutant| Placed { file: file.clone(), mutant });
                    mutants.extend(placed.map(|placed| (placed.mutant.number, placed)));
                    text.into_bytes()
                }
                false => bytes,
            };
            write(&to.join(&file), with_switches(&path, bytes));
        }
        Self { root: to.to_owned(), mutants }
    }
}

fn in_scope(path: &str) -> bool {
    path.ends_with(".rs")
        && SCOPE
            .iter()
            .any(|(of, parts)| parts.iter().any(|part| Path::new(path).starts_with(Path::new(of).join(part))))
}

/// Adds the switches to the root of a crate that has mutants.
fn with_switches(path: &str, bytes: Vec<u8>) -> Vec<u8> {
    if !SCOPE.iter().any(|(of, _)| path == format!("{of}/src/lib.rs")) {
        return bytes;
    }
    let switches = include_str!("switches.rs");
    [&bytes, format!("\n#[allow(clippy::all, dead_code)]\nmod mutant {{\n{switches}}}\n").as_bytes()].concat()
}

/// Writes a file if it differs, so that cargo builds only what has changed.
fn write(path: &Path, bytes: Vec<u8>) {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
    fs::write(path, bytes).expect("the file is written");
}

/// Returns the files of the workspace that git knows, or would add.
fn tracked(root: &Path) -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .expect("git lists the files");
    String::from_utf8_lossy(&listed.stdout).lines().map(PathBuf::from).collect()
}
