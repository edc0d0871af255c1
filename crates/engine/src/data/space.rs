//! The space and the references that a change of file data takes.
//!
//! Owns the traits [`DataAllocator`] and [`DataSpace`], so that tests run this layer without a
//! transaction. Kernel counterparts: `btrfs_reserve_extent`, `btrfs_free_reserved_extent`,
//! `btrfs_inc_extent_ref`, `btrfs_free_extent` (`fs/btrfs/extent-tree.c`).

use crate::btree::NodeAllocator;
use crate::errors::Result;
use crate::space::LogicalRange;
pub(crate) use crate::transaction::{DataExtent, DataReference};
use crate::transaction::{Handle, ReservedData, Transactions};
use papilio_format::Generation;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::inode::Timespec;

/// Allocates space for data.
pub(crate) trait DataAllocator {
    /// Allocates a contiguous extent of `min` to `want` bytes, all multiples of the sector size.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`].
    fn allocate_data(&self, min: u64, want: u64) -> Result<DataExtent>;

    /// Releases space that was allocated and that nothing refers to.
    fn release_data(&self, extent: DataExtent);

    /// Returns whether the extent of `reference` may be overwritten in place: nothing else refers
    /// to it, it is younger than its subvolume's last snapshot, and it is not being moved.
    ///
    /// # Errors
    /// A block or an item of the extent tree that cannot be read.
    fn may_overwrite(&self, _reference: &DataReference, _last_snapshot: Generation) -> Result<bool> {
        Ok(false)
    }
}

/// Allocates space for data, and counts references to it.
pub(crate) trait DataSpace: NodeAllocator + DataAllocator {
    /// Returns the time stamp of the change.
    fn now(&self) -> Timespec;

    /// Adds a reference to an extent; `new` for the first one to an extent that was just allocated.
    ///
    /// # Errors
    /// A reference that cannot be queued.
    fn add_data_ref(&self, reference: &DataReference, new: bool) -> Result<()>;

    /// Drops a reference to an extent.
    ///
    /// # Errors
    /// A reference that cannot be queued.
    fn drop_data_ref(&self, reference: &DataReference) -> Result<()>;

    /// Returns whether the extent of `reference` may get `bytes` more bytes, which were allocated
    /// behind it: nothing else refers to it, nor has the last commit it. The caller holds the
    /// editor of the file's tree.
    fn may_extend_data(&self, reference: &DataReference, bytes: u64) -> bool;

    /// Extends such an extent, in the same hold of the editor.
    fn extend_data(&self, reference: &DataReference, bytes: u64);

    /// Declares the changes so far complete: a later error need not abort the transaction.
    fn settle(&self) {}

    /// Sets feature bits in the superblock of this transaction.
    ///
    /// # Errors
    /// A file system that must not have them.
    fn require_features(&self, features: IncompatFeatures) -> Result<()>;
}

impl DataAllocator for Handle<'_> {
    fn allocate_data(&self, min: u64, want: u64) -> Result<DataExtent> {
        Handle::allocate_data(self, min, want)
    }

    fn release_data(&self, extent: DataExtent) {
        Handle::release_data(self, extent);
    }
}

impl DataAllocator for Transactions {
    fn allocate_data(&self, min: u64, want: u64) -> Result<DataExtent> {
        let range = Transactions::allocate_data(self, min, want)?;
        Ok(DataExtent { address: range.start, length: range.length })
    }

    fn release_data(&self, extent: DataExtent) {
        self.space().release(LogicalRange { start: extent.address, length: extent.length });
    }

    fn may_overwrite(&self, reference: &DataReference, last_snapshot: Generation) -> Result<bool> {
        Ok(self.space().is_writable(reference.address) && self.is_only_reference(reference, last_snapshot)?)
    }
}

impl DataAllocator for ReservedData<'_> {
    fn allocate_data(&self, min: u64, want: u64) -> Result<DataExtent> {
        self.allocate(min, want)
    }

    fn release_data(&self, extent: DataExtent) {
        self.transactions().release_data(extent);
    }

    fn may_overwrite(&self, reference: &DataReference, last_snapshot: Generation) -> Result<bool> {
        self.transactions().may_overwrite(reference, last_snapshot)
    }
}

impl DataSpace for Handle<'_> {
    fn now(&self) -> Timespec {
        Handle::now(self)
    }

    fn add_data_ref(&self, reference: &DataReference, new: bool) -> Result<()> {
        Handle::add_data_ref(self, reference, new)
    }

    fn drop_data_ref(&self, reference: &DataReference) -> Result<()> {
        Handle::drop_data_ref(self, reference)
    }

    fn may_extend_data(&self, reference: &DataReference, bytes: u64) -> bool {
        Handle::may_extend_data(self, reference, bytes)
    }

    fn extend_data(&self, reference: &DataReference, bytes: u64) {
        Handle::extend_data(self, reference, bytes);
    }

    fn settle(&self) {
        Handle::settle(self);
    }

    fn require_features(&self, features: IncompatFeatures) -> Result<()> {
        self.transactions().require_features(features);
        Ok(())
    }
}
