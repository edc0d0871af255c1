//! Locks that a process above this one holds for it.
//!
//! Owns [`is_held_above`]. systemd-repart locks a device while its child formats it, and scripts
//! use flock(1) so. Such a lock keeps others away, and is no conflict for the child.
//!
//! **Invariant**: only locks of processes above this one count. A lock that this process holds
//! itself conflicts as ever, and so do QEMU's locks, which Papilio holds besides.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most processes above this one.
const DEPTH: usize = 64;

/// Returns whether the `flock` lock that conflicts on a file is one of a process above this one.
/// Hosts without `/proc` have no answer: no.
pub(crate) fn is_held_above(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let place = (metadata.dev(), metadata.ino());
    let mut process = std::process::id();
    for _ in 0..DEPTH {
        let Some(parent) = parent_of(process).filter(|parent| *parent > 0) else { return false };
        if let Some(exclusive) = lock_of(parent, place) {
            // With a shared lock, there may be others.
            return exclusive || locks_of_all(metadata.ino()) == 1;
        }
        process = parent;
    }
    false
}

/// Reads the parent of a process.
fn parent_of(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain anything.
    status.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns whether a process has a lock on the file at `place`, and whether it is exclusive.
fn lock_of(process: u32, place: (u64, u64)) -> Option<bool> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    for entry in fs::read_dir(folder.join("fd")).ok()?.flatten() {
        let is_same = |path: &Path| fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == place);
        if !is_same(&entry.path()) {
            continue;
        }
        let info = fs::read_to_string(folder.join("fdinfo").join(entry.file_name())).unwrap_or_default();
        // `lock: 1: FLOCK  ADVISORY  WRITE 123 08:01:456 0 EOF`
        for line in info.lines().filter(|line| line.starts_with("lock:")) {
            let fields: Vec<_> = line.split_ascii_whitespace().collect();
            if fields.get(2) == Some(&"FLOCK") {
                return Some(fields.get(4) == Some(&"WRITE"));
            }
        }
    }
    None
}

/// Counts the `flock` locks on files with an inode number.
fn locks_of_all(inode: u64) -> usize {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let is_on = |line: &&str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let ends = |field: &&str| field.rsplit(':').next() == Some(&*inode.to_string());
        fields.get(1) == Some(&"FLOCK") && fields.get(5).is_some_and(ends)
    };
    locks.lines().filter(is_on).count()
}
