//! Single changes of a file system that its owner asks for: caches and trees that the kernel
//! rebuilds are removed, sizes of devices and checksums of data made right.
//!
//! Owns [`RescueChange`]. A change is made on the editor of a repair, so an undo file takes it back
//! and no transaction is made. The remedies of the next rounds free the space that a removed tree
//! had.
//!
//! **Invariant**: only the remedies that a change needs are applied; other faults stay.
//!
//! Userspace counterpart: `btrfs rescue`.

use super::super::check::inventory::Inventory;
use super::super::check::remedy::{Remedy, SuperblockField};
use super::super::check::{CheckReport, FindingKind};
use super::changed::Changed;
use super::editor::{
    Editor, Items, RoundContext, current_superblock, refuse, root_item_keys, write_superblock,
};
use super::undelete::Remains;
use papilio_engine::errors::Result;
use papilio_engine::volume::Volume;
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::free_space_cache::FreeSpaceHeader;
use papilio_format::{ItemType, Key, LogicalAddress, TreeId, objectid};
use std::sync::Arc;

/// A change of one structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RescueChange {
    /// Removes the v1 free-space caches.
    ClearSpaceCache,
    /// Removes the free-space tree, unless a block-group tree needs it.
    ClearFreeSpaceTree,
    /// Removes the UUID tree, which the kernel makes anew.
    ClearUuidTree,
    /// Removes the caches of free inode numbers that kernels before 5.11 could write.
    ClearInodeCache,
    /// Aligns the sizes of devices, and sets the superblock's size to their sum.
    FixDeviceSize,
    /// Sets the checksum of each data sector that no copy matches to that of a copy.
    FixDataChecksum {
        /// The copy, from 0; without one, all copies of a sector must be the same.
        mirror: Option<usize>,
    },
    /// Writes a chunk tree that a scan made, if the present one cannot be read.
    WriteChunkTree,
    /// Makes a deleted subvolume one again, as far as its blocks and its data stand.
    Undelete {
        /// The id that it had.
        tree: TreeId,
        /// The address of an older root tree that has it.
        root_tree: LogicalAddress,
    },
}

impl RescueChange {
    /// Whether the check must verify data.
    #[doc(hidden)]
    pub fn needs_data(self) -> bool {
        matches!(self, Self::FixDataChecksum { .. })
    }

    /// Whether a shared block must not change for all its trees.
    pub(super) fn keeps_apart(self) -> bool {
        matches!(self, Self::Undelete { .. })
    }

    /// Returns blocks that nothing uses and that the change needs.
    pub(super) fn reserved(self, volume: &Arc<Volume>, inventory: &Inventory) -> Vec<u64> {
        let Self::Undelete { tree, root_tree } = self else { return Vec::new() };
        // The change itself reports the error.
        Remains::find(volume, inventory, tree, root_tree)
            .map_or_else(|_| Vec::new(), |remains| remains.blocks().collect())
    }

    /// Whether the change needs a remedy, or the space that it freed does.
    pub(super) fn allows(self, remedy: &Remedy) -> bool {
        let space = |tree: &TreeId| {
            matches!(*tree, objectid::EXTENT_TREE | objectid::FREE_SPACE_TREE | objectid::BLOCK_GROUP_TREE)
        };
        match (self, remedy) {
            (Self::FixDataChecksum { .. }, _) => false,
            (Self::WriteChunkTree, Remedy::Replace { tree, .. }) => {
                space(tree) || matches!(*tree, objectid::CHUNK_TREE | objectid::DEV_TREE)
            }
            (Self::WriteChunkTree, Remedy::Superblock(_)) => true,
            (Self::FixDeviceSize, Remedy::Replace { tree, first, .. }) => {
                *tree == objectid::CHUNK_TREE && first.item_type == ItemType::DEV_ITEM
            }
            (Self::FixDeviceSize, Remedy::Superblock(field)) => {
                matches!(field, SuperblockField::TotalBytes(_) | SuperblockField::Copies)
            }
            (Self::FixDeviceSize, _) => false,
            (_, Remedy::Replace { tree, .. }) => space(tree),
            (_, Remedy::DropCsums { .. }) => true,
            (_, Remedy::Superblock(field)) => matches!(field, SuperblockField::BytesUsed(_)),
            _ => false,
        }
    }

    /// Makes the change.
    pub(super) fn make(
        self,
        volume: &Arc<Volume>,
        context: &RoundContext,
        inventory: &Inventory,
        report: &CheckReport,
    ) -> Result<Changed> {
        let editor = Editor::new(volume, context);
        match self {
            Self::ClearSpaceCache => clear_space_cache(&editor),
            Self::ClearFreeSpaceTree => clear_free_space_tree(&editor, inventory),
            Self::ClearUuidTree => {
                let dropped = drop_tree(&editor, inventory, objectid::UUID_TREE)?;
                Ok(Changed { changes: dropped.into_iter().collect(), ..Changed::default() })
            }
            Self::ClearInodeCache => clear_inode_cache(&editor, inventory),
            // The remedies of the check do it.
            Self::FixDeviceSize | Self::WriteChunkTree => Ok(Changed::default()),
            Self::FixDataChecksum { mirror } => fix_data(&editor, inventory, report, mirror),
            Self::Undelete { tree, root_tree } => {
                let remains = Remains::find(volume, inventory, tree, root_tree)?;
                let (id, mut changed) = remains.revive(&editor, inventory)?;
                changed.revived = Some(id);
                let features = current_superblock(volume)?.compat_ro_flags;
                if !features.contains(CompatRoFeatures::FREE_SPACE_TREE) {
                    // They count the subvolume's space as free.
                    changed.changes.extend(clear_space_cache(&editor)?.changes);
                }
                Ok(changed)
            }
        }
    }
}

/// Removes a tree from the root tree, if it exists.
fn drop_tree(editor: &Editor<'_>, inventory: &Inventory, tree: TreeId) -> Result<Option<String>> {
    if !inventory.roots.iter().any(|root| root.id == tree) {
        return Ok(None);
    }
    let (first, last) = root_item_keys(tree);
    editor.replace(objectid::ROOT_TREE, &first, &last, Items::new())?;
    Ok(Some(Remedy::DropTree(tree).to_string()))
}

fn clear_space_cache(editor: &Editor<'_>) -> Result<Changed> {
    let roots = objectid::ROOT_TREE;
    let key = |offset| Key::new(objectid::FREE_SPACE, ItemType(0), offset);
    let headers = editor.items(roots, &key(0), &key(u64::MAX))?;
    let count = headers.len();
    for (key, data) in headers {
        if let Ok(header) = FreeSpaceHeader::parse(&data)
            && header.validate().is_ok()
        {
            let inode = header.location.objectid;
            let (first, last) = inode_keys(inode);
            editor.replace(roots, &first, &last, Items::new())?;
        }
        editor.replace(roots, &key, &key, Items::new())?;
    }
    let mut raw = current_superblock(editor.volume)?;
    let mut changed = Changed::default();
    if count > 0 {
        changed.changes.push(format!("remove the v1 free-space caches of {count} block groups"));
    }
    if raw.cache_generation != u64::MAX {
        // No generation: a reader builds the caches anew.
        raw.cache_generation = u64::MAX;
        write_superblock(editor.volume, &raw)?;
        changed.changes.push("set the superblock's generation of caches to none".to_owned());
    }
    Ok(changed)
}

fn clear_free_space_tree(editor: &Editor<'_>, inventory: &Inventory) -> Result<Changed> {
    let mut raw = current_superblock(editor.volume)?;
    let features = raw.compat_ro_flags;
    if features.contains(CompatRoFeatures::BLOCK_GROUP_TREE) {
        return refuse("its block-group tree needs the free-space tree");
    }
    let both = CompatRoFeatures::FREE_SPACE_TREE.union(CompatRoFeatures::FREE_SPACE_TREE_VALID);
    raw.compat_ro_flags = features.difference(both);
    if raw.compat_ro_flags != features {
        // The flags go first: without them, a tree that is left is one that nothing uses.
        write_superblock(editor.volume, &raw)?;
    }
    let dropped = drop_tree(editor, inventory, objectid::FREE_SPACE_TREE)?;
    Ok(Changed { changes: dropped.into_iter().collect(), ..Changed::default() })
}

/// Returns the first and the last key of an inode's items.
fn inode_keys(inode: u64) -> (Key, Key) {
    (Key::new(inode, ItemType(0), 0), Key::new(inode, ItemType(u8::MAX), u64::MAX))
}

fn clear_inode_cache(editor: &Editor<'_>, inventory: &Inventory) -> Result<Changed> {
    let (first, last) = inode_keys(objectid::FREE_INO);
    // In a subvolume, the header of the cache is the only item of that object.
    let (header, last_header) = inode_keys(objectid::FREE_SPACE);
    let mut changed = Changed::default();
    for root in inventory.roots.iter().filter(|root| objectid::is_subvolume(root.id)) {
        let has_items = editor.replace(root.id, &first, &last, Items::new())?;
        let has_header = editor.replace(root.id, &header, &last_header, Items::new())?;
        if has_items || has_header {
            changed.changes.push(format!("tree {}: remove the cache of free inode numbers", root.id));
        }
    }
    Ok(changed)
}

fn fix_data(
    editor: &Editor<'_>,
    inventory: &Inventory,
    report: &CheckReport,
    mirror: Option<usize>,
) -> Result<Changed> {
    let mut changed = Changed::default();
    let bad = report.findings.iter().filter(|finding| finding.kind == FindingKind::DataChecksum);
    for address in bad.filter_map(|finding| finding.place.address) {
        match fix_sector(editor, address, mirror) {
            Ok(()) => {
                changed
                    .changes
                    .push(format!("set the checksum of the data at {address} to that of its bytes"));
                let extent = inventory.references.data_extent_of(address.0);
                let place =
                    extent.map_or_else(|| address.to_string(), |start| format!("{start}, in it {address}"));
                changed.losses.push(format!("data extent {place}: the data there counts as right"));
            }
            Err(error) => changed.refused.push(format!("set the checksum of the data at {address}: {error}")),
        }
    }
    Ok(changed)
}

/// Sets the checksum of one sector.
fn fix_sector(editor: &Editor<'_>, address: LogicalAddress, mirror: Option<usize>) -> Result<()> {
    let volume = editor.volume;
    let geometry = volume.geometry();
    let (sector, size) = (u64::from(geometry.sector_size), geometry.checksum_type.size());
    let mut copies = Vec::new();
    for copy in 0..volume.copies(address)? {
        let mut bytes = vec![0; sector as usize];
        volume.read_copy(address, &mut bytes, copy)?;
        copies.push(bytes);
    }
    let equal = copies.windows(2).all(|pair| pair[0] == pair[1]);
    let chosen = match mirror {
        Some(mirror) => &copies[mirror % copies.len()],
        None if equal => &copies[0],
        None => return refuse("its copies differ: choose one with --mirror"),
    };
    // An item that reaches the sector starts at most one leaf's worth of checksums before.
    let before = address.0.saturating_sub((65536 / size as u64) * sector);
    let key = |at| Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at);
    for (key, mut data) in editor.items(objectid::CSUM_TREE, &key(before), &key(address.0))? {
        let Ok(item) = CsumItem::parse(&key, &data, &geometry) else { return refuse("a bad checksum item") };
        if !(item.start().0..item.end().0).contains(&address.0) {
            continue;
        }
        let at = ((address.0 - item.start().0) / sector) as usize * size;
        data[at..at + size].copy_from_slice(geometry.checksum_type.compute(chosen).as_bytes());
        editor.put(objectid::CSUM_TREE, key, data)?;
        return match equal {
            true => Ok(()),
            false => volume.write(address, chosen),
        };
    }
    refuse("it has no checksum")
}
