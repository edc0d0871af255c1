//! A multi-index XArray: a tree of 64-way nodes from 64-bit indices to entries. One entry may cover
//! 2^order aligned indices.
//!
//! Owns the shape of the tree. An entry of order 0 to 9 is stored once. If it covers several slots
//! of a node, the other slots are siblings that point to it. Values (shadows) and items (folios)
//! differ in insertion only, see [`Entry`].
//!
//! - `entry`: the encoding of a slot; `node`: nodes and their pool;
//! - `insert`: insertion in one walk or in several; `split`: splitting a large entry;
//! - `store`: replacing, erasing, removing a range; `marks`; `find`: next, previous, holes;
//! - `reader`: lookup without a lock.
//!
//! **Invariants**, checked by [`XArray::check`]:
//! - no node is empty;
//! - a node's bitmaps match its slots;
//! - a slot of a child node has a mark if and only if an entry below it has;
//! - the head is not a node if the array holds only one order-0 entry at index 0.
//!
//! **Locks**: an array has one writer at a time (`&mut`). Any number of [`Reader`]s look up
//! meanwhile; [`Reader`] documents the guarantees.
//!
//! Kernel counterpart: lib/xarray.c; its documentation is core-api/xarray.rst.

mod check;
mod entry;
mod find;
mod insert;
mod marks;
mod node;
mod reader;
mod split;
mod store;

pub use entry::{Entry, Found, Mark};
pub use find::Iter;
pub use insert::{CacheInsert, InsertError, Inserted};
pub use node::{NodePool, Preload};
pub use reader::Reader;
pub use split::SplitError;

use entry::{Raw, Slot};
use node::{NONE, Node, SHIFT, SLOTS, last_of};
use reader::Root;
use std::sync::Arc;

/// The largest order of an entry: 512 indices.
pub const MAX_ORDER: u8 = 9;
/// The array. See the module's documentation.
pub struct XArray {
    root: Arc<Root>,
    pool: Arc<NodePool>,
    /// Marks of an entry that the head itself holds.
    head_marks: u8,
}

/// A slot in the tree: in a node, or the head itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Number of the node; `NONE` for the head.
    node: u32,
    shift: u32,
    offset: u32,
}

/// The end of a walk.
struct Walked {
    place: Place,
    raw: Raw,
    /// First index covered by the slot, including siblings if it holds an entry.
    first: u64,
    /// Last index covered.
    last: u64,
}

impl XArray {
    /// Creates an empty array with a pool of its own (for at most four million nodes).
    pub fn new() -> Self {
        Self::with_pool(Arc::new(NodePool::new(1 << 22)))
    }

    /// Creates an empty array that takes its nodes from `pool`.
    pub fn with_pool(pool: Arc<NodePool>) -> Self {
        Self { root: Arc::new(Root::new()), pool, head_marks: 0 }
    }

    /// Returns the pool that its nodes come from.
    pub fn pool(&self) -> &Arc<NodePool> {
        &self.pool
    }

    /// Returns a handle for lookups without a lock.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.root), Arc::clone(&self.pool))
    }

    /// Returns whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.root.head() == Raw::EMPTY
    }

    /// Returns the entry that covers `index`.
    pub fn load(&self, index: u64) -> Option<Entry> {
        self.root.load(&self.pool, index)
    }

    /// Returns the entry that covers `index`, with its range.
    pub fn get(&self, index: u64) -> Option<Found> {
        self.found(&self.walk(index))
    }

    /// Returns the order of the entry at `index`; 0 if there is none, as for the kernel's
    /// `xa_get_order`.
    pub fn order(&self, index: u64) -> u8 {
        self.get(index).map_or(0, |found| found.order)
    }

    fn found(&self, walked: &Walked) -> Option<Found> {
        match walked.raw.slot() {
            Slot::Entry(entry) => {
                let order = (walked.last - walked.first + 1).ilog2() as u8;
                Some(Found { index: walked.first, order, entry })
            }
            _ => None,
        }
    }

    fn node(&self, id: u32) -> &Node {
        self.pool.node(id)
    }

    fn set_head(&self, raw: Raw) {
        self.root.set_head(raw);
    }

    /// Descends to the slot that covers `index`: an entry or an empty slot.
    fn walk(&self, index: u64) -> Walked {
        let head = self.root.head();
        let Slot::Node { id, shift } = head.slot() else {
            let place = Place { node: NONE, shift: 0, offset: 0 };
            return match index {
                0 if head != Raw::EMPTY => Walked { place, raw: head, first: 0, last: 0 },
                _ if head != Raw::EMPTY => Walked { place, raw: Raw::EMPTY, first: 1, last: u64::MAX },
                _ => Walked { place, raw: Raw::EMPTY, first: 0, last: u64::MAX },
            };
        };
        if index > last_of(shift) {
            let place = Place { node: NONE, shift, offset: 0 };
            return Walked { place, raw: Raw::EMPTY, first: last_of(shift) + 1, last: u64::MAX };
        }
        let (mut id, mut shift) = (id, shift);
        loop {
            let node = self.node(id);
            let offset = node.canonical((index >> shift) as u32 & (SLOTS - 1));
            let raw = node.slot(offset);
            if let Slot::Node { id: child, shift: below } = raw.slot() {
                (id, shift) = (child, below);
                continue;
            }
            let width = if raw == Raw::EMPTY { 1 } else { node.width(offset) };
            let first = (index & !last_of(shift)) | u64::from(offset) << shift;
            let last = first + ((u64::from(width) << shift) - 1);
            return Walked { place: Place { node: id, shift, offset }, raw, first, last };
        }
    }
}

/// Returns the shift of the level whose slots hold entries of this order.
fn level_of(order: u8) -> u32 {
    u32::from(order) / SHIFT * SHIFT
}

/// Checks that an entry may cover 2^`order` indices from `index` on.
fn check_range(index: u64, order: u8) {
    assert!(order <= MAX_ORDER, "order {order} is above {MAX_ORDER}");
    assert!(index & ((1 << order) - 1) == 0, "index {index} is not aligned to order {order}");
}

impl Default for XArray {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for XArray {
    fn drop(&mut self) {
        self.clear();
    }
}

impl std::fmt::Debug for XArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map()
            .entries(self.iter(0..=u64::MAX).map(|found| ((found.index, found.order), found.entry)))
            .finish()
    }
}
