//! Processes that are about to release their devices.
//!
//! Owns [`announce_ending`] and [`is_ending`]. umount(8) without a helper returns when the kernel
//! has ended a mount, and its server commits afterwards. The command that a script runs next waits
//! for that end instead of failing.
//!
//! **Invariant**: the name of a process is a hint for the length of a wait, and nothing else.

use crate::lock_owner::lockers_of;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name that such a process has in `/proc/PID/comm`.
const NAME: &str = "papilio-ending";

/// Says to other processes that this one releases its devices soon. Does nothing on hosts without
/// `/proc`, and in programs that are not Papilio's command.
pub fn announce_ending() {
    let program = std::env::current_exe().ok();
    let name = program.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    if name.is_some_and(|name| name.starts_with("papilio")) {
        let _ = fs::write("/proc/self/comm", NAME);
    }
}

/// Returns whether a process that has a lock on a file has announced its end.
pub(crate) fn is_ending(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    lockers_of(metadata.ino()).iter().any(|process| {
        fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim() == NAME)
    })
}
