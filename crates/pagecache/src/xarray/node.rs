//! Nodes of 64 slots, and the pool that they come from.
//!
//! Owns the nodes' memory.
//!
//! **Invariants**
//! - Nodes are freed only with the pool. A reader without a lock may look into a node that has been
//!   released and reused. It then sees empty slots or slots of another array, never foreign memory.
//!   Readers without a lock therefore verify what they find (see [`super::Reader`]).
//! - Only the slots are read without the array's lock. The other fields are atomics because nodes
//!   are shared; they are accessed relaxed under that lock.
//!
//! **Locks**: the pool's lock is a leaf.

use super::entry::{MARKS, Raw, Slot};
use crate::processor::prefetch;
use crate::sync::{self, AtomicU64, Mutex, Padded};
use arrayvec::ArrayVec;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64 as PlainU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

/// log2 of the number of slots in a node.
pub(super) const SHIFT: u32 = 6;
/// Number of slots in a node.
pub(super) const SLOTS: u32 = 1 << SHIFT;
/// No node.
pub(super) const NONE: u32 = u32::MAX;
/// Nodes are created in chunks: the first of this many, each next one twice as large, up to
/// `LARGEST`.
#[cfg(not(feature = "shuttle"))]
const FIRST: u32 = 64;
#[cfg(feature = "shuttle")]
const FIRST: u32 = 4;
/// Number of nodes in the largest chunk.
const LARGEST: u32 = FIRST << DOUBLINGS;
const DOUBLINGS: u32 = 6;
/// Most nodes that one operation needs: to grow and descend a tree of eleven levels, or for the
/// largest split.
pub(super) const MAX_PRELOAD: usize = 24;

/// A node: 64 slots, bitmaps of their use, and marks. All fields except the slots share one cache
/// line.
#[repr(C, align(64))]
pub(super) struct Node {
    slots: [AtomicU64; SLOTS as usize],
    /// Slots that are not empty, siblings included.
    present: PlainU64,
    /// Slots that belong to values, siblings included.
    values: PlainU64,
    /// Marks: on the slot that holds a marked entry, not on its siblings, and on the slot of a node
    /// that contains one.
    marks: [PlainU64; MARKS],
    parent: AtomicU32,
    /// Slot number in the parent.
    offset: AtomicU8,
    /// Number of index bits below this level.
    shift: AtomicU8,
}

impl Node {
    fn new() -> Self {
        Self {
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
            present: PlainU64::new(0),
            values: PlainU64::new(0),
            marks: std::array::from_fn(|_| PlainU64::new(0)),
            parent: AtomicU32::new(NONE),
            offset: AtomicU8::new(0),
            shift: AtomicU8::new(0),
        }
    }

    /// Loads the slot with acquire ordering, paired with the store in `put`.
    #[inline]
    pub fn slot(&self, offset: u32) -> Raw {
        Raw(self.slots[(offset & 63) as usize].load(Acquire))
    }

    /// Stores `raw` in a slot and updates the bitmaps. `value` says whether it belongs to a value.
    pub fn put(&self, offset: u32, raw: Raw, value: bool) {
        let bit = 1u64 << offset;
        let with = |word: u64, set: bool| if set { word | bit } else { word & !bit };
        self.present.store(with(self.present(), raw != Raw::EMPTY), Relaxed);
        self.values.store(with(self.values(), value), Relaxed);
        self.slots[offset as usize].store(raw.0, Release);
    }

    /// Stores an entry over `count` slots from `offset` on: one entry and its siblings.
    pub fn put_entry(&self, offset: u32, count: u32, raw: Raw) {
        self.put(offset, raw, raw.is_value());
        for sibling in offset + 1..offset + count {
            let kept = if raw == Raw::EMPTY { raw } else { Raw::sibling(offset) };
            self.put(sibling, kept, raw.is_value());
        }
    }

    /// Returns the number of slots of the entry at `offset`: 1 and its siblings.
    pub fn width(&self, offset: u32) -> u32 {
        let sibling = Raw::sibling(offset);
        let mut end = offset + 1;
        while end < SLOTS && self.slot(end) == sibling {
            end += 1;
        }
        end - offset
    }

    /// Returns the slot that holds the entry which covers `offset`.
    pub fn canonical(&self, offset: u32) -> u32 {
        match self.slot(offset).slot() {
            Slot::Sibling(of) => of,
            _ => offset,
        }
    }

    pub fn present(&self) -> u64 {
        self.present.load(Relaxed)
    }

    pub fn values(&self) -> u64 {
        self.values.load(Relaxed)
    }

    pub fn marks(&self, mark: usize) -> u64 {
        self.marks[mark].load(Relaxed)
    }

    pub fn set_marks(&self, mark: usize, bits: u64) {
        self.marks[mark].store(bits, Relaxed);
    }

    pub fn parent(&self) -> u32 {
        self.parent.load(Relaxed)
    }

    pub fn offset(&self) -> u32 {
        u32::from(self.offset.load(Relaxed))
    }

    pub fn shift(&self) -> u32 {
        u32::from(self.shift.load(Relaxed))
    }

    /// Sets the position of the node in the tree.
    pub fn attach(&self, parent: u32, offset: u32, shift: u32) {
        self.parent.store(parent, Relaxed);
        self.offset.store(offset as u8, Relaxed);
        self.shift.store(shift as u8, Relaxed);
    }

    /// Starts loading the cache lines that a change of this slot touches.
    pub fn prefetch(&self, offset: u32) {
        prefetch(&self.slots[(offset & 63) as usize]);
        prefetch(&self.present);
    }

    fn clear(&self) {
        let mut left = self.present();
        while left != 0 {
            let offset = left.trailing_zeros();
            left &= left - 1;
            self.slots[offset as usize].store(0, Release);
        }
        self.present.store(0, Relaxed);
        self.values.store(0, Relaxed);
        for mark in &self.marks {
            mark.store(0, Relaxed);
        }
    }
}

/// The memory of nodes, shared by any number of arrays.
pub struct NodePool {
    chunks: Box<[OnceLock<Box<[Node]>>]>,
    free: Padded<Mutex<Free>>,
    in_use: Padded<AtomicUsize>,
    /// Bytes charged for nodes in use, and for anything else its owner charges there.
    account: Arc<Padded<PlainU64>>,
}

struct Free {
    nodes: Vec<u32>,
    made: u32,
}

impl NodePool {
    /// Size of a node in bytes.
    pub const NODE_BYTES: usize = size_of::<Node>();

    /// Creates a pool that can provide at least `capacity` nodes at a time. Memory is allocated on
    /// demand and kept.
    ///
    /// # Panics
    /// If the capacity is 2^32 - 16384 or more.
    pub fn new(capacity: usize) -> Self {
        Self::with_account(capacity, Arc::default())
    }

    /// Creates a pool that charges its nodes to an account.
    pub(crate) fn with_account(capacity: usize, account: Arc<Padded<PlainU64>>) -> Self {
        assert!(capacity < NONE as usize - 4 * LARGEST as usize, "nodes are numbered with 32 bits");
        let chunks = chunk_of(capacity as u32).0 + 1;
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            free: Padded(Mutex::new(Free { nodes: Vec::new(), made: 0 })),
            in_use: Padded::default(),
            account,
        }
    }

    /// Returns the number of nodes in use, including those in a [`Preload`].
    pub fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }

    /// Takes `count` nodes out of the pool for operations on its arrays. Dropping the preload
    /// returns the unused ones.
    ///
    /// # Panics
    /// If the pool's capacity is exhausted, or `count` is above 24, which no operation needs.
    pub fn preload(&self, count: usize) -> Preload<'_> {
        let mut preload = Preload { pool: self, nodes: ArrayVec::new() };
        preload.fill(count);
        preload
    }

    #[inline]
    pub(super) fn node(&self, id: u32) -> &Node {
        let (chunk, offset) = chunk_of(id);
        &self.chunks[chunk].get().expect("node numbers refer to created nodes")[offset]
    }

    /// Empties a node and returns it to the pool.
    pub(super) fn release(&self, id: u32) {
        self.node(id).clear();
        sync::lock(&self.free).nodes.push(id);
        self.gave_back(1);
    }

    fn gave_back(&self, nodes: usize) {
        self.in_use.fetch_sub(nodes, Relaxed);
        self.account.fetch_sub((nodes * Self::NODE_BYTES) as u64, Relaxed);
    }

    /// Creates more nodes. The caller holds the lock, so two threads do not create the same ones.
    fn grow(&self, free: &mut Free) {
        let (chunk, _) = chunk_of(free.made);
        assert!(chunk < self.chunks.len(), "the node pool's capacity is exhausted");
        let count = FIRST << (chunk as u32).min(DOUBLINGS);
        self.chunks[chunk].get_or_init(|| (0..count).map(|_| Node::new()).collect());
        free.nodes.extend((free.made..free.made + count).rev());
        free.made += count;
    }
}

impl std::fmt::Debug for NodePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodePool").field("in_use", &self.in_use()).finish_non_exhaustive()
    }
}

/// Returns the last index below a top node of this shift.
pub(super) fn last_of(shift: u32) -> u64 {
    if shift + SHIFT >= u64::BITS { u64::MAX } else { (1 << (shift + SHIFT)) - 1 }
}

/// Returns the chunk of a node and its offset there.
#[inline]
fn chunk_of(id: u32) -> (usize, usize) {
    let number = id + FIRST;
    if number < LARGEST {
        let doublings = number.ilog2() - FIRST.ilog2();
        (doublings as usize, (number - (FIRST << doublings)) as usize)
    } else {
        let beyond = number - LARGEST;
        ((DOUBLINGS + beyond / LARGEST) as usize, (beyond % LARGEST) as usize)
    }
}

/// Nodes reserved before a lock is taken, so that nothing is allocated under it.
#[derive(Debug)]
pub struct Preload<'a> {
    pool: &'a NodePool,
    nodes: ArrayVec<u32, MAX_PRELOAD>,
}

impl Preload<'_> {
    /// Returns the number of reserved nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds nodes until there are `count`.
    ///
    /// # Panics
    /// See [`NodePool::preload`].
    pub fn fill(&mut self, count: usize) {
        let missing = count.saturating_sub(self.nodes.len());
        self.pool.account.fetch_add((missing * NodePool::NODE_BYTES) as u64, Relaxed);
        self.fill_charged(count);
    }

    /// [`Preload::fill`] for a caller that has already charged the missing nodes to the pool's
    /// account.
    pub(crate) fn fill_charged(&mut self, count: usize) {
        if self.nodes.len() >= count {
            return;
        }
        let mut free = sync::lock(&self.pool.free);
        while self.nodes.len() < count {
            if free.nodes.is_empty() {
                self.pool.grow(&mut free);
            }
            self.nodes.push(free.nodes.pop().expect("the pool has just grown"));
            self.pool.in_use.fetch_add(1, Relaxed);
        }
    }

    /// Takes a node. The caller has checked that there is one.
    pub(super) fn take(&mut self) -> u32 {
        self.nodes.pop().expect("enough nodes were preloaded")
    }

    pub(super) fn belongs_to(&self, pool: &NodePool) -> bool {
        std::ptr::eq(self.pool, pool)
    }
}

impl Drop for Preload<'_> {
    fn drop(&mut self) {
        if !self.nodes.is_empty() {
            let count = self.nodes.len();
            sync::lock(&self.pool.free).nodes.extend(self.nodes.drain(..));
            self.pool.gave_back(count);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn node_numbers_map_to_distinct_slots() {
        let mut expected = (0, 0);
        for id in 0..if cfg!(miri) { 1000 } else { 100_000 } {
            let (chunk, offset) = chunk_of(id);
            if (chunk, offset) != expected {
                assert_eq!((chunk, offset), (expected.0 + 1, 0), "number {id}");
                assert_eq!(expected.1, (FIRST << (expected.0 as u32).min(DOUBLINGS)) as usize, "number {id}");
            }
            expected = (chunk, offset + 1);
        }
    }

    #[test]
    fn dropped_preload_returns_its_nodes() {
        let pool = NodePool::new(1000);
        let mut preload = pool.preload(3);
        assert_eq!((preload.len(), pool.in_use()), (3, 3));
        preload.fill(2);
        assert_eq!(preload.len(), 3);
        let node = preload.take();
        drop(preload);
        assert_eq!(pool.in_use(), 1);
        pool.release(node);
        assert_eq!(pool.in_use(), 0);
    }
}
