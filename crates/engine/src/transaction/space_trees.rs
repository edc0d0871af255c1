//! Moving block groups to a tree of their own and back, and free space from v1 caches to a tree
//! and back.
//!
//! Owns these conversions of [`Transactions`]. Each is the first change of a transaction, with
//! nothing pending before it, and is on disk with that transaction's commit or not at all.
//!
//! **Invariants**
//! - The feature bits change after the last edit. From then on the same commit keeps the new trees
//!   up to date, and writes the bits into the superblocks.
//! - Free space is that of the last commit's extent tree. The commit's delayed references then add
//!   the allocations and removals of this transaction itself.
//!
//! **Locks**: `commit`, the gate exclusively, then those of trees.
//!
//! Kernel counterparts: `btrfs_create_free_space_tree`, `btrfs_delete_free_space_tree`
//! (`fs/btrfs/free-space-tree.c`), `cleanup_free_space_cache_v1` (`fs/btrfs/free-space-cache.c`);
//! btrfs-progs' `tune/convert-bgt.c`.

use super::chunk_items::put_block_group;
use super::handle::{DataReference, Handle};
use super::start::Start;
use super::transaction::Transactions;
use super::whole_trees::{add_tree, remove_tree};
use crate::btree::Change;
use crate::errors::{Error, Result};
use crate::space::free_space_tree;
use crate::space::load::free_between_extents;
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::free_space_cache::FreeSpaceHeader;
use papilio_format::{FileOffset, InodeNumber, ItemType, Key, objectid};

/// Items of the free-space tree for which one item's metadata is reserved: so many fit a leaf with
/// small nodes.
const SMALL_ITEMS: u64 = 64;
/// The free-space tree's feature bits.
const FREE_SPACE_TREE: CompatRoFeatures =
    CompatRoFeatures::FREE_SPACE_TREE.union(CompatRoFeatures::FREE_SPACE_TREE_VALID);

impl Transactions {
    /// Moves the block groups from the extent tree to a block-group tree, or back, and commits.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or a block that cannot be read. The disk has the old state then.
    pub fn convert_block_groups(&self, to_own_tree: bool) -> Result<()> {
        let items = self.space().block_groups().len() as u64;
        self.change(Start::items(items).first(), |handle| {
            let groups = self.space().block_groups();
            let changes: Vec<_> =
                groups.iter().map(|group| put_block_group(group.range, group.used, group.flags)).collect();
            let live = self.live();
            let extent_tree = live.get(objectid::EXTENT_TREE)?;
            if to_own_tree {
                // Without its feature, such a tree is the rest of an attempt.
                if live.find(objectid::BLOCK_GROUP_TREE)?.is_some() {
                    remove_tree(handle, objectid::BLOCK_GROUP_TREE)?;
                }
                add_tree(handle, objectid::BLOCK_GROUP_TREE)?.edit(handle).apply(&changes)?;
                let removals: Vec<_> =
                    changes.iter().map(|change| Change::Remove { key: change.key() }).collect();
                extent_tree.edit(handle).apply(&removals)?;
            } else {
                extent_tree.edit(handle).apply(&changes)?;
                remove_tree(handle, objectid::BLOCK_GROUP_TREE)?;
            }
            self.change_compat_ro(CompatRoFeatures::BLOCK_GROUP_TREE, to_own_tree);
            Ok(())
        })?;
        self.commit()
    }

    /// Builds the free-space tree and removes v1 caches, and commits.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or a block that cannot be read. The disk has the old state then.
    pub fn create_free_space_tree(&self) -> Result<()> {
        let (groups, ranges) = self.count_free_space()?;
        self.change(Start::items(groups + ranges / SMALL_ITEMS).first(), |handle| {
            let groups = self.space().block_groups();
            if self.live().find(objectid::FREE_SPACE_TREE)?.is_some() {
                remove_tree(handle, objectid::FREE_SPACE_TREE)?;
            }
            remove_caches(handle)?;
            // The extent tree of the last commit: no change reaches it before this one's commit.
            let extent_tree = self.live().get(objectid::EXTENT_TREE)?.tree();
            let tree = add_tree(handle, objectid::FREE_SPACE_TREE)?;
            let geometry = self.volume().geometry();
            for group in &groups {
                let free = free_between_extents(&extent_tree, group.range, &geometry)?;
                free_space_tree::create(&mut tree.edit(handle), group.range, &free)?;
            }
            self.change_compat_ro(FREE_SPACE_TREE, true);
            Ok(())
        })?;
        self.commit()
    }

    /// Removes the free-space tree, and commits. The kernel then finds free space by the extent
    /// tree, or makes v1 caches.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or a block that cannot be read. The disk has the old state then.
    pub fn remove_free_space_tree(&self) -> Result<()> {
        self.change(Start::items(1).first(), |handle| {
            remove_tree(handle, objectid::FREE_SPACE_TREE)?;
            self.change_compat_ro(FREE_SPACE_TREE, false);
            Ok(())
        })?;
        self.commit()
    }

    /// Counts the block groups and the ranges of free space.
    fn count_free_space(&self) -> Result<(u64, u64)> {
        let tree = self.live().get(objectid::EXTENT_TREE)?.tree().pinned(self.pin());
        let geometry = self.volume().geometry();
        self.space().block_groups().iter().try_fold((0, 0), |(groups, ranges), group| {
            let free = free_between_extents(&tree, group.range, &geometry)?;
            Ok((groups + 1, ranges + free.len() as u64))
        })
    }

    fn change_compat_ro(&self, features: CompatRoFeatures, on: bool) {
        let mut all = self.volume().geometry().compat_ro;
        all.set(features, on);
        self.volume().set_compat_ro(all);
    }
}

/// Removes the v1 free-space caches: items of the root tree, the files that they name, and the
/// files' extents.
fn remove_caches(handle: &Handle<'_>) -> Result<()> {
    let root_tree = handle.transactions().live().root_tree();
    let tree = root_tree.tree();
    let fault = |key, reason| Error::Item { tree: objectid::ROOT_TREE, key, reason };
    let mut headers = Vec::new();
    let mut files = Vec::new();
    for item in tree.range(Key::first_of(objectid::FREE_SPACE)..=Key::last_of(objectid::FREE_SPACE)) {
        let item = item?;
        let header = FreeSpaceHeader::parse(item.data())
            .and_then(|header| header.validate().map(|()| header))
            .map_err(|reason| fault(item.key, reason))?;
        headers.push(item.key);
        files.push(header.location.objectid);
    }
    files.sort_unstable();
    files.dedup();
    for &file in &files {
        for item in tree.range(Key::first_of(file)..=Key::last_of(file)) {
            let item = item?;
            if item.key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = FileExtentItem::parse(item.data()).map_err(|reason| fault(item.key, reason))?;
            let (FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)) = extent.content
            else {
                continue;
            };
            if !part.is_hole() {
                handle.drop_data_ref(&DataReference {
                    address: part.disk_address,
                    length: part.disk_length,
                    tree: objectid::ROOT_TREE,
                    inode: InodeNumber(file),
                    offset: FileOffset(item.key.offset.wrapping_sub(part.offset)),
                })?;
            }
        }
    }
    drop(tree);
    let mut editor = root_tree.edit(handle);
    for &file in &files {
        for item_type in [ItemType::INODE_ITEM, ItemType::EXTENT_DATA] {
            let key = |offset| Key::new(file, item_type, offset);
            editor.remove_range(key(0)..=key(u64::MAX))?;
        }
    }
    headers.into_iter().try_for_each(|key| editor.remove(key).map(drop))
}
