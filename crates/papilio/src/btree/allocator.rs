//! Where tree blocks come from and go to.
//!
//! Owns [`NodeAllocator`]: a tree needs space to change, and space is kept in trees. The trait cuts that
//! loop: an implementation only notes what happened (a delayed reference) and never changes a tree.

use super::{LiveTree, TreeBlock};
use crate::errors::Result;
use papilio_format::{Generation, Key, LogicalAddress};

/// Gives and takes back the blocks that trees are made of.
pub(crate) trait NodeAllocator {
    /// The running transaction.
    fn generation(&self) -> Generation;

    /// The clock of freezes: what is made now bears it, and a freeze moves it on.
    fn stamp(&self) -> u64;

    /// A place for a new block of `tree`, whose reference to it is noted.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`].
    fn allocate(&self, tree: &LiveTree, level: u8, first_key: &Key) -> Result<LogicalAddress>;

    /// `tree` does not refer to `block` any more.
    ///
    /// # Errors
    /// References that cannot be read.
    fn free(&self, tree: &LiveTree, block: &TreeBlock) -> Result<()>;

    /// `new` takes the place of `old` in `tree`, which does not refer to `old` any more. Where others
    /// share `old`, what it points to gains references.
    ///
    /// # Errors
    /// References that cannot be read.
    fn copied(&self, tree: &LiveTree, old: &TreeBlock, new: &TreeBlock) -> Result<()>;

    /// Whether all that [`NodeAllocator::copied`] does of an old block is what [`NodeAllocator::free`] does: then a
    /// block that nobody else holds is not copied in memory, but given its new place.
    fn moves(&self) -> bool {
        false
    }

    /// Something of a tree was changed, so that an error from here on leaves it half done. Copying a
    /// block alone is no such change.
    fn changed(&self) {}
}
