//! What changing file data needs of a transaction.
//!
//! Owns [`DataSpace`]: room for data, and references to it. A trait, so that the data layer is tested
//! without a transaction. Kernel counterparts: `btrfs_reserve_extent`, `btrfs_free_reserved_extent`,
//! `btrfs_inc_extent_ref`, `btrfs_free_extent` (`fs/btrfs/extent-tree.c`).

use crate::btree::NodeAllocator;
use crate::errors::Result;
use crate::transaction::Handle;
pub(crate) use crate::transaction::{DataExtent, DataReference};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::inode::Timespec;

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

    /// What was changed so far stands by itself: an error from here on leaves nothing half done. Only who
    /// aborts half-done changes needs to know.
    fn settle(&self) {}

    /// Makes sure that the superblock of this transaction has these feature bits.
    ///
    /// # Errors
    /// A file system that must not get them.
    fn require_features(&self, features: IncompatFeatures) -> Result<()>;
}

impl DataSpace for Handle<'_> {
    fn now(&self) -> Timespec {
        Handle::now(self)
    }

    fn allocate_data(&self, min: u64, want: u64) -> Result<DataExtent> {
        Handle::allocate_data(self, min, want)
    }

    fn release_data(&self, extent: DataExtent) {
        Handle::release_data(self, extent);
    }

    fn add_data_ref(&self, reference: &DataReference, new: bool) -> Result<()> {
        Handle::add_data_ref(self, reference, new)
    }

    fn drop_data_ref(&self, reference: &DataReference) -> Result<()> {
        Handle::drop_data_ref(self, reference)
    }

    fn settle(&self) {
        Handle::settle(self);
    }

    fn require_features(&self, features: IncompatFeatures) -> Result<()> {
        self.transactions().require_features(features);
        Ok(())
    }
}
