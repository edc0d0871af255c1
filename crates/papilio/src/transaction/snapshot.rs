//! New trees: an empty one, and a snapshot, which is a copy of another tree's root.
//!
//! Owns [`Handle::new_tree`] and [`Handle::snapshot_tree`]. A snapshot takes constant time: its root
//! block is copied, and what the copy points to gains a reference. Locks: the source's writer lock is the
//! caller's.
//! Kernel counterparts: `create_subvol` (`fs/btrfs/ioctl.c`), `create_pending_snapshot`
//! (`fs/btrfs/transaction.c`), `btrfs_copy_root` (`fs/btrfs/ctree.c`).

use super::Handle;
use crate::btree::{BlockIdentity, LiveTree, NodeAllocator, RootRecord, TreeEditor, empty_root};
use crate::errors::Result;
use papilio_format::items::root::RawRootItem;
use papilio_format::{Key, TreeId};
use papilio_locks::in_order;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Handle<'_> {
    /// A new tree without items. Its root item is written by the commit.
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

    /// A snapshot of the tree that `editor` holds, under the id `id`. `item` says what the snapshot's root
    /// item is to be; where its root lies, its size and `last_snapshot` are filled in here, those of the
    /// source too.
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
        // What both share is not changed in place any more, though it was made in this transaction.
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

    fn place_tree(
        &self,
        id: TreeId,
        item: RawRootItem,
        key_offset: u64,
        level: u8,
        make: impl FnOnce(&BlockIdentity) -> Arc<crate::btree::TreeBlock>,
    ) -> Result<Arc<LiveTree>> {
        let forest = self.transactions().live().forest();
        // The tree that the block is charged to has to be there before the block.
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
        let mut record = charged.record().expect("it has one");
        record.item.bytes_used = item.bytes_used.max(self.transactions().node_size());
        Ok(Arc::new(LiveTree::of_block(forest, id, root, Some(record))))
    }
}
