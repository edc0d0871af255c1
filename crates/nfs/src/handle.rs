//! `Id`: the handle of an inode.

use nfs3_server::vfs::FileHandle;
use papilio::format::{InodeNumber, TreeId};
use papilio::{Inode, Metadata};
use std::fmt;

/// Bits of an inode number in a file id.
const NUMBER_BITS: u32 = 40;

/// A subvolume and the number of an inode in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Id([u8; 16]);

impl Id {
    pub(crate) fn new(tree: TreeId, number: InodeNumber) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&tree.0.to_le_bytes());
        bytes[8..].copy_from_slice(&number.0.to_le_bytes());
        Self(bytes)
    }

    pub(crate) fn of(inode: &Inode) -> Self {
        Self::new(inode.tree(), inode.number())
    }

    pub(crate) fn tree(self) -> TreeId {
        TreeId(u64::from_le_bytes(self.0[..8].try_into().expect("8 bytes")))
    }

    pub(crate) fn number(self) -> InodeNumber {
        InodeNumber(u64::from_le_bytes(self.0[8..].try_into().expect("8 bytes")))
    }

    /// Returns the number that clients show. It is unique for fewer than 2^40 inodes in each of
    /// 2^24 subvolumes.
    pub(crate) fn file_id(self) -> u64 {
        self.number().0 ^ self.tree().0.rotate_left(NUMBER_BITS)
    }

    pub(crate) fn file_id_of(metadata: &Metadata) -> u64 {
        Self::new(metadata.tree(), metadata.number()).file_id()
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.tree(), self.number())
    }
}

impl FileHandle for Id {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}
