//! Copies of programs that tests run.

use std::io;
use std::path::Path;
use std::process::Command;

/// Copies a program to a new file, to be run from there.
///
/// Another process does it. If this one had the copy open for writing, a child that another thread
/// forks meanwhile would hold the descriptor until its exec, and running the copy could fail with
/// ETXTBSY.
///
/// # Errors
/// `cp` cannot be run or fails.
pub fn copy_program(from: &Path, to: &Path) -> io::Result<()> {
    let status = Command::new("cp").arg("--").args([from, to]).status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("cp {} {}: {status}", from.display(), to.display())))
}
