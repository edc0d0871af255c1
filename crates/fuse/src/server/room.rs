//! Room for data that waits in the kernel's cache.
//!
//! With the writeback cache the kernel accepts a write before the server sees it. While free space
//! is less than what may be dirty, the kernel may therefore not cache attributes. It then asks for
//! them before each write that it caches (`fuse_cache_write_iter`). The server has the file's data
//! written back first, so that at most one write of each writer is in the cache. Its answer refuses
//! a write for which there is no space, and keeps the space of one that it admits
//! ([`super::promises`]).
//!
//! Owns [`Room`]. [`super::short_room`] looks and tells the kernel.

use crate::transport::NodeId;
use papilio::FileSystem;
use papilio_locks::Mutex;
use std::fmt;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Bytes that the kernel may hold beyond its limit for dirty data of a FUSE mount: requests in
/// flight, and what each writer adds between two checks.
const BEYOND: u64 = 16 << 20;
/// Dirty data is limited to this share of the limit for all file systems (`max_ratio`, in percent).
const FUSE_RATIO: u64 = 1;
/// Bytes written between two looks at the free space, at most.
const STEP: i64 = 16 << 20;

/// Has the kernel drop the attributes of a file that it caches.
pub(crate) type ForgetAttributes = Box<dyn Fn(NodeId) + Send + Sync>;

/// The room that is left, as far as the server has looked.
pub(super) struct Room {
    /// The kernel caches writes.
    caching: bool,
    /// Bytes that may be dirty in the kernel's cache.
    dirty_max: u64,
    short: AtomicBool,
    /// Bytes that may be written before the next look at the free space.
    until_look: AtomicI64,
    pub(super) telling: Mutex<()>,
    /// Set once the kernel can be told.
    pub(super) tell: OnceLock<ForgetAttributes>,
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Room");
        debug.field("dirty_max", &self.dirty_max).field("short", &self.short).finish_non_exhaustive()
    }
}

impl Room {
    pub(super) fn new(caching: bool) -> Self {
        let dirty_max = dirty_limit() * FUSE_RATIO / 100 + BEYOND;
        Self {
            caching,
            dirty_max,
            short: AtomicBool::new(false),
            until_look: AtomicI64::new(0),
            telling: Mutex::default(),
            tell: OnceLock::new(),
        }
    }

    /// Says how the kernel is told.
    pub(super) fn tell_with(&self, tell: ForgetAttributes) {
        let _ = self.tell.set(tell);
    }

    /// Returns whether the kernel may not cache more than one write of a writer.
    pub(super) fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Counts written bytes; returns whether it is time to look.
    pub(super) fn count(&self, bytes: i64) -> bool {
        self.caching && self.until_look.fetch_sub(bytes, Ordering::AcqRel) - bytes <= 0
    }

    /// Looks at the free space; returns whether room became short.
    pub(super) fn look(&self, fs: &FileSystem) -> bool {
        self.look_without(fs, 0)
    }

    /// Looks at the free space that is left without `taken` bytes.
    pub(super) fn look_without(&self, fs: &FileSystem, taken: u64) -> bool {
        if !self.caching {
            return false;
        }
        let available = fs.writable_bytes().saturating_sub(taken);
        // Leaving takes twice the room, so that the state does not flap.
        let limit = if self.is_short() { 2 * self.dirty_max } else { self.dirty_max };
        let short = available < limit;
        let step = i64::try_from(available.saturating_sub(limit) / 2).unwrap_or(i64::MAX);
        self.until_look.store(step.clamp(1 << 20, STEP), Ordering::Release);
        short && !self.short.swap(short, Ordering::AcqRel) || {
            self.short.store(short, Ordering::Release);
            false
        }
    }
}

/// Returns the number of bytes that may be dirty in the whole machine.
fn dirty_limit() -> u64 {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    if let Some(bytes) = number("/proc/sys/vm/dirty_bytes").filter(|&bytes| bytes > 0) {
        return bytes;
    }
    let ratio = number("/proc/sys/vm/dirty_ratio").unwrap_or(20);
    let memory = fs::read_to_string("/proc/meminfo").ok();
    let kib = memory.and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(4 << 20) * 1024 / 100 * ratio
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_data_is_limited() {
        let limit = dirty_limit();
        assert!(limit > 0 && limit < 1 << 50, "{limit}");
        assert!(Room::new(true).dirty_max > BEYOND);
    }
}
