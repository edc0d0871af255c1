//! The first phase of a change of data: reading and writing the device, outside any transaction.
//!
//! Owns [`DataContext`].
//!
//! Invariants:
//! - Only this context reaches the device. [`WriteContext`](super::file_edit::WriteContext), which
//!   a transaction handle gives, has no volume: the types keep data I/O out of a transaction
//!   handle.
//! - The caller holds the inode's data lock, so that the file in its tree stays as it is until the
//!   second phase publishes the change.
//!
//! Locks: none held between calls.

use crate::btree::LiveTree;
use crate::data::file_data::FileData;
use crate::data::file_edit::FileEdit;
use crate::data::read::ReadContext;
use crate::data::space::DataAllocator;
use crate::data::write_rules::{CompressionPlan, WriteRules};
use crate::errors::Result;
use crate::volume::Volume;
use papilio_format::FileOffset;
use std::ops::Deref;
use std::sync::Arc;

/// Access to a file's data on the device.
#[derive(Clone, Copy)]
pub(crate) struct DataContext<'a> {
    pub(crate) allocator: &'a dyn DataAllocator,
    pub(crate) volume: &'a Arc<Volume>,
    pub(crate) checksum_tree: &'a LiveTree,
    pub(crate) rules: WriteRules<'a>,
}

impl<'a> Deref for DataContext<'a> {
    type Target = WriteRules<'a>;

    fn deref(&self) -> &WriteRules<'a> {
        &self.rules
    }
}

impl DataContext<'_> {
    /// Returns how the file is compressed, if it is.
    pub(crate) fn compression_of(&self, file: &FileEdit<'_>) -> Option<CompressionPlan> {
        self.rules.compression(file.item.flags, file.property)
    }

    /// Fills `buffer` with the bytes from `offset` on of a file that is `size` bytes long, and with
    /// zeros after its end.
    ///
    /// # Errors
    /// A read error.
    pub(crate) fn read_as(
        &self,
        file: &FileEdit<'_>,
        size: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        // A context of its own: threads cache decompressed extents by address, and an address may
        // be written again.
        let checksums = self.checksum_tree.tree();
        let context = ReadContext::new(Arc::clone(self.volume), Some(checksums), true);
        let tree = file.tree.tree();
        let data = FileData {
            tree: (&tree).into(),
            inode: file.inode,
            flags: file.item.flags,
            size,
            written: None,
            extent_cache: None,
            ordered: None,
        };
        let read = context.read(&data, FileOffset(offset), buffer)?;
        buffer[read..].fill(0);
        Ok(())
    }
}
