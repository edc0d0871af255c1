//! Metadata dumps of a file system, as `btrfs-image` writes them, and file systems made of dumps.
//!
//! - [`dump`]: writes a dump; [`collect`] finds its parts, [`clean`] removes content from blocks,
//!   [`names`] replaces names;
//! - [`source`]: reads a dump; [`chunks`]: its chunk tree; [`mapping`]: where chunks come to lie;
//! - [`one_device`]: the trees of a file system that is restored to fewer devices; [`refill`]: a
//!   tree with other items in the same blocks;
//! - [`restore`]: writes the file system to devices.
//!
//! Facts about the format are in [`papilio_format::metadump`].

mod chunks;
mod clean;
pub(crate) mod collect;
pub mod dump;
mod mapping;
mod names;
mod one_device;
mod refill;
pub(crate) mod restore;
mod source;

pub use dump::{ImageDumpOptions, ImageDumped, NameReplacement};
pub use restore::{ImageDump, ImageRestored, RestoreMode};
