//! When reading a file updates its access time.
//!
//! The kernel leaves access times of a FUSE file system to its server, which sees the reads that the
//! kernel's cache did not answer. The rules are the kernel's own (`relatime_need_update`, `atime_needs_update`,
//! `fs/inode.c`): with `relatime` a read is noted where the access time is not later than the last change, or a
//! day old. So that not each read asks for the inode, a node remembers that a read was noted and nothing
//! changed since; what changes an inode through its node says so ([`Server::changed`]), what changes it
//! through a name makes all nodes ask anew ([`Server::names_change`]).

use super::state::Server;
use crate::nodes::Node;
use crate::options::Atime;
use papilio::format::items::inode::InodeFlags;
use papilio::{FileKind, Metadata, Timespec};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

const DAY: i64 = 24 * 3600;
/// The kernel's cache gives times of the last tick of its clock: a change may seem to be older than what came
/// before it by so many nanoseconds.
const TICK: u32 = 10_000_000;
/// Seconds that a node believes that its access time needs no update.
const REMEMBERED: u64 = 1800;

impl Server {
    /// An inode changed by way of its node.
    pub(super) fn changed(&self, node: &Node) {
        node.read_noted.store(0, Ordering::Release);
    }

    /// Names changed, and with them times of inodes.
    pub(super) fn names_change(&self) {
        self.name_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// A node was read, by who opened it with `flags`.
    pub(super) fn note_read(&self, node: &Node, flags: i32) {
        let Some(rule) = self.access_times else { return };
        let directory = node.inode.kind() == FileKind::Directory;
        if flags & libc::O_NOATIME != 0 || directory && rule == Atime::Nodiratime {
            return;
        }
        let now = now();
        let mark = self.mark(now);
        if rule != Atime::Strict && node.read_noted.swap(mark, Ordering::AcqRel) == mark {
            return;
        }
        // Reading went well; that it could not be noted (no space, a read-only subvolume) is nobody's concern.
        if let Ok(inode) = node.current(&self.fs)
            && needs_update(rule, inode.metadata(), now)
            && let Err(error) = inode.set_access_time(now)
        {
            tracing::debug!("access time: {error}");
        }
    }

    /// What a node remembers of a read that was noted now: never 0.
    fn mark(&self, now: Timespec) -> u64 {
        let period = now.seconds as u64 / REMEMBERED;
        self.name_changes.load(Ordering::Acquire) << 24 | (period & 0xff_ffff) | 1 << 63
    }
}

fn needs_update(rule: Atime, metadata: &Metadata, now: Timespec) -> bool {
    if metadata.flags().contains(InodeFlags::NOATIME) {
        return false;
    }
    let key = |time: Timespec| (time.seconds, time.nanoseconds);
    let atime = key(metadata.atime());
    if rule == Atime::Strict {
        return atime != key(now);
    }
    let change = key(metadata.mtime()).max(key(metadata.ctime()));
    later(change, TICK) >= atime || now.seconds.saturating_sub(atime.0) >= DAY
}

/// A time some nanoseconds later.
fn later((seconds, nanoseconds): (i64, u32), by: u32) -> (i64, u32) {
    let sum = nanoseconds.saturating_add(by);
    (seconds.saturating_add((sum / 1_000_000_000).into()), sum % 1_000_000_000)
}

/// The clock's time.
fn now() -> Timespec {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timespec { seconds, nanoseconds: since.subsec_nanos() }
}
