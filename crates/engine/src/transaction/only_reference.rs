//! Whether one file alone refers to an extent.
//!
//! Owns [`Transactions::is_only_reference`], which decides whether data may be overwritten in
//! place, and [`Transactions::has_data_extent`]. The extent tree and the delayed references count
//! together.
//!
//! Locks: the gate, shared, so that no commit is applying delayed references meanwhile.
//!
//! Kernel counterpart: `btrfs_cross_ref_exist` (`fs/btrfs/extent-tree.c`).

use super::delayed_refs::RefKind;
use super::extent_items::extent_info;
use super::handle::DataReference;
use super::transaction::Transactions;
use crate::errors::Result;
use papilio_format::{Generation, LogicalAddress, objectid};

impl Transactions {
    /// Returns whether the extent tree, in memory or on disk, has this data extent. Delayed
    /// references do not count.
    ///
    /// # Errors
    /// A block or an item of the extent tree that cannot be read.
    pub(crate) fn has_data_extent(&self, address: LogicalAddress, length: u64) -> Result<bool> {
        let tree = self.live.get(objectid::EXTENT_TREE)?.tree();
        Ok(extent_info(&tree, address, length, RefKind::Data)?.is_some())
    }

    /// Returns whether all references to an extent are those of `reference`: extent items of one
    /// inode, at the same distance from the extent's start. An extent that is not younger than
    /// `last_snapshot`, the generation of its subvolume's last snapshot, counts as shared, because
    /// shared tree blocks may refer to it.
    ///
    /// The caller holds no handle.
    ///
    /// # Errors
    /// A block or an item of the extent tree that cannot be read.
    pub(crate) fn is_only_reference(
        &self,
        reference: &DataReference,
        last_snapshot: Generation,
    ) -> Result<bool> {
        let _gate = self.gate.read();
        let key = reference.key();
        if let Some(head) = self.refs.pending_head(reference.address) {
            if head.changes.iter().any(|(other, _)| *other != key) {
                return Ok(false);
            }
            if head.new {
                return Ok(head.generation > last_snapshot);
            }
        }
        let pin = self.pin();
        let tree = self.live.get(objectid::EXTENT_TREE)?.tree().pinned(pin);
        let info = extent_info(&tree, reference.address, reference.length, RefKind::Data)?;
        Ok(info.is_some_and(|info| {
            info.header.generation > last_snapshot && info.inline_count(&key) == info.header.refs
        }))
    }
}
