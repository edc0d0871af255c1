//! The facts of an allocation group.
//!
//! Owns [`AllocationGroup`] and [`Root`].

/// A block of a group that is none.
pub(crate) const NO_BLOCK: u32 = u32::MAX;

/// The root of a tree in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) block: u32,
    pub(crate) levels: u32,
}

/// An allocation group.
#[derive(Clone, Debug)]
pub(crate) struct AllocationGroup {
    /// Free space by place and by size.
    pub(crate) by_place: Root,
    pub(crate) by_size: Root,
    pub(crate) reverse_map: Option<Root>,
    pub(crate) refcounts: Option<Root>,
    pub(crate) inodes: Root,
    pub(crate) free_inodes: Option<Root>,
    pub(crate) free_blocks: u32,
    /// The longest run of free blocks.
    pub(crate) longest: u32,
    /// Blocks of the trees of free space, except for their roots.
    pub(crate) tree_blocks: u32,
    /// Blocks that are set aside for these trees.
    pub(crate) spare: Vec<u32>,
    pub(crate) inode_count: u32,
    pub(crate) free_inode_count: u32,
    /// Whether deleted files wait for being freed.
    pub(crate) has_orphans: bool,
}
