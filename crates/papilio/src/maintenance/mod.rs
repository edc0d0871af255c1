//! Jobs on a whole file system: making it, checking it, how its space is used, what its trees
//! consist of, what its superblocks say.

pub(crate) mod check;
pub(crate) mod dump;
pub(crate) mod mkfs;
pub(crate) mod statfs;
pub(crate) mod superblock_copy;
pub(crate) mod tree_stats;
pub(crate) mod usage;
