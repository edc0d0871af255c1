//! `cargo xtask ci`: runs `.ci/run`, the checks that every change must pass.
//!
//! The script is the only list of steps, so that a developer and the CI machine run the same ones.

use anyhow::Context;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `.ci/run` in `root`; returns `Ok(false)` if a step failed.
pub fn run(root: &Path) -> anyhow::Result<bool> {
    let status = Command::new("bash")
        .arg(".ci/run")
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .context("cannot run bash .ci/run")?;
    Ok(status.success())
}
