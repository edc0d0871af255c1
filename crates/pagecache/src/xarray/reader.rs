//! Lookup without a lock, concurrent with a writer.
//!
//! Owns the guarantees to readers:
//! - A lookup that races with a change may miss an entry. It may also return an entry of another
//!   index, or of another array of the same pool if a node was released and reused meanwhile.
//! - It never touches memory that is not a node, and it always terminates.
//! - So a reader verifies an entry by the object it names: a folio knows its mapping and index. If
//!   a miss matters, the reader looks again under the writer's lock.
//! - Without a race the result is exact.
//!
//! Kernel counterpart: a walk under `rcu_read_lock`, where RCU prevents the reuse of freed nodes.

use super::entry::{Entry, Raw, Slot};
use super::node::{NodePool, SLOTS, last_of};
use crate::sync::AtomicU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The part of the array that readers share.
pub(super) struct Root {
    /// Empty, one entry at index 0, or the top node.
    head: AtomicU64,
}

/// A handle for lookups in an [`super::XArray`] without its lock. See the module's documentation
/// for the guarantees.
#[derive(Clone)]
pub struct Reader {
    root: Arc<Root>,
    pool: Arc<NodePool>,
}

impl Reader {
    pub(super) fn new(root: Arc<Root>, pool: Arc<NodePool>) -> Self {
        Self { root, pool }
    }

    /// Returns the entry at `index`, to be verified by the caller.
    #[inline]
    pub fn load(&self, index: u64) -> Option<Entry> {
        self.root.load(&self.pool, index)
    }

    /// Starts loading the cache lines that a change of the entry at `index` touches.
    #[inline]
    pub(crate) fn prefetch(&self, index: u64) {
        self.root.prefetch(&self.pool, index);
    }
}

impl Root {
    pub fn new() -> Self {
        Self { head: AtomicU64::new(0) }
    }

    #[inline]
    pub fn head(&self) -> Raw {
        Raw(self.head.load(Acquire))
    }

    pub fn set_head(&self, raw: Raw) {
        self.head.store(raw.0, Release);
    }

    /// Descends like [`Root::load`] to the lowest node, and does not wait for its cache lines.
    fn prefetch(&self, pool: &NodePool, index: u64) {
        let Slot::Node { mut id, mut shift } = self.head().slot() else { return };
        while shift > 0 {
            match pool.node(id).slot((index >> shift) as u32 & (SLOTS - 1)).slot() {
                Slot::Node { id: child, shift: below } if below < shift => (id, shift) = (child, below),
                _ => break,
            }
        }
        pool.node(id).prefetch((index >> shift) as u32 & (SLOTS - 1));
    }

    #[inline]
    pub(super) fn load(&self, pool: &NodePool, index: u64) -> Option<Entry> {
        let (mut id, mut shift) = match self.head().slot() {
            Slot::Node { id, shift } => (id, shift),
            Slot::Entry(entry) if index == 0 => return Some(entry),
            _ => return None,
        };
        if index > last_of(shift) {
            return None;
        }
        loop {
            let node = pool.node(id);
            let mut slot = node.slot((index >> shift) as u32 & (SLOTS - 1)).slot();
            if let Slot::Sibling(of) = slot {
                slot = node.slot(of).slot();
            }
            match slot {
                Slot::Entry(entry) => return Some(entry),
                // Levels only decrease: a reused node must not send a reader in circles.
                Slot::Node { id: child, shift: below } if below < shift => (id, shift) = (child, below),
                _ => return None,
            }
        }
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}
