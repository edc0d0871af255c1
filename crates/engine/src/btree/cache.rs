//! The node cache: tree blocks by address, within a byte limit.
//!
//! Owns [`NodeCache`]: shards, each a map with a clock hand (second-chance eviction).
//!
//! **Invariants**
//! - After an insertion a shard exceeds its share of the limit by at most one block. A share that
//!   dirty blocks shrink is enforced at the shard's next insertion or turn.
//! - Evicting a block drops only the cache's reference; readers keep the blocks they hold.
//! - Dirty blocks belong to their trees but count against the limit. The more there are, the fewer
//!   blocks are cached, down to a quarter of the limit.
//!
//! **Locks**: one shard's `RwLock` at a time, never during device I/O.

use crate::btree::block::TreeBlock;
use papilio_format::LogicalAddress;
use papilio_locks::RwLock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 16;
/// Most blocks evicted for one new dirty block; more than one, so that eviction keeps up.
const GIVE_WAY: usize = 4;

struct CachedBlock {
    block: Arc<TreeBlock>,
    used: AtomicBool,
}

/// Hashes addresses. An image crafted for collisions only slows lookups in one shard.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The table takes the group from the upper bits and the position from the lower ones.
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
struct BlockShard {
    entries: HashMap<LogicalAddress, CachedBlock, BuildHasherDefault<AddressHasher>>,
    /// Addresses in order of insertion; `hand` is the index of the next candidate.
    clock: Vec<LogicalAddress>,
    hand: usize,
    bytes: usize,
}

/// Blocks by logical address.
pub(crate) struct NodeCache {
    shards: Box<[RwLock<BlockShard>]>,
    limit: usize,
    /// Bytes of dirty blocks.
    unwritten: AtomicUsize,
    /// The next shard to evict from for dirty blocks.
    next: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl NodeCache {
    /// Creates a cache of at most `limit` bytes of blocks.
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

    fn shard(&self, address: LogicalAddress) -> &RwLock<BlockShard> {
        // Blocks are 4 or 16 KiB apart; multiplication spreads both over the shards.
        let hash = (address.0 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.shards[hash as usize % SHARDS]
    }

    /// Returns the bytes that a shard may hold.
    fn shard_limit(&self) -> usize {
        let unwritten = self.unwritten.load(Ordering::Relaxed).min(self.limit / 4 * 3);
        (self.limit - unwritten) / SHARDS
    }

    /// Counts `bytes` more of dirty blocks, and evicts from the next shard if it is over its limit.
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

    /// Counts `bytes` less of dirty blocks: they were written or dropped.
    pub(crate) fn unwritten_shrank(&self, bytes: usize) {
        self.unwritten.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the block at `address` if it is cached.
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

    /// Returns whether the block is cached, without counting as a use.
    pub(crate) fn contains(&self, address: LogicalAddress) -> bool {
        self.shard(address).read().entries.contains_key(&address)
    }

    /// Inserts a block, evicting others to stay within the limit.
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
        shard.entries.insert(address, CachedBlock { block, used: AtomicBool::new(false) });
    }

    /// Drops the block at `address` if it is cached.
    pub(crate) fn remove(&self, address: LogicalAddress) {
        let mut shard = self.shard(address).write();
        if let Some(entry) = shard.entries.remove(&address) {
            shard.bytes -= entry.block.bytes().len();
            if let Some(index) = shard.clock.iter().position(|&at| at == address) {
                shard.clock.swap_remove(index);
            }
        }
    }

    /// Drops all blocks.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.write() = BlockShard::default();
        }
    }

    /// Returns the bytes of cached blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().bytes).sum()
    }

    /// Returns the number of lookups that found their block, and of those that did not.
    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}

impl std::fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl BlockShard {
    /// Evicts the first block not used since the hand last passed it. Returns false if there is
    /// none.
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
    fn stays_within_limit_and_keeps_used_blocks() {
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
    fn shrinks_as_dirty_blocks_grow() {
        let limit = SHARDS * 16 * 4096;
        let cache = NodeCache::new(limit);
        for index in 1..2000u64 {
            cache.insert(Arc::new(leaf(LogicalAddress(index * 4096))));
        }
        let full = cache.bytes();
        assert!(full > limit / 2);
        for unwritten in 1..=16 * SHARDS {
            cache.unwritten_grew(4096);
            // A shard exceeds its limit by the blocks that became dirty since its last turn.
            assert!(cache.bytes() + unwritten * 4096 <= limit + SHARDS * 4096 || cache.bytes() <= limit / 4);
        }
        assert_eq!(cache.bytes(), limit / 4, "a quarter of the limit stays, however many blocks are dirty");
        cache.unwritten_shrank(16 * SHARDS * 4096);
        for index in 1..2000u64 {
            cache.insert(Arc::new(leaf(LogicalAddress(index * 4096))));
        }
        assert_eq!(cache.bytes(), full);
    }

    #[test]
    fn zero_limit_keeps_one_block_per_shard() {
        let cache = NodeCache::new(0);
        for index in 1..100u64 {
            cache.insert(Arc::new(leaf(LogicalAddress(index * 4096))));
        }
        assert!(cache.bytes() <= SHARDS * 4096);
    }
}
