//! The check of every item of a tree block, as strict as the kernel's tree checker.
//!
//! Owns the walk over a block's items, [`ItemContext`] (what one item's validator is given), the
//! dispatch from an item type to its validator, and the rules that concern a block as a whole. What an
//! item may hold is said in the item's own file. Kernel counterpart: `fs/btrfs/tree-checker.c`.
//!
//! Invariant: a validator believes nothing but what its context says. Key order and item bounds were
//! checked before; items of lower slots have been validated, items of higher slots have not.

mod extent;

use crate::error::Corrupt;
use crate::items::{csum, dir_item, dir_log, file_extent, inode, inode_ref, root, root_ref, verity};
use crate::key::{ItemType, Key};
use crate::node::{Node, NodeHeader};
use crate::objectid;
use crate::superblock::Geometry;
use crate::units::{Generation, TreeId};

/// What the validator of one item is given.
#[derive(Clone, Copy)]
pub(crate) struct ItemContext<'a> {
    /// The item's key.
    pub key: Key,
    /// The item's bytes.
    pub data: &'a [u8],
    /// Key and bytes of the item before it in the same leaf.
    pub previous: Option<(Key, &'a [u8])>,
    /// The tree that allocated the leaf.
    pub owner: TreeId,
    /// The file system's parameters.
    pub geometry: &'a Geometry,
}

impl ItemContext<'_> {
    /// Refuses a generation later than a log tree's, which may be one ahead of the last commit.
    pub fn check_generation(
        &self,
        what: &'static str,
        field: &'static str,
        generation: Generation,
    ) -> Result<(), Corrupt> {
        if generation.0 > self.geometry.generation.0.saturating_add(1) {
            return Err(Corrupt::field(what, field, generation.0, "later than the last transaction"));
        }
        Ok(())
    }

    /// Refuses a number of bytes or an address that is no multiple of the sector size.
    pub fn check_sector_aligned(
        &self,
        what: &'static str,
        field: &'static str,
        value: u64,
    ) -> Result<(), Corrupt> {
        if !value.is_multiple_of(self.geometry.sector_size.into()) {
            return Err(Corrupt::field(what, field, value, "not a multiple of the sector size"));
        }
        Ok(())
    }
}

/// Checks each item of a leaf whose structure is already known to be right.
pub(crate) fn check_leaf(node: Node<'_>, header: &NodeHeader, geometry: &Geometry) -> Result<(), Corrupt> {
    check_flags(header)?;
    if node.is_empty() {
        return check_empty_leaf(header);
    }
    let mut previous = None;
    for slot in 0..node.len() {
        let (key, data) = (node.key(slot), node.item(slot));
        let context = ItemContext { key, data, previous, owner: header.owner, geometry };
        check_item(&context).map_err(|reason| reason.in_item(slot, key))?;
        previous = Some((key, data));
    }
    Ok(())
}

/// Checks what an internal node may hold; its pointers were checked with its structure.
pub(crate) fn check_internal(node: Node<'_>, header: &NodeHeader) -> Result<(), Corrupt> {
    check_flags(header)?;
    if node.is_empty() {
        return Err(Corrupt::field("tree block", "item_count", 0, "an internal node has children"));
    }
    for slot in 0..node.len() {
        let child = node.child(slot);
        // A child is written no later than its parent.
        if child.generation > header.generation {
            let reason = Corrupt::field(
                "key pointer",
                "generation",
                child.generation.0,
                "later than the block that points there",
            );
            return Err(reason.in_item(slot, child.key));
        }
    }
    Ok(())
}

/// The header flag of a block that was written out; all that are on disk have it.
const HEADER_FLAG_WRITTEN: u64 = 1 << 0;
/// The header flag of a block of a relocation tree.
const HEADER_FLAG_RELOC: u64 = 1 << 1;

fn check_flags(header: &NodeHeader) -> Result<(), Corrupt> {
    if header.flags & HEADER_FLAG_WRITTEN == 0 {
        return Err(Corrupt::field("tree block", "flags", header.flags, "WRITTEN is not set"));
    }
    Ok(())
}

/// An empty leaf is the root of an empty tree, and some trees are never empty.
fn check_empty_leaf(header: &NodeHeader) -> Result<(), Corrupt> {
    // A relocation tree's blocks carry the owner of the tree that they were copied from.
    if header.flags & HEADER_FLAG_RELOC != 0 {
        return Ok(());
    }
    match header.owner {
        TreeId(0) => Err(Corrupt::field("tree block", "owner", 0, "no such tree")),
        objectid::ROOT_TREE
        | objectid::CHUNK_TREE
        | objectid::DEV_TREE
        | objectid::FS_TREE
        | objectid::DATA_RELOC_TREE
        | objectid::EXTENT_TREE => {
            Err(Corrupt::field("tree block", "owner", header.owner.0, "this tree is never empty"))
        }
        _ => Ok(()),
    }
}

/// Calls the validator of an item's type. Types that the kernel does not check either pass.
fn check_item(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    match context.key.item_type {
        ItemType::INODE_ITEM => inode::validate(context),
        ItemType::INODE_REF => inode_ref::validate(context),
        ItemType::INODE_EXTREF => inode_ref::validate_extref(context),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => dir_item::validate(context),
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => dir_log::validate(context),
        ItemType::EXTENT_DATA => file_extent::validate(context),
        ItemType::EXTENT_CSUM => csum::validate(context),
        ItemType::ROOT_ITEM => root::validate(context),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => root_ref::validate(context),
        ItemType::VERITY_DESC_ITEM => verity::validate_descriptor(context),
        _ => extent::check_item(context),
    }
}
