//! Volumes: logical addresses to places on devices, whatever the profile.
//!
//! [`chunk_map`] knows which chunk covers an address, [`mapping`] where in the chunk's stripes a
//! range lies, [`devices`] which device a stripe is on, [`parity`] and [`rebuild`] how RAID5 and
//! RAID6 get back what is lost. [`superblocks`] brings the devices together, [`log_superblocks`] are those that name
//! a log; [`volume`] holds all of it, [`read`] reads, [`write`] and [`write_rows`] write.

pub(crate) mod chunk_map;
pub(crate) mod devices;
mod log_superblocks;
mod mapping;
mod parity;
pub(crate) mod read;
mod rebuild;
mod row_locks;
pub(crate) mod superblocks;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[allow(clippy::module_inception)]
mod volume;
pub(crate) mod write;
mod write_rows;

pub(crate) use chunk_map::Chunk;
pub(crate) use devices::DeviceSlot;
pub(crate) use log_superblocks::LogSuperblocks;
pub(crate) use read::LogicalRead;
pub(crate) use volume::Volume;
#[allow(unused_imports)] // Callers land next.
pub(crate) use write::LogicalWrite;
