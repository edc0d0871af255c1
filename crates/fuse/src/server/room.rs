//! Room for data that waits in the kernel's cache.
//!
//! With the writeback cache the kernel accepts a write before the server sees it. While free space
//! is less than what may be dirty, the kernel may therefore not cache attributes. It then asks for
//! them before each write that it caches (`fuse_cache_write_iter`). The server has the file's data
//! written back first, so that at most one write of each writer is in the cache. Its answer refuses
//! a write for which there is no space, and keeps the space of one that it admits
//! ([`super::promises`]).
//!
//! Owns [`Room`].

use papilio::FileSystem;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Bytes that the kernel may hold beyond its limit for dirty data of a FUSE mount: requests in
/// flight, and what each writer adds between two checks.
const BEYOND: u64 = 16 << 20;
/// Dirty data is limited to this share of the limit for all file systems (`max_ratio`, in percent).
const FUSE_RATIO: u64 = 1;
/// Bytes written between two looks at the free space, at most.
const STEP: i64 = 16 << 20;

/// The room that is left, as far as the server has looked.
#[derive(Debug)]
pub(super) struct Room {
    /// The kernel caches writes.
    caching: bool,
    /// Bytes that may be dirty in the kernel's cache.
    dirty_max: u64,
    short: AtomicBool,
    /// Bytes that may be written before the next look at the free space.
    until_look: AtomicI64,
}

impl Room {
    pub(super) fn new(caching: bool) -> Self {
        let dirty_max = dirty_limit() * FUSE_RATIO / 100 + BEYOND;
        Self { caching, dirty_max, short: AtomicBool::new(false), until_look: AtomicI64::new(0) }
    }

    /// Returns whether the kernel may not cache more than one write of a writer.
    pub(super) fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Counts written bytes; returns whether room became short.
    pub(super) fn shrank(&self, fs: &FileSystem, bytes: usize) -> bool {
        if !self.caching {
            return false;
        }
        let left = self.until_look.fetch_sub(bytes as i64, Ordering::AcqRel) - bytes as i64;
        left <= 0 && self.look(fs)
    }

    /// Looks at the free space; returns whether room became short.
    pub(super) fn look(&self, fs: &FileSystem) -> bool {
        if !self.caching {
            return false;
        }
        let available = fs.writable_bytes();
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
