//! New trees: an empty one, or a snapshot, which is a copy of another tree's root.
//!
//! Owns [`Handle::new_tree`] and [`Handle::snapshot_tree`]. A snapshot takes constant time: it
//! copies the root block and adds a reference to each of the root's children.
//!
//! Locks: the caller holds the source's writer lock.
//!
//! Kernel counterparts: `create_subvol` (`fs/btrfs/ioctl.c`), `create_pending_snapshot`
//! (`fs/btrfs/transaction.c`), `btrfs_copy_root` (`fs/btrfs/ctree.c`).

use super::handle::Handle;
use crate::btree::{BlockIdentity, LiveTree, NodeAllocator, RootRecord, TreeEditor, empty_root};
use crate::errors::Result;
use papilio_format::items::root::RawRootItem;
use papilio_format::{Key, TreeId};
use papilio_locks::in_order;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Handle<'_> {
    /// Creates an empty tree. The commit writes its root item.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or a block that cannot be read.
    pub(crate) fn new_tree(&self, id: TreeId, item: RawRootItem, key_offset: u64) -> Result<Arc<LiveTree>> {
        let live = self.transactions().live();
        let template = live.root_tree().tree().root_block()?;
        let tree = self.place_tree(id, item, key_offset, 0, |identity| empty_root(&template, identity))?;
        live.insert(Arc::clone(&tree));
        Ok(tree)
    }

    /// Makes a snapshot, with id `id`, of the tree that `editor` edits. `item` is the snapshot's
    /// root item. This function fills in its address, size and `last_snapshot`, and updates
    /// `last_snapshot` of the source.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or a block that cannot be read.
    pub(crate) fn snapshot_tree(
        &self,
        editor: &mut TreeEditor<'_>,
        id: TreeId,
        mut item: RawRootItem,
        key_offset: u64,
    ) -> Result<Arc<LiveTree>> {
        let source = editor.live();
        let root = editor.own_root()?;
        item.last_snapshot = self.generation();
        item.bytes_used = source.record().map_or(0, |record| record.item.bytes_used);
        let tree =
            self.place_tree(id, item, key_offset, root.level(), |identity| Arc::new(root.copy_as(identity)))?;
        self.change_child_refs(&root, id, None, 1)?;
        drop(root);
        // Neither tree may now change shared blocks in place, though this transaction made some of
        // them.
        let stamp = self.transactions().stamp.fetch_add(1, Ordering::AcqRel);
        editor.freeze(stamp);
        {
            let _order = in_order("a new tree's id is the highest");
            tree.freeze(stamp);
        }
        source.update_record(|record| record.item.last_snapshot = self.generation());
        self.transactions().live().insert(Arc::clone(&tree));
        Ok(tree)
    }

    /// Allocates the root block of a new tree and fills it by `make`.
    fn place_tree(
        &self,
        id: TreeId,
        item: RawRootItem,
        key_offset: u64,
        level: u8,
        make: impl FnOnce(&BlockIdentity) -> Arc<crate::btree::TreeBlock>,
    ) -> Result<Arc<LiveTree>> {
        let forest = self.transactions().live().forest();
        // The block is charged to a tree, so a stand-in tree has to exist before the block.
        let record = RootRecord { item, key_offset };
        let template = self.transactions().live().root_tree().tree().root_block()?;
        let nowhere = BlockIdentity {
            address: template.address(),
            generation: self.generation(),
            owner: id,
            stamp: self.stamp(),
        };
        let charged = LiveTree::of_block(forest, id, empty_root(&template, &nowhere), Some(record));
        let identity = BlockIdentity { address: self.allocate(&charged, level, &Key::MIN)?, ..nowhere };
        let root = make(&identity);
        let mut record = charged.record().expect("the stand-in tree was created with a record");
        record.item.bytes_used = item.bytes_used.max(self.transactions().node_size());
        Ok(Arc::new(LiveTree::of_block(forest, id, root, Some(record))))
    }
}
