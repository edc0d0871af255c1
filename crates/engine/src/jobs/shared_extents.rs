//! Whether a file is the only user of its extents.
//!
//! Owns [`SharedExtents`]. An extent is shared if the extent tree has a second reference to it, as
//! the kernel's FIEMAP means it: from another subvolume, another inode, or another offset of the
//! same file. The parts of an extent that a write inside it has left are one reference.
//!
//! **Invariants**
//! - The answer is that of the extent tree: references that are still delayed do not count.
//!   `FileSystem::shared_extents` commits first.
//! - An extent with one reference that is younger than its subvolume's last snapshot belongs to one
//!   file. All others are looked up once, whichever files ask.
//!
//! **Locks:** none.
//!
//! Kernel counterpart: `btrfs_is_data_extent_shared` (`fs/btrfs/backref.c`).

use crate::data::{FileExtent, FileExtentKind};
use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::items::item_error;
use crate::jobs::extent_owners::{ExtentReference, extent_references};
use papilio_format::items::extent::ExtentItem;
use papilio_format::{Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Answers whether extents are shared, and remembers the answers.
pub struct SharedExtents {
    info: Arc<FsInfo>,
    /// Two references to each extent, if there are two.
    references: HashMap<LogicalAddress, Vec<ExtentReference>>,
    last_snapshots: HashMap<TreeId, Generation>,
}

impl SharedExtents {
    /// Starts with no extent looked up.
    pub fn new(info: Arc<FsInfo>) -> Self {
        Self { info, references: HashMap::new(), last_snapshots: HashMap::new() }
    }

    /// Returns whether an extent of a file of the subvolume `tree` has a reference besides the
    /// file's own one there. Inline data is never shared.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn is_shared(&mut self, tree: TreeId, inode: InodeNumber, extent: &FileExtent) -> Result<bool> {
        if extent.kind == FileExtentKind::Inline || self.has_one_reference(tree, extent)? {
            return Ok(false);
        }
        let own = (tree, inode, extent.start.0.wrapping_sub(extent.offset));
        let known = match self.references.entry(extent.address) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(extent_references(&self.info.trees, extent.address, 2)?),
        };
        Ok(known.iter().any(|reference| *reference != own))
    }

    /// Returns whether an extent has one reference, and no snapshot shares the leaf that holds it.
    fn has_one_reference(&mut self, tree: TreeId, extent: &FileExtent) -> Result<bool> {
        let last_snapshot = match self.last_snapshots.get(&tree) {
            Some(known) => *known,
            None => {
                let found = self.info.trees.subvolume(tree)?.item().last_snapshot;
                self.last_snapshots.insert(tree, found);
                found
            }
        };
        if extent.generation <= last_snapshot {
            return Ok(false);
        }
        let extents = self.info.trees.get(objectid::EXTENT_TREE, "the extent tree")?;
        let key = Key::new(extent.address.0, ItemType::EXTENT_ITEM, extent.stored);
        let Some(item) = extents.tree.get(&key)? else { return Ok(false) };
        let parsed = ExtentItem::parse(key.item_type, item.data())
            .map_err(|reason| item_error(&extents.tree, &item, reason))?;
        Ok(parsed.header.refs == 1)
    }
}
