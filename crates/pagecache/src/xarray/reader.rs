//! Look-up without a lock, beside a writer.
//!
//! Owns what a reader may believe. A look-up that races with a change may find nothing where something is, or an entry of
//! another index or of another array of the same pool (when a node was freed and used anew under it); it never
//! touches memory that is not a node and always ends. So whoever finds something confirms it by what was found (a
//! folio knows its mapping and index), and whoever finds nothing looks again under the writer's lock where it matters.
//! Without a race the answer is right.
//!
//! The kernel's counterpart is a walk under `rcu_read_lock`, where RCU keeps freed nodes from being used anew.

use super::entry::{Entry, Slot};
use super::node::{NodePool, SLOTS};
use super::{Root, last_of};
use std::sync::Arc;

/// A look-up into an [`super::XArray`] without its lock. See the module's documentation for what it may be trusted for.
#[derive(Clone)]
pub struct Reader {
    root: Arc<Root>,
    pool: Arc<NodePool>,
}

impl Reader {
    pub(super) fn new(root: Arc<Root>, pool: Arc<NodePool>) -> Self {
        Self { root, pool }
    }

    /// What is at `index`, to be confirmed.
    #[inline]
    pub fn load(&self, index: u64) -> Option<Entry> {
        self.root.load(&self.pool, index)
    }

    /// Begins to load what changing the entry at `index` takes.
    #[inline]
    pub(crate) fn prefetch(&self, index: u64) {
        self.root.prefetch(&self.pool, index);
    }
}

impl Root {
    /// Goes down as [`Root::load`] does to the lowest node, and does not wait for what it has there.
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
                // Levels only go down; a node used anew elsewhere must not lead a reader in circles.
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
