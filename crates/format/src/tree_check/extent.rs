//! The dispatch for items of the trees that account for space: extent, chunk, device, block-group,
//! free-space, quota and UUID trees.
//!
//! Owns only the table from item type to validator. Kernel counterpart: `check_leaf_item` in
//! `fs/btrfs/tree-checker.c`.

use super::ItemContext;
use crate::error::Corrupt;
use crate::items::chunk::ChunkItem;
use crate::key::ItemType;
use crate::units::LogicalAddress;

/// Calls the validator of an item's type; unknown types pass, as in the kernel.
pub(super) fn check_item(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    match context.key.item_type {
        ItemType::CHUNK_ITEM => {
            ChunkItem::parse(context.data)?.validate(LogicalAddress(context.key.offset), context.geometry)
        }
        _ => Ok(()),
    }
}
