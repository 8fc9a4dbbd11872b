//! A copy of the workspace whose crates have all their mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::defects::DEFECTS;
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

/// Which mutants a tree has.
#[derive(Debug, Clone, Copy)]
pub enum Which<'a> {
    /// All of the files whose path contains one of these texts.
    Small(&'a [String]),
    /// Those that were written by hand.
    Defects,
}

impl Tree {
    /// Copies the workspace with mutants. Lines that are left out have none.
    pub fn make(from: &Path, to: &Path, which: Which<'_>, left_out: &BTreeMap<PathBuf, BTreeSet<usize>>) -> Self {
        let (mut mutants, none) = (BTreeMap::new(), BTreeSet::new());
        for file in tracked(from) {
            let Ok(bytes) = fs::read(from.join(&file)) else { continue };
            let path = file.to_string_lossy();
            let bytes = match which.is_in(&path) {
                true => {
                    let source = String::from_utf8(bytes).expect("Rust is UTF-8");
                    let next = mutants.last_key_value().map_or(1, |(last, _)| last + 1);
                    let (text, found) = match which {
                        Which::Small(_) => mutate(&source, next, left_out.get(&file).unwrap_or(&none)),
                        Which::Defects => with_defects(&path, source),
                    };
                    let placed = found.into_iter().map(|mutant| Placed { file: file.clone(), mutant });
                    mutants.extend(placed.map(|placed| (placed.mutant.number, placed)));
                    text.into_bytes()
                }
                false => bytes,
            };
            write(&to.join(&file), if which.has_switches(&path) { with_switches(bytes) } else { bytes });
        }
        Self { root: to.to_owned(), mutants }
    }
}

impl Which<'_> {
    /// Returns whether a file has mutants.
    fn is_in(self, path: &str) -> bool {
        match self {
            Self::Small(files) => in_scope(path) && (files.is_empty() || files.iter().any(|part| path.contains(part))),
            Self::Defects => DEFECTS.iter().any(|defect| defect.file == path),
        }
    }

    /// Returns whether a file is the root of a crate that has mutants.
    fn has_switches(self, path: &str) -> bool {
        let Some(of) = path.strip_suffix("src/lib.rs") else { return false };
        match self {
            Self::Small(_) => SCOPE.iter().any(|(scope, _)| of.trim_end_matches('/') == *scope),
            Self::Defects => DEFECTS.iter().any(|defect| defect.file.starts_with(of)),
        }
    }
}

fn in_scope(path: &str) -> bool {
    path.ends_with(".rs")
        && !path.ends_with("/tests.rs")
        && SCOPE
            .iter()
            .any(|(of, parts)| parts.iter().any(|part| Path::new(path).starts_with(Path::new(of).join(part))))
}

/// Puts the defects of a file into its source. Their numbers are their places in the list.
fn with_defects(path: &str, source: String) -> (String, Vec<Mutant>) {
    let (mut text, mut mutants) = (source, Vec::new());
    let own = (1..).zip(DEFECTS).filter(|(_, defect)| defect.file == path);
    for (number, defect) in own {
        assert_eq!(text.matches(defect.text).count(), 1, "the text of a defect occurs once: {}", defect.name);
        let at = text.find(defect.text).expect("it occurs");
        let line = text[..at].lines().count().max(1);
        let (switch, instead) = (format!("crate::mutant::on({number})"), defect.instead);
        let switched = format!("if {switch} {{ {instead} }} else {{ {} }}", defect.text);
        let switched = if defect.text.ends_with(';') { switched } else { format!("({switched})") };
        text = text.replacen(defect.text, &switched, 1);
        mutants.push(Mutant { number, line, function: String::new(), change: defect.name.to_owned() });
    }
    (text, mutants)
}

/// Adds the switches to the root of a crate that has mutants.
fn with_switches(bytes: Vec<u8>) -> Vec<u8> {
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
