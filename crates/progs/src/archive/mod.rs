//! Disk archives: the used bytes of a file system in one file, which is made and restored here.
//!
//! - [`options`]: how an archive is made, and the result;
//! - [`plan`]: the ranges that are used;
//! - [`fill`]: reads, verifies and compresses the content of frames;
//! - [`create`]: writes the archive in order;
//! - [`restore`]: writes the file system to devices;
//! - [`sources`]: archives that are read, with those that they are based on;
//! - [`verify`]: reads all of an archive;
//! - [`partclone`]: writes the device in an image of partclone.
//!
//! The format is in [`papilio_format::disk_archive`], its readers in [`papilio_device::archive`].

mod create;
mod fill;
mod options;
mod partclone;
mod plan;
mod restore;
mod sources;
mod verify;

pub use create::create_archive;
pub use options::{ArchiveCreated, ArchiveOptions, ArchiveParent};
pub use partclone::restore_partclone;
pub use restore::{ArchiveRestored, ArchiveSource, restore_archive, restore_sizes, write_superblocks};
pub use sources::{add_parents, open_source, open_sources};
pub use verify::verify_archive;

use papilio_device::archive::ArchiveError;
use papilio_engine::errors::Error;

/// Returns the error of this project for one of an archive.
fn archive_error(error: ArchiveError) -> Error {
    Error::Invalid(error.to_string())
}
