//! What the launcher and the local stack share: both call cargo.

use std::ffi::OsString;

/// Returns the variables that cargo sets for a program that it runs or tests. A program that calls
/// cargo removes them from the call: cargo would take them for its own, and build scripts that look
/// at them would run again, with all that depends on them.
pub fn cargo_variables() -> impl Iterator<Item = OsString> {
    const EXACT: &[&str] = &["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_MANIFEST_LINKS", "CARGO_CRATE_NAME"];
    const BEGIN: &[&str] = &["CARGO_PKG_", "CARGO_BIN_", "CARGO_PRIMARY_", "CARGO_TARGET_TMPDIR", "OUT_DIR"];
    std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let text = name.to_string_lossy();
        EXACT.contains(&&*text) || BEGIN.iter().any(|begin| text.starts_with(begin))
    })
}
