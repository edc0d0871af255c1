//! Splitting large folios into smaller ones.
//!
//! Owns the split of a folio in place: its memory, its entry in the tree, its dirty blocks and its
//! position on an LRU list.
//!
//! **Invariant**: only the holder of the single reference besides the tree's can split. The count
//! is frozen at 0 during the split, so a lookup without a lock fails and waits for the tree's lock.

use crate::folio::FolioWrite;
use crate::folio::record::{BLOCKS_PER_RECORD, Record, flag};
use crate::mapping::Mapping;
use crate::shared::{RECORD_BYTES, Shared};
use crate::sync;
use crate::xarray::{Entry, Mark, NodePool, SplitError};
use crate::{MAX_ORDER, PAGE_SIZE};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Dirty blocks of the largest folio.
type Blocks = [u64; (1 << MAX_ORDER) / BLOCKS_PER_RECORD as usize];

impl Mapping {
    /// Splits a folio into folios of `order`, each with its part of the contents and the dirty
    /// blocks. All stay in the cache, unlocked.
    ///
    /// # Errors
    /// Returns the guard, with nothing changed, if the folio's order is not above `order`, it is in
    /// use elsewhere, it has left the mapping, or the cache has no space for the parts' metadata.
    pub fn split(&self, guard: FolioWrite, order: u8) -> Result<(), FolioWrite> {
        let inner = &self.inner;
        let shared = &inner.shared;
        let head = guard.folio().record();
        let (from, pages) = (head.order(), head.pages());
        if from <= order {
            return Err(guard);
        }
        let parts = pages >> order;
        let charge = (parts - 1) * RECORD_BYTES;
        if shared.charge(charge).is_err() {
            return Err(guard);
        }
        let mut preload = shared.pool.preload(0);
        let index = guard.folio().index();
        let mut tree = loop {
            let mut tree = sync::lock(&inner.tree);
            let alone = head.mapping.load(Acquire) == inner.id && head.freeze(2);
            if !alone {
                drop(tree);
                shared.uncharge(charge);
                return Err(guard);
            }
            let item = |first: u64| Entry::Item(u64::from(head.id) + (first - index));
            match tree.try_split(index, order, &mut preload, item) {
                Ok(_) => break tree,
                Err(error) => {
                    head.refs.store(2, Release);
                    drop(tree);
                    let SplitError::NeedNodes(count) = error else {
                        unreachable!("an attached folio is in the tree with its order: {error:?}");
                    };
                    let missing = count.saturating_sub(preload.len()) * NodePool::NODE_BYTES;
                    if shared.charge(missing as u64).is_err() {
                        shared.uncharge(charge);
                        return Err(guard);
                    }
                    preload.fill_charged(count);
                }
            }
        };
        // Freezing consumed the reference; `divide` releases the lock.
        let folio = guard.forget();
        divide(shared, folio, order, inner.id, index);
        for part in 0..parts {
            let first = index + (part << order);
            if !shared.arena.record(folio.id + (part << order) as u32).has(flag::DIRTY) {
                tree.clear_mark(first, Mark::Dirty);
                tree.clear_mark(first, Mark::ToWrite);
            }
        }
        inner.add_folios(parts as i64 - 1);
        drop(tree);
        shared.counters.here().folio_splits.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Turns the parts into folios. The head's count is frozen, its content lock held, and the tree
/// locked.
fn divide(shared: &Arc<Shared>, head: &Record, order: u8, mapping: u64, index: u64) {
    let parts = head.pages() >> order;
    let words = head.pages().div_ceil(u64::from(BLOCKS_PER_RECORD)) as u32;
    let mut blocks: Blocks = [0; (1 << MAX_ORDER) / BLOCKS_PER_RECORD as usize];
    for word in 0..words {
        blocks[word as usize] = shared.arena.record(head.id + word).blocks.swap(0, Relaxed);
    }
    // All parts lie in the head's stretch, so one shard's lock covers them.
    let mut lru = shared.lru.lock_of(head);
    let list = head.has(flag::LRU).then(|| lru.list_of(head));
    if list.is_some() {
        lru.remove(&shared.arena, head);
    }
    let kept = head.flags.load(Relaxed) & (flag::UPTODATE | flag::REFERENCED | flag::HOT | flag::WORKINGSET);
    for part in 0..parts as u32 {
        let record = shared.arena.record(head.id + (part << order));
        let mut dirty = 0;
        for block in 0..1u32 << order {
            let from = (part << order) + block;
            if blocks[(from / BLOCKS_PER_RECORD) as usize] >> (from % BLOCKS_PER_RECORD) & 1 != 0 {
                let word = &shared.arena.record(record.id + block / BLOCKS_PER_RECORD).blocks;
                word.store(word.load(Relaxed) | 1 << (block % BLOCKS_PER_RECORD), Relaxed);
                dirty = flag::DIRTY;
            }
        }
        record.flags.store(u32::from(order) | kept | dirty, Relaxed);
        record.index.store(index + u64::from(part << order), Relaxed);
        record.mapping.store(mapping, Relaxed);
        record.lock.store(0, Relaxed);
        if part > 0 {
            // Count each new folio; the head is counted already.
            shared.hold(record);
        }
        if let Some(list) = list {
            lru.add(&shared.arena, record, list);
        }
        // The tree's reference.
        record.refs.store(1, Release);
    }
}

const _: () = assert!(PAGE_SIZE == 4096, "a dirty bit stands for 4 KiB");
