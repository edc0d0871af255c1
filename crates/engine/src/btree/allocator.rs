//! Allocation of tree blocks.
//!
//! Owns [`NodeAllocator`]. Changing a tree needs space, and space is recorded in trees. The trait
//! breaks this loop: an implementation only records events (as delayed refs) and never changes a
//! tree itself.

use super::block::TreeBlock;
use super::live::LiveTree;
use crate::errors::Result;
use papilio_format::{Generation, Key, LogicalAddress};

/// Allocates and frees the blocks of trees.
pub trait NodeAllocator {
    /// Returns the generation of the running transaction.
    fn generation(&self) -> Generation;

    /// Returns the current stamp of the freeze clock. New blocks get this stamp; every freeze
    /// advances the clock.
    fn stamp(&self) -> u64;

    /// Allocates an address for a new block of `tree` and records its reference.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`].
    fn allocate(&self, tree: &LiveTree, level: u8, first_key: &Key) -> Result<LogicalAddress>;

    /// Records that `tree` no longer refers to `block`.
    ///
    /// # Errors
    /// Fails if references cannot be read.
    fn free(&self, tree: &LiveTree, block: &TreeBlock) -> Result<()>;

    /// Records that `new` replaces `old` in `tree`, which no longer refers to `old`. If other trees
    /// share `old`, its children gain references.
    ///
    /// # Errors
    /// Fails if references cannot be read.
    fn copied(&self, tree: &LiveTree, old: &TreeBlock, new: &TreeBlock) -> Result<()>;

    /// Returns whether [`NodeAllocator::copied`] does nothing beyond [`NodeAllocator::free`]. If
    /// so, a block without other holders is not copied in memory but moved to its new address.
    fn moves(&self) -> bool {
        false
    }

    /// Records that a tree's contents have changed, so that a later error leaves it half changed.
    /// Copying a block is not such a change.
    fn changed(&self) {}
}
