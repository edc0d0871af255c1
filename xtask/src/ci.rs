//! `cargo xtask ci`: what every change must pass, by way of `.ci/run`.
//!
//! The script is the one list of steps, so that a person and the CI machine run the same.

use anyhow::Context;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `.ci/run` in `root`; `Ok(false)` when a step of it failed.
pub fn run(root: &Path) -> anyhow::Result<bool> {
    let status = Command::new("bash")
        .arg(".ci/run")
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .context("cannot run bash .ci/run")?;
    Ok(status.success())
}
