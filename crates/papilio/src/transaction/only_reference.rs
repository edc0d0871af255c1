//! Whether an extent is one file's alone.
//!
//! Owns [`Transactions::is_only_reference`], which the decision to overwrite data in place rests on, and
//! [`Transactions::has_data_extent`]. What the
//! extent tree says counts together with what waits to be told to it. Locks: the gate, shared, so that no
//! commit is in the middle of telling. Kernel counterpart: `btrfs_cross_ref_exist`
//! (`fs/btrfs/extent-tree.c`).

use super::delayed_refs::ExtentKind;
use super::extent_items::extent_info;
use super::handle::DataReference;
use super::transaction::Transactions;
use crate::errors::Result;
use papilio_format::{Generation, LogicalAddress, objectid};

impl Transactions {
    /// Whether the extent tree, as it is on disk or in memory, has this data extent. What waits to be told to
    /// it does not count.
    ///
    /// # Errors
    /// A block or an item of the extent tree that cannot be read.
    pub(crate) fn has_data_extent(&self, address: LogicalAddress, length: u64) -> Result<bool> {
        let tree = self.live.get(objectid::EXTENT_TREE)?.tree();
        Ok(extent_info(&tree, address, length, ExtentKind::Data)?.is_some())
    }

    /// Whether nothing refers to an extent but extent items of the inode that `reference` names, at the same
    /// distance from the extent's start. An extent that is no younger than `last_snapshot`, the generation of
    /// its subvolume's last snapshot, may be referred to by shared tree blocks, and counts as shared.
    ///
    /// Not to be called with a handle held.
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
        let info = extent_info(&tree, reference.address, reference.length, ExtentKind::Data)?;
        Ok(info.is_some_and(|info| {
            info.header.generation > last_snapshot && info.inline_count(&key) == info.header.refs
        }))
    }
}
