//! References between subvolumes: the directory entries that name subvolumes.
//!
//! Owns [`RootRef`]. A ROOT_REF belongs to the parent (key (parent, ROOT_REF, child)), a
//! ROOT_BACKREF to the child (key (child, ROOT_BACKREF, parent)); both have the same content.
//! Sources: `struct btrfs_root_ref` (`include/uapi/linux/btrfs_tree.h`), `fs/btrfs/root-tree.c`.

use crate::error::Corrupt;
use crate::item_context::ItemContext;
use crate::items::inode_ref::take_name;
use crate::key::{ItemType, Key};
use crate::parse::disk_struct;
use crate::units::{InodeNumber, TreeId};

disk_struct! {
    /// The fixed part of a reference.
    pub struct RootRefHeader as RootRefHeaderDisk = 18 {
        /// The parent's directory that holds the entry.
        pub directory: InodeNumber,
        /// The entry's index, which is the offset of its DIR_INDEX key.
        pub sequence: u64,
        /// Size of the name in bytes.
        pub name_length: u16,
    }
}

/// The directory entry of one subvolume in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRef<'a> {
    /// The parent's directory that holds the entry.
    pub directory: InodeNumber,
    /// The entry's index.
    pub sequence: u64,
    /// The entry's name, 1 to 255 bytes.
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Decodes an item.
    ///
    /// # Errors
    /// A name that is not 1 to 255 bytes long or does not end with the item.
    pub fn parse(data: &'a [u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "root reference";
        let (header, rest) = RootRefHeader::parse_prefix(data)?;
        let (name, rest) = take_name(WHAT, rest, header.name_length)?;
        if !rest.is_empty() {
            let expected = data.len() - rest.len();
            return Err(Corrupt::WrongSize { what: WHAT, expected, found: data.len() });
        }
        Ok(Self { directory: header.directory, sequence: header.sequence, name })
    }

    /// Encodes the item.
    ///
    /// # Panics
    /// If the name exceeds 65,535 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = RootRefHeader {
            directory: self.directory,
            sequence: self.sequence,
            name_length: self.name.len().try_into().expect("a name is at most 255 bytes"),
        };
        let mut bytes = Vec::with_capacity(RootRefHeader::SIZE + self.name.len());
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(self.name);
        bytes
    }
}

/// Returns the key of the reference from a parent to a child.
pub const fn root_ref_key(parent: TreeId, child: TreeId) -> Key {
    Key::new(parent.0, ItemType::ROOT_REF, child.0)
}

/// Returns the key of the reference from a child to its parent.
pub const fn root_backref_key(child: TreeId, parent: TreeId) -> Key {
    Key::new(child.0, ItemType::ROOT_BACKREF, parent.0)
}

/// Checks that the item is exactly one reference. A 6.18 kernel does not check this; later kernels
/// do.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    RootRef::parse(context.data).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_check::test_support::{check, fault};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn references_round_trip(numbers in any::<(u64, u64)>(), name in prop::collection::vec(any::<u8>(), 1..=255)) {
            let reference = RootRef { directory: InodeNumber(numbers.0), sequence: numbers.1, name: &name };
            let bytes = reference.to_bytes();
            prop_assert_eq!(RootRef::parse(&bytes), Ok(reference));
        }
    }

    #[test]
    fn each_check_detects_its_fault() {
        let good = RootRef { directory: InodeNumber(256), sequence: 2, name: b"name" }.to_bytes();
        for key in [root_ref_key(TreeId(5), TreeId(256)), root_backref_key(TreeId(256), TreeId(5))] {
            assert_eq!(check(key, &good), Ok(()));
            assert_eq!(fault(check(key, &good[..17])), "size");
            assert_eq!(fault(check(key, &good[..21])), "size");
            assert_eq!(fault(check(key, &[&good[..], b"x"].concat())), "size");
            assert_eq!(fault(check(key, &[0; 18])), "name_length");
            let mut long = good.clone();
            long[17] = 1;
            long.resize(600, b'x');
            assert_eq!(fault(check(key, &long)), "name_length");
        }
    }
}
