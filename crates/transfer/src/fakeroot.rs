//! Programs that pretend to be root to those that they start.
//!
//! Owns [`refuse`] and [`refuse_writing`], which every copy from and to the host asks first.
//! fakeroot and pseudo keep owners and device files in a process of their own, and answer the C
//! library's `stat` with them. Papilio asks the kernel, which knows nothing of these.

use papilio_engine::errors::{Error, Result};
use std::env;
use std::path::Path;

/// Returns the name of the program that this process was started under.
fn program() -> Option<&'static str> {
    let preloaded = env::var_os("LD_PRELOAD").unwrap_or_default();
    let preloaded = preloaded.to_string_lossy();
    if env::var_os("FAKEROOTKEY").is_some() || preloaded.contains("libfakeroot") {
        return Some("fakeroot");
    }
    preloaded.contains("libpseudo").then_some("pseudo")
}

/// Refuses to copy owners and device files of a directory of the host that only such a program
/// knows.
///
/// # Errors
/// The process was started under fakeroot or pseudo.
pub fn refuse(directory: &Path) -> Result<()> {
    let Some(program) = program() else { return Ok(()) };
    Err(Error::Invalid(format!(
        "{}: owners and device files of {program} cannot be seen here: pack the directory with `tar` \
         under {program} and name the archive, or use `unshare -r` in place of {program}",
        directory.display()
    )))
}

/// Refuses to create files of the host whose owners and device files such a program would not see.
///
/// # Errors
/// The process was started under fakeroot or pseudo.
pub fn refuse_writing(directory: &Path) -> Result<()> {
    let Some(program) = program() else { return Ok(()) };
    Err(Error::Invalid(format!(
        "{}: {program} would not see the owners and device files that are created here: write a tar \
         archive and unpack it with `tar` under {program}, or use `unshare -r` in place of {program}",
        directory.display()
    )))
}
