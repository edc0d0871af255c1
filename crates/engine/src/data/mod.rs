//! File data: where it is, its checksums, its compression, and changes of it.
//!
//! A reader uses a tree's root as it was when the read began, and holds no lock. A change has two
//! phases:
//! 1. [`data_context`]: outside any transaction, data is read, compressed, checksummed and written
//!    to new space.
//! 2. [`file_edit`]: inside a transaction handle, [`publish_extents`] puts the extents into the
//!    trees.
//!
//! Whole sectors of an open file may stay between the phases as [`ordered_extents`].

pub mod checksum;
pub(crate) mod checksum_cache;
pub(crate) mod clone;
mod compress;
pub(crate) mod convert;
pub mod csum_edit;
pub(crate) mod data_context;
pub(crate) mod dedupe;
pub(crate) mod encoded;
pub(crate) mod extent_cache;
pub mod extent_map;
mod fiemap;
mod file_data;
pub(crate) mod file_edit;
mod file_extent;
pub mod file_extents_edit;
pub mod fsverity;
mod image;
pub mod in_flight;
mod inline;
pub mod nocow;
pub(crate) mod ordered_budget;
pub(crate) mod ordered_extents;
mod ordered_map;
pub(crate) mod overlap;
pub(crate) mod own_extents;
pub(crate) mod prealloc;
pub(crate) mod progress;
pub(crate) mod publish_extents;
pub(crate) mod punch_hole;
mod range_locks;
mod read;
mod read_batch;
pub(crate) mod rewrite;
mod sector_checksums;
mod seek;
pub(crate) mod space;
mod started_read;
pub mod stored_extents;
pub(crate) mod truncate;
mod verify;
pub(crate) mod write;
pub(crate) mod write_data;
pub(crate) mod write_rules;
pub(crate) mod written_extents;
pub(crate) mod zero_range;

pub use compress::{DecompressError, MAX_COMPRESSED, compress, decompress, verify_stream};
pub use encoded::{EncodedExtent, EncodedRead, compression_of_number, number_of_compression};
pub use fiemap::FiemapExtent;
pub use fiemap::fiemap;
pub use file_data::{FileData, FileTree};
pub use file_extent::{FileExtent, FileExtentKind};
pub use read::ReadContext;
pub use seek::{Whence, seek};
pub(crate) use started_read::StartedRead;

#[cfg(test)]
mod tests;
