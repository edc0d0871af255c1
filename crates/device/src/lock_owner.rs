//! Locks that the caller of this process holds for it.
//!
//! Owns [`is_held_by_caller`] and [`lockers_of`]. systemd-repart locks a device while its child
//! formats it, and scripts use flock(1) so. Such a lock keeps others away, and is no conflict for
//! the child. After `exec` it belongs to a descriptor that this process inherited.
//!
//! **Invariant**: only locks of processes above this one count, and those of inherited descriptors.
//! A lock of a file that this process opened itself conflicts as ever: such descriptors close on
//! `exec`, and inherited ones do not. So do QEMU's locks, which Papilio holds besides.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most processes above this one.
const DEPTH: usize = 64;

/// `O_CLOEXEC` in the octal `flags:` of `/proc/PID/fdinfo` (proc(5)).
const CLOSES_ON_EXEC: u64 = 0o2_000_000;

/// Returns whether the `flock` lock that conflicts on a file is one of a process above this one, or
/// of a descriptor that this process inherited. Hosts without `/proc` have no answer: no.
pub(crate) fn is_held_by_caller(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let place = (metadata.dev(), metadata.ino());
    // With a shared lock, there may be others.
    let is_only = |exclusive: bool| exclusive || lockers_of(metadata.ino()).len() == 1;
    let mut process = std::process::id();
    if let Some(exclusive) = lock_of(process, place, true) {
        return is_only(exclusive);
    }
    for _ in 0..DEPTH {
        let Some(parent) = parent_of(process).filter(|parent| *parent > 0) else { return false };
        if let Some(exclusive) = lock_of(parent, place, false) {
            return is_only(exclusive);
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

/// Returns whether a process has a lock on the file at `place`, and whether it is exclusive. With
/// `inherited`, descriptors that close on `exec` do not count.
fn lock_of(process: u32, place: (u64, u64), inherited: bool) -> Option<bool> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    for entry in fs::read_dir(folder.join("fd")).ok()?.flatten() {
        let is_same = |path: &Path| fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == place);
        if !is_same(&entry.path()) {
            continue;
        }
        let info = fs::read_to_string(folder.join("fdinfo").join(entry.file_name())).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u64::from_str_radix(flags.trim(), 8).ok());
        if inherited && flags.is_none_or(|flags| flags & CLOSES_ON_EXEC != 0) {
            continue;
        }
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

/// Returns the processes that made the `flock` locks on files with an inode number, one for each
/// lock, as `/proc/locks` shows them.
pub(crate) fn lockers_of(inode: u64) -> Vec<String> {
    let inode = inode.to_string();
    // `1: FLOCK  ADVISORY  WRITE 123 08:01:456 0 EOF`
    let locker = |line: &str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let is_on = fields.get(5)?.rsplit(':').next() == Some(&*inode);
        (is_on && fields.get(1) == Some(&"FLOCK")).then(|| fields[4].to_owned())
    };
    fs::read_to_string("/proc/locks").unwrap_or_default().lines().filter_map(locker).collect()
}
