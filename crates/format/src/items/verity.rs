//! fs-verity: a file's descriptor and its Merkle tree.
//!
//! Owns [`VerityDescriptorItem`] and the layout of the keys:
//! - (inode, VERITY_DESC_ITEM, 0): the descriptor's size.
//! - (inode, VERITY_DESC_ITEM, 1 and up): the descriptor's bytes from offset - 1 on.
//! - (inode, VERITY_MERKLE_ITEM, offset): the Merkle tree's bytes from that offset on.
//!
//! Sources: `struct btrfs_verity_descriptor_item` (`include/uapi/linux/btrfs_tree.h`),
//! `fs/btrfs/verity.c`.

use crate::error::Corrupt;
use crate::item_context::ItemContext;
use crate::parse::disk_struct;

disk_struct! {
    /// The size of the verity descriptor.
    pub struct VerityDescriptorItem as VerityDescriptorItemDisk = 25 {
        /// Size of the descriptor in bytes.
        pub size: u64,
        /// Zero.
        pub reserved: [u64; 2],
        /// Zero: encryption was never implemented.
        pub encryption: u8,
    }
}

/// Runs the checks of `btrfs_get_verity_descriptor` on the first item; the others are plain bytes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{ItemType, Key};
    use crate::tree_check::test_support::{check, fault};

    #[test]
    fn items_round_trip() {
        crate::parse::assert_round_trip::<VerityDescriptorItem>();
    }

    #[test]
    fn each_check_detects_its_fault() {
        let key = |offset| Key::new(257, ItemType::VERITY_DESC_ITEM, offset);
        let good = VerityDescriptorItem { size: 256, reserved: [0; 2], encryption: 0 };
        assert_eq!(check(key(0), &good.to_bytes()), Ok(()));
        assert_eq!(check(key(1), b"any bytes"), Ok(()));
        assert_eq!(fault(check(key(0), &[0; 24])), "size");
        assert_eq!(fault(check(key(0), &VerityDescriptorItem { size: 1 << 31, ..good }.to_bytes())), "size");
        let reserved = [0, 1];
        assert_eq!(fault(check(key(0), &VerityDescriptorItem { reserved, ..good }.to_bytes())), "reserved");
    }
}
