//! The pages of the documentation.

use std::path::{Path, PathBuf};

use umavez_local::binaries::workspace_root;

/// Returns the pages at the root of the repository and every page under `docs` and `.github`.
pub fn pages() -> Vec<PathBuf> {
    fn walk(folder: &Path, deep: bool, into: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && deep {
                walk(&path, deep, into);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                into.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&workspace_root(), false, &mut found);
    walk(&workspace_root().join("docs"), true, &mut found);
    walk(&workspace_root().join(".github"), true, &mut found);
    found.sort();
    found
}

/// Returns the lines of a page that are not in a block of code, with their numbers.
pub fn prose(page: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut found = Vec::new();
    for (number, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            found.push((number + 1, line));
        }
    }
    found
}
