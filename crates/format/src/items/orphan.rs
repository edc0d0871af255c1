//! Orphans: inodes and subvolumes without a name, to be deleted at the next mount.
//!
//! Owns the two functions between a key and what it names; the item has no data. Kernel
//! counterpart: `fs/btrfs/orphan.c`.

use crate::key::{ItemType, Key};
use crate::objectid;

/// The key of an orphan: an inode number in a subvolume, a subvolume's id in the root tree.
pub const fn orphan_key(object: u64) -> Key {
    Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, object)
}

/// The orphan that a key names, or `None` where the key is no orphan's.
pub fn orphan_of(key: &Key) -> Option<u64> {
    ((key.objectid, key.item_type) == (objectid::ORPHAN, ItemType::ORPHAN_ITEM)).then_some(key.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_invert() {
        assert_eq!(orphan_of(&orphan_key(257)), Some(257));
        assert_eq!(orphan_of(&Key::new(257, ItemType::ORPHAN_ITEM, 5)), None);
        assert_eq!(orphan_of(&Key::new(objectid::ORPHAN, ItemType::INODE_ITEM, 5)), None);
    }
}
