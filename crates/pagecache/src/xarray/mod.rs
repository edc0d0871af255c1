//! A multi-index XArray: a tree of 64-way nodes from 64-bit indices to entries, where one entry may cover 2^order
//! aligned indices.
//!
//! Owns the shape of the tree. An entry of order 0 to 9 is stored once; where it covers several slots of a node, the
//! others are siblings that point to it. Values (shadows) and items (folios) differ in insertion only, see [`Entry`].
//! Marks lie on entries and on every node above one.
//!
//! - `entry`: what a slot holds; `node`: nodes and their pool;
//! - `insert`: insertion in one walk, or in many; `split`: one large entry to smaller ones;
//! - `store`: replace, erase, remove a range; `marks`; `find`: next, previous, holes;
//! - `reader`: look-up without a lock.
//!
//! An array has one writer at a time (`&mut`). Any number of [`Reader`]s look up meanwhile; what they may trust is said
//! there. Invariants, checked by [`XArray::check`]: no node is empty; a node's bitmaps say what its slots hold; a mark
//! on a node's slot means a mark within; the head is no node when one order-0 entry at index 0 is all there is.
//!
//! The kernel's counterpart is lib/xarray.c; its documentation is core-api/xarray.rst.

mod check;
mod entry;
mod find;
mod insert;
mod marks;
mod node;
mod reader;
mod split;
mod store;

pub use entry::Entry;
pub use find::{Found, Iter};
pub use insert::{CacheInsert, InsertError, Inserted, UnknownCacheInsert};
pub use node::{NodePool, Preload};
pub use reader::Reader;
pub use split::SplitError;

use crate::sync::AtomicU64;
use entry::{Raw, Slot};
use node::{NONE, Node, SHIFT, SLOTS};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The largest order of an entry: 512 indices.
pub const MAX_ORDER: u8 = 9;
/// Kinds of marks.
const MARKS: usize = 3;

/// A mark on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Changed since it was last written.
    Dirty = 0,
    /// Being written.
    Writeback = 1,
    /// To be written by the writeback under way.
    ToWrite = 2,
}

impl Mark {
    /// All marks.
    pub const ALL: [Self; MARKS] = [Self::Dirty, Self::Writeback, Self::ToWrite];
}

/// The array. See the module's documentation.
pub struct XArray {
    root: Arc<Root>,
    pool: Arc<NodePool>,
    /// Marks of an entry that the head itself holds.
    head_marks: u8,
}

/// What readers share with the array.
struct Root {
    /// Empty, one entry at index 0, or the top node.
    head: AtomicU64,
}

impl Root {
    #[inline]
    fn head(&self) -> Raw {
        Raw(self.head.load(Acquire))
    }
}

/// A slot in the tree: in a node, or the head itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// `NONE`: the head.
    node: u32,
    shift: u32,
    offset: u32,
}

/// Where a walk ended.
struct Walked {
    place: Place,
    raw: Raw,
    /// First index that the slot, and its siblings if it holds an entry, stand for.
    first: u64,
    /// Last such index.
    last: u64,
}

impl XArray {
    /// An empty array with a pool of its own (for at most four million nodes).
    pub fn new() -> Self {
        Self::with_pool(Arc::new(NodePool::new(1 << 22)))
    }

    /// An empty array that takes its nodes from `pool`.
    pub fn with_pool(pool: Arc<NodePool>) -> Self {
        Self { root: Arc::new(Root { head: AtomicU64::new(0) }), pool, head_marks: 0 }
    }

    /// The pool that its nodes come from.
    pub fn pool(&self) -> &Arc<NodePool> {
        &self.pool
    }

    /// A look-up that needs no lock.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.root), Arc::clone(&self.pool))
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.root.head() == Raw::EMPTY
    }

    /// What is stored at `index`, be it by an entry that begins before it.
    pub fn load(&self, index: u64) -> Option<Entry> {
        self.root.load(&self.pool, index)
    }

    /// The entry at `index` with the range that it covers.
    pub fn get(&self, index: u64) -> Option<Found> {
        self.found(&self.walk(index))
    }

    /// The order of the entry at `index`; 0 when there is none, as for the kernel's `xa_get_order`.
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
        self.root.head.store(raw.0, Release);
    }

    /// Descends to the slot that holds what is at `index`, or to the empty one on the way.
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

/// The last index below a top node of this shift.
fn last_of(shift: u32) -> u64 {
    if shift + SHIFT >= u64::BITS { u64::MAX } else { (1 << (shift + SHIFT)) - 1 }
}

/// The shift of the level whose slots hold entries of this order.
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
