//! Undeletes a subvolume: its tree is still where an older root tree says, and becomes a subvolume
//! again.
//!
//! Owns [`Remains`], the rest of the tree, and [`Remains::revive`]. Nothing is copied: the
//! blocks and the data extents are taken into use where they lie. The space trees are written anew
//! by the next round.
//!
//! **Rules**
//! - A block counts if it is what the pointer to it says, and no current tree has another use for
//!   its place. A block that a current tree shares is whole, with everything below it.
//! - Data counts if no current extent has its place, and the checksums of the older state match.
//!   An extent that exists since before the older state is still the same one.
//! - File extents whose data is lost become holes, and blocks that are lost leave the tree. Both
//!   are losses.
//! - The subvolume gets its old id, or the next free one if another subvolume has that by now.
//!
//! Kernel counterpart: none; `btrfs_drop_snapshot` (`fs/btrfs/extent-tree.c`) leaves the blocks of
//! a deleted tree as they are.

use super::super::check::damage::Damage;
use super::super::check::inventory::Inventory;
use super::changed::Changed;
use super::editor::{Editor, Items, current_superblock, refuse, root_item_keys};
use super::lost_found::{hang_subvolume, last_index};
use super::undelete_data::{DataUse, LostExtents, verify};
use crate::descent::children;
use papilio_engine::btree::{Forest, RootPointer, Tree, TreeBlock};
use papilio_engine::errors::Result;
use papilio_engine::items::trees::{Trees, root_pointer};
use papilio_engine::jobs::inode_paths::path_in_subvolume;
use papilio_engine::volume::Volume;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::orphan::orphan_key;
use papilio_format::items::qgroup::{QgroupStatus, QgroupStatusFlags};
use papilio_format::items::root::{RawRootItem, RootFlags, RootItem};
use papilio_format::items::root_ref::{RootRef, root_backref_key, root_ref_key};
use papilio_format::items::uuid_tree::{UuidItem, uuid_key};
use papilio_format::{
    Generation, InodeNumber, ItemType, Key, LogicalAddress, NodeExpectation, TreeId, Uuid, objectid,
};
use std::sync::Arc;

/// Bytes of the cache of tree blocks.
const CACHE_BYTES: usize = 32 << 20;
/// The first index of a directory's entries (`BTRFS_DIR_START_INDEX`).
const FIRST_INDEX: u64 = 2;
/// Bytes of checksums in one item, which fit into the smallest leaf.
const SUMS_IN_ITEM: usize = 1024;

/// A deleted subvolume's name.
struct Named {
    parent: TreeId,
    directory: InodeNumber,
    name: Vec<u8>,
}

/// The rest of a deleted subvolume.
pub(super) struct Remains {
    /// The older root tree's generation.
    generation: Generation,
    trees: Trees,
    tree: Tree,
    key_offset: u64,
    item: RawRootItem,
    named: Option<Named>,
    /// The blocks that no current tree has.
    blocks: Vec<LogicalAddress>,
    lost: Vec<Damage>,
    extents: LostExtents,
}

impl Remains {
    /// Reads the tree `id` as the root tree at `root_tree` has it.
    ///
    /// # Errors
    /// The older root tree, the root item or the root block cannot be read.
    pub(super) fn find(
        volume: &Arc<Volume>,
        inventory: &Inventory,
        id: TreeId,
        root_tree: LogicalAddress,
    ) -> Result<Self> {
        let forest = Forest::new(Arc::clone(volume), CACHE_BYTES);
        let root = forest.block(objectid::ROOT_TREE, &NodeExpectation::at(root_tree))?;
        if root.owner() != objectid::ROOT_TREE {
            return refuse(format!("block {root_tree} is no block of a root tree"));
        }
        let generation = root.generation();
        let pointer = RootPointer { address: root_tree, level: root.level(), generation: Some(generation) };
        let chunk_root = RootPointer { address: LogicalAddress(0), level: 0, generation: None };
        let trees = Trees::new(&forest, pointer, chunk_root);
        let (first, last) = root_item_keys(id);
        let Some(found) = trees.root_tree().range(first..=last).last().transpose()? else {
            return refuse(format!("the root tree at {root_tree} has no subvolume {id}"));
        };
        let Ok(item) = RootItem::parse(found.data()) else { return refuse("the root item is damaged") };
        let tree = forest.tree(id, root_pointer(&item));
        let mut named = None;
        for backref in
            trees.root_tree().range(root_backref_key(id, TreeId(0))..=root_backref_key(id, TreeId(u64::MAX)))
        {
            let backref = backref?;
            if let Ok(reference) = RootRef::parse(backref.data()) {
                let (directory, name) = (reference.directory, reference.name.to_vec());
                named = Some(Named { parent: TreeId(backref.key.offset), directory, name });
            }
        }
        let mut remains = Self {
            generation,
            trees,
            tree,
            key_offset: found.key.offset,
            item: item.into_raw(),
            named,
            blocks: Vec::new(),
            lost: Vec::new(),
            extents: LostExtents::default(),
        };
        remains.walk(inventory, id)?;
        Ok(remains)
    }

    /// Returns the blocks that have to stay as they are.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.iter().map(|address| address.0)
    }

    fn walk(&mut self, inventory: &Inventory, id: TreeId) -> Result<()> {
        let forest = Arc::clone(self.tree.forest());
        let mut used: Vec<(u64, u64)> = inventory.references.used_ranges().collect();
        used.sort_unstable();
        let in_use = |address: LogicalAddress| {
            let at = used.partition_point(|range| range.0 <= address.0);
            used[..at].iter().rev().take(1).any(|range| range.1 > address.0)
        };
        let root = self.tree.root();
        let expected = NodeExpectation {
            level: Some(root.level),
            generation: root.generation,
            owner: Some(id),
            ..NodeExpectation::at(root.address)
        };
        let mut next: Vec<(NodeExpectation, Option<Key>, Option<LogicalAddress>)> =
            vec![(expected, None, None)];
        while let Some((expected, bound, parent)) = next.pop() {
            let shared = inventory.seen.get(&expected.address);
            let generation = expected.generation;
            if shared.is_some_and(|seen| !seen.broken && Some(Generation(seen.generation)) == generation) {
                continue;
            }
            let read = match shared.is_none() && !in_use(expected.address) {
                true => forest.block(id, &expected).ok().filter(|block| block.stays_below(bound).is_ok()),
                false => None,
            };
            let Some(block) = read else {
                if parent.is_none() {
                    return refuse(format!("the root block of subvolume {id} was overwritten"));
                }
                self.lost.push(Damage {
                    tree: id,
                    item: Key::new(id.0, ItemType::ROOT_ITEM, self.key_offset),
                    parent,
                    key: expected.first_key.unwrap_or(Key::MIN),
                    bound,
                    address: expected.address,
                    level: expected.level.unwrap_or_default(),
                });
                continue;
            };
            self.blocks.push(block.address());
            if block.view().is_leaf() {
                self.note_extents(&block);
                continue;
            }
            let below = children(block.view(), 0..block.view().len(), bound, id);
            next.extend(below.map(|child| (child.expected, child.bound, Some(block.address()))));
        }
        Ok(())
    }

    fn note_extents(&mut self, leaf: &TreeBlock) {
        let view = leaf.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let Ok(item) = FileExtentItem::parse(view.item(slot)) else { continue };
            let (part, is_written) = match item.content {
                FileExtentContent::Regular(part) => (part, true),
                FileExtentContent::Prealloc(part) => (part, false),
                FileExtentContent::Inline(_) => continue,
            };
            if part.is_hole() {
                continue;
            }
            // A part of a compressed extent needs all of it.
            let (start, length) = match item.compression {
                Compression::None => (part.disk_address.0.saturating_add(part.offset), part.length),
                _ => (part.disk_address.0, part.disk_length),
            };
            let needed = if is_written { start..start.saturating_add(length) } else { start..start };
            let file_extent = DataUse { key, length: part.length, needed };
            self.extents.add(part.disk_address, part.disk_length, file_extent);
        }
    }

    /// Makes the tree a subvolume. Returns its id with the lines about it.
    ///
    /// # Errors
    /// The file system has a log of fsyncs, or simple quotas; the subvolume was not deleted; lack
    /// of space; failures of a device.
    pub(super) fn revive(mut self, editor: &Editor<'_>, inventory: &Inventory) -> Result<(TreeId, Changed)> {
        let raw = current_superblock(editor.volume)?;
        if raw.log_root.0 != 0 {
            return refuse("the file system has a log of fsyncs: mount it once");
        }
        let id = self.free_id(editor)?;
        let mut changed = Changed::default();
        doubt_quotas(editor, inventory)?;
        self.put_root_item(editor, id)?;
        self.drop_lost_blocks(editor, id, &mut changed)?;
        let sums = self.check_data(editor, inventory, id, &mut changed)?;
        put_sums(editor, sums)?;
        self.put_names(editor, inventory, id)?;
        let what = format!(
            "make subvolume {id} of {} blocks of the tree that commit {} had",
            self.blocks.len(),
            self.generation
        );
        changed.changes.push(what);
        Ok((id, changed))
    }

    /// Returns the id for the subvolume, and removes what is left of its deletion.
    fn free_id(&self, editor: &Editor<'_>) -> Result<TreeId> {
        let id = self.tree.id();
        let roots = objectid::ROOT_TREE;
        let (first, last) = root_item_keys(id);
        let items = editor.items(roots, &first, &last)?;
        let Some((_, data)) = items.last() else { return Ok(id) };
        let Ok(present) = RootItem::parse(data) else { return refuse("the present root item is damaged") };
        if present.is_dead() {
            // The deletion ends here: the older root leads to everything that it has not freed.
            let orphan = orphan_key(id.0);
            editor.replace(roots, &orphan, &orphan, Items::new())?;
            editor.replace(roots, &first, &last, Items::new())?;
            return Ok(id);
        }
        if present.uuid == self.item.uuid {
            return refuse(format!("subvolume {id} was not deleted"));
        }
        let last = Key::new(objectid::LAST_FREE, ItemType(u8::MAX), u64::MAX);
        let highest = editor.last_before(roots, &last)?.map_or(id.0, |key| key.objectid);
        match highest.max(objectid::FIRST_FREE) + 1 {
            next if next <= objectid::LAST_FREE => Ok(TreeId(next)),
            _ => refuse("there is no free subvolume id"),
        }
    }

    fn put_root_item(&self, editor: &Editor<'_>, id: TreeId) -> Result<()> {
        let item = RawRootItem {
            refs: 1,
            flags: self.item.flags.intersection(RootFlags::RDONLY),
            drop_progress: Key::MIN,
            drop_level: 0,
            ..self.item
        };
        let key = Key::new(id.0, ItemType::ROOT_ITEM, self.key_offset);
        editor.put(objectid::ROOT_TREE, key, RootItem::new(item).to_bytes().to_vec()).map(drop)
    }

    fn drop_lost_blocks(&mut self, editor: &Editor<'_>, id: TreeId, changed: &mut Changed) -> Result<()> {
        for mut damage in std::mem::take(&mut self.lost) {
            let Some(parent) = damage.parent else { continue };
            let path = editor.path_to(id, &damage.key, parent)?;
            editor.remove_child(id, &path)?;
            let until = damage.bound.map_or_else(|| "the end".to_owned(), |bound| bound.to_string());
            changed.losses.push(format!("subvolume {id}: all items from {} to {until}", damage.key));
            damage.tree = id;
            changed.lost_parts.push(damage);
        }
        Ok(())
    }

    /// Verifies the data, and gives lost file extents a hole. Returns the checksums to add, by
    /// address.
    fn check_data(
        &mut self,
        editor: &Editor<'_>,
        inventory: &Inventory,
        id: TreeId,
        changed: &mut Changed,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let forest = Arc::clone(self.tree.forest());
        let mut sum_trees: Vec<Tree> = Vec::new();
        sum_trees.extend(self.trees.find(objectid::CSUM_TREE)?.map(|open| open.tree.clone()));
        // Later commits may still have checksums that were overwritten in the older state.
        let raw = current_superblock(editor.volume)?;
        sum_trees.extend(raw.super_roots.iter().filter(|backup| backup.csum_root.0 != 0).map(|backup| {
            let (address, level) = (backup.csum_root, backup.csum_root_level);
            forest.tree(
                objectid::CSUM_TREE,
                RootPointer { address, level, generation: Some(backup.csum_root_generation) },
            )
        }));
        let extents = std::mem::take(&mut self.extents);
        let outcome =
            verify(editor.volume, &inventory.references, &extents, &sum_trees, self.generation, &self.tree);
        for (key, length, why) in outcome.lost {
            editor.put(id, key, hole(self.generation, length))?;
            changed.losses.push(format!(
                "{}: {length} bytes at {}: {why}",
                self.name_of(InodeNumber(key.objectid)),
                key.offset
            ));
        }
        for (inode, length) in outcome.unverified {
            let name = self.name_of(inode);
            changed.losses.push(format!("{name}: nothing verifies {length} bytes, as it has no checksums"));
        }
        Ok(outcome.sums)
    }

    /// Returns the path of an inode in the subvolume.
    fn name_of(&self, inode: InodeNumber) -> String {
        match path_in_subvolume(&self.tree, inode, objectid::FIRST_INODE) {
            Ok(Some(path)) => format!("/{}", String::from_utf8_lossy(&path)),
            _ => format!("inode {inode}"),
        }
    }

    /// Writes the references between the subvolume and its parent, the entries of its directory,
    /// and its UUIDs.
    fn put_names(&self, editor: &Editor<'_>, inventory: &Inventory, id: TreeId) -> Result<()> {
        let has_tree = |tree: TreeId| inventory.roots.iter().any(|root| root.id == tree);
        let named = self.named.as_ref().filter(|named| has_tree(named.parent));
        let fallback = Named {
            parent: objectid::FS_TREE,
            directory: objectid::FIRST_INODE,
            name: format!("undeleted-{}", self.tree.id()).into_bytes(),
        };
        let Named { parent, directory, name } = named.unwrap_or(&fallback);
        let last = last_index(editor, *parent, directory.0)?;
        let sequence = last.map_or(FIRST_INDEX, |last| last.saturating_add(1)).max(FIRST_INDEX);
        let reference = RootRef { directory: *directory, sequence, name }.to_bytes();
        editor.put(objectid::ROOT_TREE, root_ref_key(*parent, id), reference.clone())?;
        editor.put(objectid::ROOT_TREE, root_backref_key(id, *parent), reference)?;
        hang_subvolume(editor, *parent, id)?;
        if has_tree(objectid::UUID_TREE) {
            add_uuid(editor, self.item.uuid, ItemType::UUID_SUBVOL, id)?;
            add_uuid(editor, self.item.received_uuid, ItemType::UUID_RECEIVED_SUBVOL, id)?;
        }
        Ok(())
    }
}

fn add_uuid(editor: &Editor<'_>, uuid: Uuid, kind: ItemType, id: TreeId) -> Result<()> {
    if uuid.is_nil() {
        return Ok(());
    }
    let key = uuid_key(uuid, kind);
    let present = editor.item(objectid::UUID_TREE, &key)?.unwrap_or_default();
    let mut ids: Vec<TreeId> =
        UuidItem::parse(&present).map(|item| item.subvolumes().collect()).unwrap_or_default();
    if !ids.contains(&id) {
        ids.push(id);
    }
    editor.put(objectid::UUID_TREE, key, UuidItem::encode(&ids)).map(drop)
}

/// Returns a file extent without data.
fn hole(generation: Generation, length: u64) -> Vec<u8> {
    let part = ExtentPart { disk_address: LogicalAddress(0), disk_length: 0, offset: 0, length };
    FileExtentItem {
        generation,
        ram_bytes: length,
        compression: Compression::None,
        other_encoding: 0,
        content: FileExtentContent::Regular(part),
    }
    .to_bytes()
}

/// Adds checksums to the checksum tree.
fn put_sums(editor: &Editor<'_>, sums: Vec<(u64, Vec<u8>)>) -> Result<()> {
    let geometry = editor.volume.geometry();
    let (sector, size) = (u64::from(geometry.sector_size), geometry.checksum_type.size());
    let most = (SUMS_IN_ITEM / size).max(1) * size;
    for (start, bytes) in sums {
        for (number, part) in bytes.chunks(most).enumerate() {
            let at = start + (number * most / size) as u64 * sector;
            let key = Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at);
            editor.put(objectid::CSUM_TREE, key, part.to_vec())?;
        }
    }
    Ok(())
}

/// Marks the numbers of quotas as wrong until a rescan.
fn doubt_quotas(editor: &Editor<'_>, inventory: &Inventory) -> Result<()> {
    if !inventory.roots.iter().any(|root| root.id == objectid::QUOTA_TREE) {
        return Ok(());
    }
    let key = Key::new(0, ItemType::QGROUP_STATUS, 0);
    let Some(data) = editor.item(objectid::QUOTA_TREE, &key)? else { return Ok(()) };
    let Ok(mut status) = QgroupStatus::parse(&data) else { return refuse("the state of quotas is damaged") };
    if status.header.flags.contains(QgroupStatusFlags::SIMPLE_MODE) {
        return refuse("simple quotas know no owner of the extents: turn them off first");
    }
    status.header.flags = status.header.flags.union(QgroupStatusFlags::INCONSISTENT);
    editor.put(objectid::QUOTA_TREE, key, status.to_bytes().to_vec()).map(drop)
}
