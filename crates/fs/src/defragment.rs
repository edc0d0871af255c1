//! Defragmenting without unsharing: the public methods of
//! [`papilio_engine::jobs::shared_defragment`].
//!
//! Owns [`FileSystem::defragment_shared`]; [`crate::File::defragment`] unshares.

use crate::file_system::FileSystem;
use crate::inode::Inode;
use papilio_engine::errors::Result;
use papilio_engine::jobs::inode_paths::inode_text;
pub use papilio_engine::jobs::shared_defragment::{
    SharedDefragmentOptions, SharedDefragmentReport, StayingExtent,
};
use papilio_engine::jobs::shared_extents::SharedExtents;
use papilio_format::items::inode::FileKind;

impl FileSystem {
    /// Makes small extents of files into larger ones. All other files and snapshots that use these
    /// extents follow, so that data is shared as before and needs no more space. No inode changes,
    /// and files of read-only subvolumes are defragmented as well. Files may be open, read and
    /// written meanwhile. Calls `progress` after each batch, which is durable; `false` stops.
    ///
    /// Extents stay if they are compressed, preallocated or without checksums, if another file or
    /// snapshot uses other parts of them, and where something is damaged. The report says so.
    ///
    /// With [`SharedDefragmentOptions::compression`] all extents are then compressed in this way,
    /// for all that use them, as far as that makes them smaller. Parts that nothing uses are freed.
    /// So are those of extents that are stored without compression again.
    ///
    /// # Errors
    /// [`Error::Busy`](papilio_engine::Error::Busy) while another operation on the whole file
    /// system or a send runs; [`Error::NoSpace`](papilio_engine::Error::NoSpace) for metadata; as
    /// [`FileSystem::sync`]. The batches until then stay, and nothing is lost.
    pub fn defragment_shared<'i>(
        &self,
        files: impl IntoIterator<Item = &'i Inode>,
        range: std::ops::Range<u64>,
        options: &SharedDefragmentOptions,
        mut progress: impl FnMut(&SharedDefragmentReport) -> bool,
    ) -> Result<SharedDefragmentReport> {
        let mut job = self.info.defragment_shared(options, &mut progress)?;
        for inode in files.into_iter().filter(|inode| inode.file_type() == FileKind::Regular) {
            if !job.add(inode.place(), range.clone())? {
                break;
            }
        }
        job.finish()
    }

    /// Describes the file that has an extent which stays: its path, as far as it is known.
    pub fn staying_path(&self, staying: &StayingExtent) -> String {
        inode_text(&self.info.trees, staying.place.tree, staying.place.inode)
    }
}

impl Inode {
    /// Returns whether the file shares any data, as `known` finds it.
    ///
    /// # Errors
    /// A tree block or an extent that cannot be read.
    pub fn shares_data(&self, known: &mut SharedExtents) -> Result<bool> {
        for extent in self.open()?.extents(0, usize::MAX)? {
            if known.is_shared(self.tree(), self.number(), &extent)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
