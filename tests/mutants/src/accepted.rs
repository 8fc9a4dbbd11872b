//! The mutants that nothing notices, each with a reason: `tests/mutants/accepted.txt`.

use std::fs;
use std::path::Path;

use crate::tree::Placed;

/// One line of the list: `file function: change -- reason`. Lines of files move, so none is named.
#[derive(Debug)]
pub struct Accepted {
    what: String,
}

impl Accepted {
    pub fn is(&self, placed: &Placed) -> bool {
        let Placed { file, mutant } = placed;
        self.what == format!("{} {}: {}", file.display(), mutant.function, mutant.change)
    }
}

/// Reads the list.
pub fn read(root: &Path) -> Vec<Accepted> {
    let text = fs::read_to_string(root.join("tests/mutants/accepted.txt")).expect("the list of accepted mutants");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = lines.map(|line| {
        let (what, reason) = line.split_once(" -- ").unwrap_or_else(|| panic!("without a reason: {line}"));
        assert!(!reason.trim().is_empty(), "without a reason: {line}");
        Accepted { what: what.to_owned() }
    });
    read.collect()
}
