//! Back references from an inode to its names.
//!
//! Owns [`InodeRef`] and [`InodeExtref`]. An INODE_REF's key names the parent directory, and the
//! item holds all of the inode's names in it. Names that no longer fit go to INODE_EXTREFs, whose
//! keys hold a hash of parent and name. Sources: `struct btrfs_inode_ref`, `struct
//! btrfs_inode_extref` (`include/uapi/linux/btrfs_tree.h`), `check_inode_ref`, `check_inode_extref`
//! (`fs/btrfs/tree-checker.c`).

use crate::checksum::extref_hash;
use crate::error::Corrupt;
use crate::item_context::ItemContext;
use crate::items::dir_item::NAME_MAX;
use crate::items::inode;
use crate::items::packed::{PackedEntries, PackedEntry, take};
use crate::key::{ItemType, Key};
use crate::parse::disk_struct;
use crate::units::InodeNumber;

disk_struct! {
    /// The fixed part of a reference.
    pub struct InodeRefHeader as InodeRefHeaderDisk = 10 {
        /// Index of the name in its directory, which is the offset of the DIR_INDEX key.
        pub index: u64,
        /// Size of the name in bytes.
        pub name_length: u16,
    }
}

disk_struct! {
    /// The fixed part of an extended reference.
    pub struct InodeExtrefHeader as InodeExtrefHeaderDisk = 18 {
        /// The directory that holds the name.
        pub parent: InodeNumber,
        /// Index of the name in that directory.
        pub index: u64,
        /// Size of the name in bytes.
        pub name_length: u16,
    }
}

/// One name of an inode, under key (inode, INODE_REF, directory). A subvolume's root directory has
/// the name `..`, with itself as parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRef<'a> {
    /// Index of the name in its directory.
    pub index: u64,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
}

/// One name of an inode, under key (inode, INODE_EXTREF, hash of directory and name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeExtref<'a> {
    /// The directory that holds the name.
    pub parent: InodeNumber,
    /// Index of the name in that directory.
    pub index: u64,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
}

/// The names of one INODE_REF.
pub type InodeRefs<'a> = PackedEntries<'a, InodeRef<'a>>;
/// The names of one INODE_EXTREF.
pub type InodeExtrefs<'a> = PackedEntries<'a, InodeExtref<'a>>;

/// Splits off a name, which must have 1 to 255 bytes.
pub(crate) fn take_name<'a>(
    what: &'static str,
    bytes: &'a [u8],
    length: u16,
) -> Result<(&'a [u8], &'a [u8]), Corrupt> {
    if !(1..=NAME_MAX).contains(&length.into()) {
        return Err(Corrupt::field(what, "name_length", length.into(), "not 1 to 255"));
    }
    take(what, bytes, length.into())
}

impl<'a> PackedEntry<'a> for InodeRef<'a> {
    const WHAT: &'static str = "inode reference";

    fn parse_prefix(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Corrupt> {
        let (header, rest) = InodeRefHeader::parse_prefix(bytes)?;
        let (name, rest) = take_name(Self::WHAT, rest, header.name_length)?;
        Ok((Self { index: header.index, name }, rest))
    }
}

impl<'a> PackedEntry<'a> for InodeExtref<'a> {
    const WHAT: &'static str = "extended inode reference";

    fn parse_prefix(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Corrupt> {
        let (header, rest) = InodeExtrefHeader::parse_prefix(bytes)?;
        let (name, rest) = take_name(Self::WHAT, rest, header.name_length)?;
        Ok((Self { parent: header.parent, index: header.index, name }, rest))
    }
}

impl InodeRef<'_> {
    /// Returns the reference's size on disk in bytes.
    pub const fn size_on_disk(&self) -> usize {
        InodeRefHeader::SIZE + self.name.len()
    }

    /// Appends the encoded reference to `bytes`.
    ///
    /// # Panics
    /// If the name exceeds 65,535 bytes.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let name_length = self.name.len().try_into().expect("a name is at most 255 bytes");
        bytes.extend_from_slice(&InodeRefHeader { index: self.index, name_length }.to_bytes());
        bytes.extend_from_slice(self.name);
    }

    /// Encodes the reference alone.
    ///
    /// # Panics
    /// As [`InodeRef::append_to`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size_on_disk());
        self.append_to(&mut bytes);
        bytes
    }
}

impl InodeExtref<'_> {
    /// Returns the reference's size on disk in bytes.
    pub const fn size_on_disk(&self) -> usize {
        InodeExtrefHeader::SIZE + self.name.len()
    }

    /// Returns the key under which `inode` holds this reference.
    pub fn key(&self, inode: InodeNumber) -> Key {
        Key::new(inode.0, ItemType::INODE_EXTREF, extref_hash(self.parent.0, self.name))
    }

    /// Appends the encoded reference to `bytes`.
    ///
    /// # Panics
    /// If the name exceeds 65,535 bytes.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let name_length = self.name.len().try_into().expect("a name is at most 255 bytes");
        let header = InodeExtrefHeader { parent: self.parent, index: self.index, name_length };
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(self.name);
    }

    /// Encodes the reference alone.
    ///
    /// # Panics
    /// As [`InodeExtref::append_to`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size_on_disk());
        self.append_to(&mut bytes);
        bytes
    }
}

/// Runs the checks of `check_inode_ref`, and refuses names over 255 bytes. The kernel accepts such
/// names, but no directory entry could match one.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    inode::validate_follows_inode(context)?;
    InodeRefs::parse(context.data).map(drop)
}

/// Runs the checks of `check_inode_extref`.
pub(crate) fn validate_extref(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    inode::validate_follows_inode(context)?;
    InodeExtrefs::parse(context.data).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_check::test_support::{check, fault};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn references_round_trip(
            names in prop::collection::vec(
                (any::<u64>(), any::<u64>(), prop::collection::vec(any::<u8>(), 1..=255)), 1..6),
        ) {
            let refs: Vec<_> = names.iter().map(|(index, _, name)| InodeRef { index: *index, name }).collect();
            let mut bytes = Vec::new();
            refs.iter().for_each(|reference| reference.append_to(&mut bytes));
            prop_assert_eq!(bytes.len(), refs.iter().map(InodeRef::size_on_disk).sum::<usize>());
            prop_assert_eq!(InodeRefs::parse(&bytes).unwrap().collect::<Vec<_>>(), refs);
            prop_assert!(InodeRefs::parse(&bytes[..bytes.len() - 1]).is_err());

            let refs: Vec<_> = names.iter().map(|(index, parent, name)| {
                InodeExtref { parent: InodeNumber(*parent), index: *index, name }
            }).collect();
            let mut bytes = Vec::new();
            refs.iter().for_each(|reference| reference.append_to(&mut bytes));
            prop_assert_eq!(bytes.len(), refs.iter().map(InodeExtref::size_on_disk).sum::<usize>());
            prop_assert_eq!(InodeExtrefs::parse(&bytes).unwrap().collect::<Vec<_>>(), refs);
            prop_assert!(InodeExtrefs::parse(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn each_check_detects_its_fault() {
        for (item_type, header) in [(ItemType::INODE_REF, 10), (ItemType::INODE_EXTREF, 18)] {
            let key = Key::new(257, item_type, 256);
            let item = |length: u16, name: usize| {
                let mut bytes = vec![0; header - 2];
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.resize(header + name, b'x');
                bytes
            };
            assert_eq!(check(key, &item(255, 255)), Ok(()));
            assert_eq!(fault(check(key, &[])), "size");
            assert_eq!(fault(check(key, &item(5, 4))), "size");
            assert_eq!(fault(check(key, &item(4, 5))), "size");
            assert_eq!(fault(check(key, &item(0, 0))), "name_length");
            assert_eq!(fault(check(key, &item(256, 256))), "name_length");
        }
    }
}
