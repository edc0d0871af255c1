//! Disk archives: the used bytes of a file system in one file, for reading.
//!
//! - [`error`]: its faults;
//! - [`frame`]: a frame and its content;
//! - [`sequence`]: reads an archive from its start to its end, also from a pipe;
//! - [`map`]: the devices and chunks of the file system;
//! - [`place`]: where the bytes of a device are in the logical address space;
//! - [`file`]: reads an archive at any place, by its table of contents;
//! - [`chain`]: an archive and those that it is based on;
//! - [`member`]: a device of the file system, made of a chain.
//!
//! The format's structures are in [`papilio_format::disk_archive`]. `papilio-progs` writes archives
//! and restores them.

mod chain;
mod error;
mod file;
mod frame;
mod map;
mod member;
mod place;
mod sequence;
#[cfg(test)]
mod tests;

pub(crate) use chain::has_magic;
pub use chain::{ArchiveChain, check_parent, find_parent, is_archive};
pub use error::{ArchiveError, ArchiveFault};
pub use file::ArchiveFile;
pub use frame::{ArchiveFrame, pack};
pub use map::ArchiveMap;
pub use sequence::{ArchiveReader, ArchiveSummary};
