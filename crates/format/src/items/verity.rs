//! fs-verity: a file's descriptor and its Merkle tree.
//!
//! Owns [`VerityDescriptorItem`] and the layout: key (inode, VERITY_DESC_ITEM, 0) holds the size, the
//! same with offset 1 and up the descriptor's bytes from (offset - 1) on, and (inode,
//! VERITY_MERKLE_ITEM, offset) the Merkle tree's bytes from that offset on. Sources:
//! `struct btrfs_verity_descriptor_item` (`include/uapi/linux/btrfs_tree.h`), `fs/btrfs/verity.c`.

use crate::disk::disk_struct;
use crate::error::Corrupt;
use crate::tree_check::ItemContext;

disk_struct! {
    /// What there is of verity data.
    pub struct VerityDescriptorItem as VerityDescriptorItemDisk = 25 {
        /// Bytes of the descriptor.
        pub size: u64,
        /// Zero.
        pub reserved: [u64; 2],
        /// Zero: encryption was never added.
        pub encryption: u8,
    }
}

/// What `btrfs_get_verity_descriptor` demands of the first item; the others are bytes.
pub(crate) fn validate_descriptor(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let bad = |field, value, why| Err(Corrupt::field("verity descriptor", field, value, why));
    if context.key.offset != 0 {
        return Ok(());
    }
    let item = VerityDescriptorItem::parse(context.data)?;
    if item.size > i32::MAX as u64 {
        return bad("size", item.size, "larger than any descriptor");
    }
    if let Some(&value) = item.reserved.iter().find(|&&value| value != 0) {
        return bad("reserved", value, "not zero");
    }
    Ok(())
}
