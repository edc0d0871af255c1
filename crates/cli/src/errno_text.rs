//! Messages for errnos.

use papilio::{PathError, system_text};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether errors of mounts have the words of the C library: scripts for btrfs-progs look for them.
static SYSTEM_WORDS: AtomicBool = AtomicBool::new(false);

/// Makes errors of mounts have the words of the C library from now on.
pub fn use_system_words() {
    SYSTEM_WORDS.store(true, Ordering::Relaxed);
}

/// Returns the message that commands on images have for the error that `errno` stands for, so that
/// commands on mounts fail with the same text.
pub fn text_of(errno: Errno) -> String {
    if SYSTEM_WORDS.load(Ordering::Relaxed) {
        return system_text(&errno.into());
    }
    let reason = match errno {
        Errno::NOENT => PathError::NotFound,
        Errno::NOTDIR => PathError::NotADirectory,
        Errno::EXIST => PathError::Exists,
        Errno::NOTEMPTY => PathError::NotEmpty,
        Errno::PERM => PathError::NotPermitted,
        Errno::ACCESS => PathError::AccessDenied,
        Errno::NAMETOOLONG => PathError::NameTooLong,
        Errno::BUSY => PathError::Busy,
        Errno::XDEV => return "a snapshot must be in the file system of its source".to_owned(),
        Errno::ROFS => return "the file system or the subvolume is read-only".to_owned(),
        Errno::NOSPC => return "no space left on the file system".to_owned(),
        other => {
            return system_text(&other.into()).to_lowercase();
        }
    };
    reason.to_string()
}
