//! The binaries of the functions. Cargo builds them into the directory of the running program.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::StackError;
use crate::model::Model;

/// Returns the root of the workspace that this program was built from.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Returns the directory of cargo's binaries: that of this program, or its parent if this is a test
/// in `deps`.
pub fn directory() -> Result<PathBuf, StackError> {
    let program = std::env::current_exe()?;
    let beside = program.parent().unwrap_or(Path::new(".")).to_owned();
    match beside.parent() {
        Some(above) if beside.ends_with("deps") => Ok(above.to_owned()),
        _ => Ok(beside),
    }
}

/// Builds every binary of the workspace with the profile of this program, so that they match the
/// source. Does nothing if the launcher has just built them. With `quiet`, prints nothing unless it
/// fails.
pub async fn build(quiet: bool) -> Result<(), StackError> {
    if std::env::var_os("UMAVEZ_BUILT").is_some() {
        return Ok(());
    }
    build_profile(quiet, if cfg!(debug_assertions) { "dev" } else { "release" }).await
}

pub async fn build_profile(quiet: bool, profile: &str) -> Result<(), StackError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = tokio::process::Command::new(cargo);
    for name in umavez::cargo_variables() {
        command.env_remove(name);
    }
    // Features are set in one place for the whole workspace, so this selection does not compile any
    // dependency twice.
    command.current_dir(workspace_root()).args(["build", "--workspace", "--bins", "--profile", profile]);
    let output = if quiet {
        command.arg("--quiet").stdin(Stdio::null()).output().await?
    } else {
        command.stdin(Stdio::null()).spawn()?.wait_with_output().await?
    };
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    Err(StackError::Build(format!("the functions could not be built\n{printed}")))
}

/// Checks that every function of the template has its binary.
pub fn check(model: &Model, directory: &Path) -> Result<(), StackError> {
    for function in &model.functions {
        if !directory.join(&function.binary).is_file() {
            let (id, binary) = (&function.logical_id, &function.binary);
            return Err(StackError::Build(format!(
                "{id} is in the template, but there is no binary `{binary}` to run"
            )));
        }
    }
    Ok(())
}
