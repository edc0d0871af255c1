//! The node cache: tree blocks by address, within a byte limit.
//!
//! Owns [`NodeCache`]: shards, each a map and a clock hand (second-chance eviction). Invariants: a
//! shard never holds more bytes than its share of the limit, but for one block; evicting a block
//! only drops the cache's reference, so that readers keep what they hold. Blocks that are not on disk yet are
//! their trees' and count against the limit too: as they become more, those here become fewer, down to a quarter.
//!
//! Locks: one shard's `RwLock` at a time, never while reading a device.

use crate::btree::TreeBlock;
use papilio_format::LogicalAddress;
use papilio_locks::RwLock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 16;
/// Blocks that give way at most for one that is not on disk: more than one, so that the cache keeps up.
const GIVE_WAY: usize = 4;

struct Entry {
    block: Arc<TreeBlock>,
    used: AtomicBool,
}

/// Spreads addresses over a table; they are the file system's, and what a crafted one gains by collisions is
/// a slow look-up among the blocks of one shard.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The table takes its group from the upper bits and its place from the lower ones.
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
struct Shard {
    entries: HashMap<LogicalAddress, Entry, BuildHasherDefault<AddressHasher>>,
    /// The clock: addresses in the order of insertion; `hand` points at the next candidate.
    clock: Vec<LogicalAddress>,
    hand: usize,
    bytes: usize,
}

/// Blocks by logical address.
pub(crate) struct NodeCache {
    shards: Box<[RwLock<Shard>]>,
    limit: usize,
    /// Bytes of blocks that are not on disk.
    unwritten: AtomicUsize,
    /// The shard that gives way next.
    next: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl NodeCache {
    /// A cache of at most `limit` bytes of blocks.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            limit,
            unwritten: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn shard(&self, address: LogicalAddress) -> &RwLock<Shard> {
        // Blocks are 4K or 16K apart: the multiplication spreads either over the shards.
        let hash = (address.0 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.shards[hash as usize % SHARDS]
    }

    /// Bytes that a shard may hold.
    fn shard_limit(&self) -> usize {
        let unwritten = self.unwritten.load(Ordering::Relaxed).min(self.limit / 4 * 3);
        (self.limit - unwritten) / SHARDS
    }

    /// Blocks of so many bytes more are not on disk: others give way, of another shard each time.
    pub(crate) fn unwritten_grew(&self, bytes: usize) {
        self.unwritten.fetch_add(bytes, Ordering::Relaxed);
        let limit = self.shard_limit();
        let shard = &self.shards[self.next.fetch_add(1, Ordering::Relaxed) % SHARDS];
        if shard.read().bytes <= limit {
            return;
        }
        let mut shard = shard.write();
        for _ in 0..GIVE_WAY {
            if shard.bytes <= limit || !shard.evict_one() {
                break;
            }
        }
    }

    /// Blocks of so many bytes are on disk, or gone.
    pub(crate) fn unwritten_shrank(&self, bytes: usize) {
        self.unwritten.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The block at `address`, if it is here.
    pub(crate) fn get(&self, address: LogicalAddress) -> Option<Arc<TreeBlock>> {
        let shard = self.shard(address).read();
        match shard.entries.get(&address) {
            Some(entry) => {
                entry.used.store(true, Ordering::Relaxed);
                self.hits.fetch_add(1, Ordering::Relaxed);
                Some(Arc::clone(&entry.block))
            }
            None => {
                self.misses.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Whether the block is here, without counting as a use.
    pub(crate) fn contains(&self, address: LogicalAddress) -> bool {
        self.shard(address).read().entries.contains_key(&address)
    }

    /// Keeps a block, evicting others to stay within the limit.
    pub(crate) fn insert(&self, block: Arc<TreeBlock>) {
        let address = block.address();
        let size = block.bytes().len();
        let limit = self.shard_limit();
        let mut shard = self.shard(address).write();
        if shard.entries.contains_key(&address) {
            return;
        }
        while shard.bytes + size > limit && shard.evict_one() {}
        shard.bytes += size;
        shard.clock.push(address);
        shard.entries.insert(address, Entry { block, used: AtomicBool::new(false) });
    }

    /// Drops the block at `address`, if it is here.
    pub(crate) fn remove(&self, address: LogicalAddress) {
        let mut shard = self.shard(address).write();
        if let Some(entry) = shard.entries.remove(&address) {
            shard.bytes -= entry.block.bytes().len();
            if let Some(index) = shard.clock.iter().position(|&at| at == address) {
                shard.clock.swap_remove(index);
            }
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.write() = Shard::default();
        }
    }

    /// Bytes of blocks held.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().bytes).sum()
    }

    /// Look-ups that found their block, and those that did not.
    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}

impl std::fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Shard {
    /// Evicts the first block that was not used since the hand last passed it; false if empty.
    fn evict_one(&mut self) -> bool {
        while !self.clock.is_empty() {
            if self.hand >= self.clock.len() {
                self.hand = 0;
            }
            let address = self.clock[self.hand];
            let entry = &self.entries[&address];
            if entry.used.swap(false, Ordering::Relaxed) {
                self.hand += 1;
                continue;
            }
            self.bytes -= entry.block.bytes().len();
            self.entries.remove(&address);
            self.clock.swap_remove(self.hand);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::forest::tests::leaf;

    #[test]
    fn stays_within_its_limit_and_keeps_what_is_used() {
        let limit = SHARDS * 4 * 4096;
        let cache = NodeCache::new(limit);
        let favourite = LogicalAddress(4096);
        cache.insert(Arc::new(leaf(favourite)));
        for index in 2..1000u64 {
            assert!(cache.get(favourite).is_some(), "evicted before block {index}");
            cache.insert(Arc::new(leaf(LogicalAddress(index * 4096))));
            assert!(cache.bytes() <= limit);
        }
        cache.clear();
        assert_eq!(cache.bytes(), 0);
        assert!(!cache.contains(favourite));
    }

    #[test]
    fn gives_way_to_blocks_that_are_not_on_disk() {
        let limit = SHARDS * 16 * 4096;
        let cache = NodeCache::new(limit);
        for index in 1..2000u64 {
            cache.insert(Arc::new(leaf(LogicalAddress(index * 4096))));
        }
        let full = cache.bytes();
        assert!(full > limit / 2);
        for unwritten in 1..=16 * SHARDS {
            cache.unwritten_grew(4096);
            // A shard comes behind by what became dirty since its last turn.
            assert!(cache.bytes() + unwritten * 4096 <= limit + SHARDS * 4096 || cache.bytes() <= limit / 4);
        }
        assert_eq!(cache.bytes(), limit / 4, "a quarter stays, however many there are");
        cache.unwritten_shrank(16 * SHARDS * 4096);
        for index in 1..2000u64 {
            cache.insert(Arc::new(leaf(LogicalAddress(index * 4096))));
        }
        assert_eq!(cache.bytes(), full);
    }

    #[test]
    fn a_limit_of_nothing_holds_one_block_a_shard() {
        let cache = NodeCache::new(0);
        for index in 1..100u64 {
            cache.insert(Arc::new(leaf(LogicalAddress(index * 4096))));
        }
        assert!(cache.bytes() <= SHARDS * 4096);
    }
}
