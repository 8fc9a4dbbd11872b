//! Mutation testing: changes the product in thousands of small ways, and counts which changes no
//! test, model or play of the simulator notices. `docs/testing/mutants.md` explains the results.

mod accepted;
mod hunt;
mod mutate;
mod programs;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::tree::Tree;

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
    /// List the mutants, and try none
    #[arg(long)]
    list: bool,
    /// Write what every mutant came to, one line each, to this file
    #[arg(long, value_name = "FILE")]
    report: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let to = root.join("target/mutated");
    let mut left_out = BTreeMap::new();
    let (tree, mut programs) = loop {
        let tree = Tree::make(root, &to, &arguments.files, &left_out);
        if arguments.list {
            for placed in tree.mutants.values() {
                println!("{placed}");
            }
            return ExitCode::SUCCESS;
        }
        match programs::build(&tree) {
            Ok(programs) => break (tree, programs),
            Err(refused) => {
                let lines: usize = refused.values().map(|lines| lines.len()).sum();
                eprintln!("{lines} lines with mutants do not compile; they are left out");
                for (file, lines) in refused {
                    left_out.entry(file).or_default().extend(lines);
                }
            }
        }
    };
    let list = to.join("target/reached");
    programs::measure(&mut programs, &list);
    programs.retain(|program| program.takes.as_secs() <= arguments.longest);
    let chosen = |number: &u32| hunt::is_chosen(*number, arguments.one_in, arguments.part);
    let numbers: Vec<_> = tree.mutants.keys().copied().filter(chosen).collect();
    let found = hunt::hunt(&tree, &programs, &numbers);
    hunt::report(&tree, &found, &accepted::read(root), arguments.report.as_deref())
}
