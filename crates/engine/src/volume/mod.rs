//! Volumes: mapping logical addresses to device offsets, for all profiles.
//!
//! - [`chunk_map`]: the chunk that covers an address; [`mapping`]: locations in its stripes;
//!   [`devices`]: the device of a stripe;
//! - [`parity`], [`rebuild`]: recovery of lost columns of RAID5 and RAID6;
//! - [`superblocks`]: assembling the devices of a file system; [`log_superblocks`]: superblocks
//!   that name a log tree;
//! - [`counters`]: errors of devices, and addresses with bad copies;
//! - [`at_once`]: work on several devices at once;
//! - [`pieces`]: the pieces of devices for requests in flight;
//! - [`lost_devices`]: devices that fail while in use;
//! - [`dev_replace`]: a device that is being replaced, with its copy; [`new_rows`]: chunks that are
//!   made meanwhile;
//! - [`loaded_rows`]: all stripes of some rows in memory, for a scrub;
//! - [`volume`]: the state of a volume; [`read`]: reading; [`write`], [`write_rows`]: writing;
//!   [`device_writes`]: the batch of writes to devices that both share.

mod at_once;
pub mod chunk_map;
pub(crate) mod counters;
mod dev_replace;
mod device_writes;
pub(crate) mod devices;
mod loaded_rows;
mod log_superblocks;
mod lost_devices;
mod mapping;
mod new_rows;
pub mod parity;
mod pieces;
pub(crate) mod read;
mod rebuild;
mod row_locks;
mod seed_blocks;
mod seeds;
mod superblocks;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[allow(clippy::module_inception)]
mod volume;
pub(crate) mod write;
mod write_rows;

pub use chunk_map::Chunk;
pub(crate) use dev_replace::{DevReplace, HeldRanges};
pub use devices::DeviceSlot;
pub(crate) use loaded_rows::{LoadedPlace, LoadedRows};
pub(crate) use log_superblocks::LogSuperblocks;
pub(crate) use mapping::Element;
pub use pieces::Pieces;
pub(crate) use read::LogicalRead;
pub use superblocks::{compare_copies, read_superblock as superblock_of};
pub use volume::Volume;
pub use write::LogicalWrite;
