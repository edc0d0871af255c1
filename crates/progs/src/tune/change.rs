//! The changes that can be asked for, and their result.
//!
//! Owns [`Tune`] and [`Tuned`]. Locks: none.

use papilio_format::{ChecksumType, Uuid};

/// A change that [`tune`](fn@super::tune) makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tune {
    /// Changes the UUID in the superblocks and in every tree block. `None` finishes a change that
    /// was interrupted, or else chooses a random UUID.
    Uuid(Option<Uuid>),
    /// Changes the UUID in the superblocks only. Tree blocks keep theirs, as the metadata UUID.
    /// `None` chooses a random UUID.
    MetadataUuid(Option<Uuid>),
    /// Sets or clears the seed flag. Devices with the flag are read-only, and other file systems
    /// can build on them.
    Seed(bool),
    /// Enables extended inode references, for more hard links of a file in one directory.
    ExtendedRefs,
    /// Enables skinny extent items for tree blocks that are written from now on.
    SkinnyMetadata,
    /// Allows files from now on to have holes without file extent items.
    NoHoles,
    /// Moves the block groups to a tree of their own, for quicker mounts (kernel 6.1), or back to
    /// the extent tree. The tree needs the free-space tree and [`Tune::NoHoles`].
    BlockGroupTree(bool),
    /// Changes the checksum algorithm of data and tree blocks, or finishes an interrupted change to
    /// this one.
    Checksum(ChecksumType),
    /// Replaces v1 free-space caches by the free-space tree, or removes that tree.
    FreeSpaceTree(bool),
    /// Turns simple quotas on (kernel 6.7), with a qgroup for each subvolume; or turns them off and
    /// removes all traces of them, so that older kernels mount the file system.
    SimpleQuotas(bool),
}

/// The result of [`tune`](fn@super::tune).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuned {
    /// The UUID that users see, after the change.
    pub fsid: Uuid,
    /// The tree blocks that were rewritten.
    pub blocks: u64,
    /// Whether this finished a change that was interrupted earlier.
    pub resumed: bool,
}
