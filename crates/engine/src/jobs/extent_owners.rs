//! The files that a data extent belongs to.
//!
//! Owns [`ExtentOwner`] and [`extent_owners`]. The back references of an extent name inodes and
//! offsets of the subvolume that created it. A snapshot that shares the leaf has the same inode at
//! the same key, so each named place is looked up in all subvolumes. This finds every owner, and
//! believes no reference that no file confirms.
//!
//! Kernel counterpart: `iterate_inodes_from_logical` (`fs/btrfs/backref.c`).

use crate::btree::Tree;
use crate::errors::{Error, Result};
use crate::items::item_error;
use crate::items::trees::Trees;
use papilio_format::items::back_ref::{BackRef, KeyedRefs};
use papilio_format::items::extent::ExtentItem;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::{InodeNumber, ItemType, Key, LogicalAddress, NodeExpectation, TreeId, objectid};
use std::collections::BTreeSet;

/// Uncompressed size of the largest compressed extent in bytes.
const MAX_UNCOMPRESSED: u64 = 128 << 10;

/// A file that contains a byte of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentOwner {
    /// Its subvolume.
    pub tree: TreeId,
    /// Its inode.
    pub inode: InodeNumber,
    /// The file offset of the byte. For a compressed extent, and if any byte was asked for, it is
    /// where the file's part of the extent begins.
    pub offset: u64,
}

/// The use of a logical address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressUse {
    /// No extent contains it.
    Free,
    /// A tree block.
    TreeBlock,
    /// File data.
    Data(Vec<ExtentOwner>),
}

/// A data extent.
#[derive(Clone, Copy)]
struct OwnedExtent {
    pub start: LogicalAddress,
    length: u64,
}

/// Returns the files that contain the byte at `address`, or with `whole` any byte of its extent.
/// Sees the last commit and changes of trees since, but no references that are still delayed.
///
/// # Errors
/// A tree block or item that cannot be read.
pub fn extent_owners(trees: &Trees, address: LogicalAddress, whole: bool) -> Result<AddressUse> {
    extent_owners_leaving_out(trees, address, whole, &mut |_, error| Err(error))
}

/// As [`extent_owners`], and passes each tree that cannot be read to `unread`, with the error.
/// Without a tree, it is a leaf that several subvolumes may share. Owners there are left out.
///
/// # Errors
/// The extent tree or the root tree cannot be read; the errors of `unread`.
pub fn extent_owners_leaving_out(
    trees: &Trees,
    address: LogicalAddress,
    whole: bool,
    unread: &mut dyn FnMut(Option<TreeId>, Error) -> Result<()>,
) -> Result<AddressUse> {
    let extents = trees.get(objectid::EXTENT_TREE, "the extent tree")?;
    let tree = &extents.tree;
    let Some((key, is_tree_block)) = extent_at(tree, address)? else { return Ok(AddressUse::Free) };
    if is_tree_block {
        return Ok(AddressUse::TreeBlock);
    }
    let extent = OwnedExtent { start: LogicalAddress(key.objectid), length: key.offset };
    let hints = hints(tree, extent, &mut |error| unread(None, error))?;
    let mut owners = BTreeSet::new();
    for id in subvolumes(trees)? {
        let mut in_tree = || {
            let Some(open) = trees.find(id)?.filter(|open| open.item().refs > 0) else { return Ok(()) };
            hints.iter().try_for_each(|&(inode, begin)| {
                confirm(&open.tree, inode, begin, extent, address, whole, &mut owners)
            })
        };
        if let Err(error) = in_tree() {
            unread(Some(id), error)?;
        }
    }
    Ok(AddressUse::Data(owners.into_iter().collect()))
}

/// A reference to a data extent: the subvolume, the inode, and the file offset that the extent's
/// first byte has, or would have if the file used it.
pub(crate) type ExtentReference = (TreeId, InodeNumber, u64);

/// Returns the first `most` references to the data extent at `address`. Parts of an extent that lie
/// in a file as they lie in the extent are one reference, as in the extent tree.
///
/// # Errors
/// A tree block or item that cannot be read.
pub(crate) fn extent_references(
    trees: &Trees,
    address: LogicalAddress,
    most: usize,
) -> Result<Vec<ExtentReference>> {
    let extents = trees.get(objectid::EXTENT_TREE, "the extent tree")?;
    let mut references = Vec::new();
    let Some((key, false)) = extent_at(&extents.tree, address)? else { return Ok(references) };
    let extent = OwnedExtent { start: LogicalAddress(key.objectid), length: key.offset };
    let hints = hints(&extents.tree, extent, &mut Err)?;
    let mut owners = BTreeSet::new();
    for id in subvolumes(trees)? {
        let Some(open) = trees.find(id)?.filter(|open| open.item().refs > 0) else { continue };
        for &(inode, begin) in &hints {
            owners.clear();
            confirm(&open.tree, inode, begin, extent, address, true, &mut owners)?;
            if !owners.is_empty() {
                references.push((id, InodeNumber(inode), begin));
            }
            if references.len() >= most {
                return Ok(references);
            }
        }
    }
    Ok(references)
}

/// Returns the key of the extent that contains an address, and whether it is a tree block.
pub(super) fn extent_at(tree: &Tree, address: LogicalAddress) -> Result<Option<(Key, bool)>> {
    let mut objectid = address.0;
    loop {
        let last = Key::new(objectid, ItemType::METADATA_ITEM, u64::MAX);
        let Some(item) = tree.last_up_to(&last)? else { return Ok(None) };
        let Key { objectid: start, item_type, offset } = item.key;
        if !matches!(item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            // A block group or a reference, which lie between extents.
            if start < objectid {
                objectid = start;
                continue;
            }
            let Some(before) = start.checked_sub(1) else { return Ok(None) };
            objectid = before;
            continue;
        }
        let extent =
            ExtentItem::parse(item_type, item.data()).map_err(|reason| item_error(tree, &item, reason))?;
        let length = match item_type {
            // The level is in the key; a block has one size.
            ItemType::METADATA_ITEM => u64::from(tree.forest().volume().superblock().raw.node_size),
            _ => offset,
        };
        let contains = address.0 - start < length;
        return Ok(contains.then(|| (item.key, extent.is_tree_block())));
    }
}

/// Collects the inodes that the references of an extent name, each with the file offset that the
/// extent's first byte would have. A leaf that cannot be read goes to `unread`.
fn hints(
    tree: &Tree,
    extent: OwnedExtent,
    unread: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<BTreeSet<(u64, u64)>> {
    let start = extent.start.0;
    let mut hints = BTreeSet::new();
    let mut references = Vec::new();
    for item in tree.range(Key::first_of(start)..=Key::last_of(start)) {
        let item = item?;
        let fault = |reason| item_error(tree, &item, reason);
        match item.key.item_type {
            ItemType::EXTENT_ITEM => {
                let parsed = ExtentItem::parse(item.key.item_type, item.data()).map_err(fault)?;
                for reference in parsed.inline_refs() {
                    references.push(reference.map_err(fault)?);
                }
            }
            ItemType::EXTENT_DATA_REF | ItemType::SHARED_DATA_REF => {
                references.extend(KeyedRefs::parse(&item.key, item.data()).map_err(fault)?);
            }
            _ => {}
        }
    }
    for reference in references {
        match reference {
            BackRef::Data { inode, offset, .. } => drop(hints.insert((inode.0, offset.0))),
            BackRef::SharedData { parent, .. } => {
                if let Err(error) = hints_in_leaf(tree, parent, extent.start, &mut hints) {
                    unread(error)?;
                }
            }
            _ => {}
        }
    }
    Ok(hints)
}

/// Collects the inodes of a shared leaf that refer to an extent.
fn hints_in_leaf(
    tree: &Tree,
    leaf: LogicalAddress,
    start: LogicalAddress,
    hints: &mut BTreeSet<(u64, u64)>,
) -> Result<()> {
    let expected = NodeExpectation { level: Some(0), ..NodeExpectation::at(leaf) };
    let block = tree.forest().block(objectid::FS_TREE, &expected)?;
    let view = block.view();
    for slot in 0..view.len() {
        let key = view.key(slot);
        if key.item_type != ItemType::EXTENT_DATA {
            continue;
        }
        let Ok(item) = FileExtentItem::parse(view.item(slot)) else { continue };
        if let FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) = item.content
            && part.disk_address == start
        {
            hints.insert((key.objectid, key.offset.wrapping_sub(part.offset)));
        }
    }
    Ok(())
}

/// Returns the ids of all subvolumes.
fn subvolumes(trees: &Trees) -> Result<Vec<TreeId>> {
    let mut ids = Vec::new();
    for item in trees.root_tree().items() {
        let key = item?.key;
        let id = TreeId(key.objectid);
        if key.item_type == ItemType::ROOT_ITEM && objectid::is_subvolume(id) && ids.last() != Some(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Adds the places of one inode whose file extents refer to the extent.
fn confirm(
    tree: &Tree,
    inode: u64,
    begin: u64,
    extent: OwnedExtent,
    address: LogicalAddress,
    whole: bool,
    owners: &mut BTreeSet<ExtentOwner>,
) -> Result<()> {
    // An extent whose first part was cut off may begin before the file does.
    let before = begin > i64::MAX as u64;
    let first = if before { 0 } else { begin };
    let last = begin.wrapping_add(extent.length.max(MAX_UNCOMPRESSED));
    let last = if before || last >= first { last } else { u64::MAX };
    let key = |offset| Key::new(inode, ItemType::EXTENT_DATA, offset);
    if last < first {
        return Ok(());
    }
    for item in tree.range(key(first)..=key(last)) {
        let item = item?;
        let parsed = FileExtentItem::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
        let part = match parsed.content {
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => part,
            FileExtentContent::Inline(_) => continue,
        };
        let start = item.key.offset;
        if part.disk_address != extent.start || start.wrapping_sub(part.offset) != begin {
            continue;
        }
        let mut offset = start;
        if !whole && parsed.compression == Compression::None {
            let position = address.0 - extent.start.0;
            let Some(inside) = position.checked_sub(part.offset).filter(|inside| *inside < part.length)
            else {
                continue;
            };
            offset += inside;
        }
        owners.insert(ExtentOwner { tree: tree.id(), inode: InodeNumber(inode), offset });
    }
    Ok(())
}
