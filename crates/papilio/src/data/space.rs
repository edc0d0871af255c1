//! What changing file data needs of a transaction.
//!
//! Owns [`DataSpace`]: room for data, and references to it. A trait, so that the data layer is tested
//! without a transaction. Kernel counterparts: `btrfs_reserve_extent`, `btrfs_free_reserved_extent`,
//! `btrfs_inc_extent_ref`, `btrfs_free_extent` (`fs/btrfs/extent-tree.c`).

use crate::btree::NodeAllocator;
use crate::errors::Result;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::inode::Timespec;
use papilio_format::{FileOffset, InodeNumber, LogicalAddress, TreeId};

/// Room on disk for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataExtent {
    /// Where it starts.
    pub(crate) address: LogicalAddress,
    /// Its bytes, a multiple of the sector size.
    pub(crate) length: u64,
}

/// A file's reference to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DataReference {
    /// The extent's start.
    pub(crate) address: LogicalAddress,
    /// Its bytes on disk.
    pub(crate) length: u64,
    /// The subvolume.
    pub(crate) tree: TreeId,
    /// The file.
    pub(crate) inode: InodeNumber,
    /// Where the extent's first byte would be in the file; wraps, as the kernel's does.
    pub(crate) offset: FileOffset,
}

/// Gives and takes back room for data, and counts references to it.
pub(crate) trait DataSpace: NodeAllocator {
    /// The time that changes bear.
    fn now(&self) -> Timespec;

    /// Contiguous room of `min` to `want` bytes, all multiples of the sector size.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`].
    fn allocate_data(&self, min: u64, want: u64) -> Result<DataExtent>;

    /// Gives back room that was allocated in this transaction and that nothing refers to.
    fn release_data(&self, extent: DataExtent);

    /// Notes a reference; `new` for the first one of an extent that was just allocated.
    ///
    /// # Errors
    /// References that cannot be noted.
    fn add_data_ref(&self, reference: &DataReference, new: bool) -> Result<()>;

    /// Notes that a reference is gone.
    ///
    /// # Errors
    /// References that cannot be noted.
    fn drop_data_ref(&self, reference: &DataReference) -> Result<()>;

    /// Makes sure that the superblock of this transaction has these feature bits.
    ///
    /// # Errors
    /// A file system that must not get them.
    fn require_features(&self, features: IncompatFeatures) -> Result<()>;
}
