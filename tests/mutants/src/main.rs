//! Mutation testing: changes the product in thousands of small ways, and counts which changes no
//! test, model or play of the simulator notices. `docs/testing/mutants.md` explains the results.

mod accepted;
mod defects;
mod hunt;
mod mutate;
mod programs;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::programs::Kind;
use crate::tree::{Tree, Which};

/// Changes the product in small ways, and counts which changes no test notices
#[derive(Debug, Parser)]
#[command(name = "umavez-mutants", version)]
struct Arguments {
    /// Mutate only files whose path contains one of these texts
    files: Vec<String>,
    /// Try only some mutants: about one in so many
    #[arg(long, default_value_t = 1)]
    one_in: u32,
    /// Which of them: from 0 to one less than --one-in
    #[arg(long, default_value_t = 0)]
    part: u32,
    /// Do not run programs that take longer than this, in seconds
    #[arg(long, default_value_t = 600)]
    longest: u64,
    /// Mutate only the domain, and run only its unit tests and models
    #[arg(long)]
    domain: bool,
    /// Fail if a smaller share of the mutants is caught or accepted, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0)]
    at_least: f64,
    /// Try the defects that were fixed, each put back, and print after how many seeds the
    /// simulator notices each; TEXT selects those whose name contains it
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "", conflicts_with = "files")]
    defects: Option<String>,
    /// How many seeds are played for a defect
    #[arg(long, default_value_t = 10_000)]
    seeds: u32,
    /// List the mutants, and try none
    #[arg(long)]
    list: bool,
    /// Write the result of every mutant, one line each, to this file
    #[arg(long, value_name = "FILE")]
    report: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.domain && arguments.files.is_empty() {
        arguments.files.push("shared/domain/".to_owned());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let to = root.join("target/mutated");
    let (which, kinds): (_, &[Kind]) = match &arguments.defects {
        Some(_) => (Which::Defects, &[Kind::Plays]),
        None if arguments.domain => (Which::Small(&arguments.files), &[Kind::Domain]),
        None => (Which::Small(&arguments.files), &[Kind::Domain, Kind::Platform, Kind::Plays]),
    };
    let mut left_out = BTreeMap::new();
    let (tree, mut programs) = loop {
        let tree = Tree::make(root, &to, which, &left_out);
        if arguments.list {
            for placed in tree.mutants.values() {
                println!("{placed}");
            }
            return ExitCode::SUCCESS;
        }
        match programs::build(&tree, kinds) {
            Ok(programs) => break (tree, programs),
            Err(refused) => {
                let lines: usize = refused.values().map(|lines| lines.len()).sum();
                eprintln!("{lines} lines with mutants do not compile; they are left out");
                assert!(arguments.defects.is_none(), "every defect compiles");
                for (file, lines) in refused {
                    left_out.entry(file).or_default().extend(lines);
                }
            }
        }
    };
    if let Some(part) = &arguments.defects {
        return hunt::defects(&programs, part, arguments.seeds);
    }
    let list = to.join("reached");
    programs::measure(&mut programs, &list, Duration::from_secs(arguments.longest));
    let chosen = |number: &u32| hunt::is_chosen(*number, arguments.one_in, arguments.part);
    let numbers: Vec<_> = tree.mutants.keys().copied().filter(chosen).collect();
    let found = hunt::hunt(&tree, &programs, &numbers);
    hunt::report(&tree, &found, &accepted::read(root), arguments.at_least, arguments.report.as_deref())
}
