//! Programs that pretend to be root to those that they start.
//!
//! Owns [`refuse`]. fakeroot and pseudo keep owners and device files in a process of their own, and
//! answer the C library's `stat` with them. Papilio asks the kernel, which knows nothing of these.

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
pub fn refuse(directory: &Path) -> anyhow::Result<()> {
    let Some(program) = program() else { return Ok(()) };
    anyhow::bail!(
        "{}: owners and device files of {program} cannot be seen here: pack the directory with `tar` \
         under {program} and name the archive, or use `unshare -r` in place of {program}",
        directory.display()
    )
}
