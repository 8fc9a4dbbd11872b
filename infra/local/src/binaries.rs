//! The functions' binaries: built by cargo beside the program that runs them, and found there.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::StackError;
use crate::model::Model;

/// The root of the workspace that this program was built from.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Where cargo puts binaries: beside this program, or above `deps` when this is a test.
pub fn directory() -> Result<PathBuf, StackError> {
    let program = std::env::current_exe()?;
    let beside = program.parent().unwrap_or(Path::new(".")).to_owned();
    match beside.parent() {
        Some(above) if beside.ends_with("deps") => Ok(above.to_owned()),
        _ => Ok(beside),
    }
}

/// Builds every binary of the workspace with the profile of this program, so that what runs is what
/// the source says. Does nothing if the launcher has just built them. `quiet` shows nothing unless
/// it fails.
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
    // Features are set in one place for the whole workspace, so this selection compiles no
    // dependency a second time.
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

/// Every function of the template has its binary.
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
