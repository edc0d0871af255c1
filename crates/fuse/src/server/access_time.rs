//! Updates of access times by reads.
//!
//! The kernel leaves access times of a FUSE file system to its server. The server sees only the
//! reads that the kernel's cache did not answer. The rules are the kernel's (`relatime_need_update`
//! and `atime_needs_update` in `fs/inode.c`): with `relatime` a read updates an access time that is
//! not later than the last change, or a day old.
//!
//! Reads that the kernel's cache answers do not reach the server. Where the next read must update
//! the access time, an open tells the kernel to drop what it has cached of the file, so that the
//! read arrives here ([`Server::must_see_read`]).
//!
//! To avoid looking up the inode at each read, a node remembers that its access time is up to date.
//! A change through the node clears this ([`Server::changed`]). A change through a name clears it
//! for all nodes ([`Server::names_change`]).

use super::state::Server;
use crate::nodes::Node;
use crate::options::Atime;
use papilio::format::items::inode::InodeFlags;
use papilio::{FileKind, Metadata, Timespec};
use std::sync::atomic::Ordering;

const DAY: i64 = 24 * 3600;
/// Nanoseconds by which a change may seem older than an event before it, because the kernel's cache
/// takes times from the last tick of its clock.
const TICK: u32 = 10_000_000;
/// Seconds for which a node remembers that its access time is up to date.
const REMEMBERED: u64 = 1800;

impl Server {
    /// Records a change to an inode through its node.
    pub(super) fn changed(&self, node: &Node) {
        node.read_noted.store(0, Ordering::Release);
    }

    /// Records a change to names, which also changes times of inodes.
    pub(super) fn names_change(&self) {
        self.name_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Records a read of a node that was opened with `flags`.
    pub(super) fn note_read(&self, node: &Node, flags: i32) {
        let Some(rule) = self.access_times else { return };
        if self.mount.is_read_only() || self.mount.opened_read_only() {
            return;
        }
        let directory = node.kind == FileKind::Directory;
        if flags & libc::O_NOATIME != 0 || directory && rule == Atime::Nodiratime {
            return;
        }
        let now = self.fs().now();
        let mark = self.mark(now);
        if rule != Atime::Strict && node.read_noted.swap(mark, Ordering::AcqRel) == mark {
            return;
        }
        // A failed update (no space, a read-only subvolume) does not fail the read.
        if let Ok(inode) = node.current(&self.fs())
            && needs_update(rule, inode.metadata(), now)
            && let Err(error) = inode.set_access_time(now)
        {
            tracing::debug!("updating an access time failed: {error}");
        }
    }

    /// Returns whether the next read of a file that is opened with `flags` must reach the server.
    pub(super) fn must_see_read(&self, node: &Node, flags: i32) -> bool {
        let Some(rule) = self.access_times.filter(|_| !self.mount.opened_read_only()) else { return false };
        if flags & libc::O_NOATIME != 0 || flags & libc::O_ACCMODE == libc::O_WRONLY {
            return false;
        }
        if !node.cached.may_exist() {
            // There is nothing to drop.
            return false;
        }
        let now = self.fs().now();
        if rule != Atime::Strict && node.read_noted.load(Ordering::Acquire) == self.mark(now) {
            return false;
        }
        node.current(&self.fs()).is_ok_and(|inode| needs_update(rule, inode.metadata(), now))
    }

    /// Returns the mark that a node remembers for a read at `now`; never 0.
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

/// Returns the time `by` nanoseconds later.
fn later((seconds, nanoseconds): (i64, u32), by: u32) -> (i64, u32) {
    let sum = nanoseconds.saturating_add(by);
    (seconds.saturating_add((sum / 1_000_000_000).into()), sum % 1_000_000_000)
}
