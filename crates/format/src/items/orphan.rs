//! Orphans: inodes and subvolumes without a name, to delete at the next mount.
//!
//! Owns the conversions between an orphan's key and its object; the item has no data. Kernel
//! counterpart: `fs/btrfs/orphan.c`.

use crate::key::{ItemType, Key};
use crate::objectid;

/// Returns the key of an orphan: an inode number in a subvolume, or a subvolume's id in the root
/// tree.
pub const fn orphan_key(object: u64) -> Key {
    Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, object)
}

/// Returns the orphan that a key names, or `None` for any other key.
pub fn orphan_of(key: &Key) -> Option<u64> {
    ((key.objectid, key.item_type) == (objectid::ORPHAN, ItemType::ORPHAN_ITEM)).then_some(key.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip() {
        assert_eq!(orphan_of(&orphan_key(257)), Some(257));
        assert_eq!(orphan_of(&Key::new(257, ItemType::ORPHAN_ITEM, 5)), None);
        assert_eq!(orphan_of(&Key::new(objectid::ORPHAN, ItemType::INODE_ITEM, 5)), None);
    }
}
