//! `Backing`: the kind of file that a device is, decided by its mode.
//!
//! Kernel counterpart: `S_IFMT` (include/uapi/linux/stat.h).

use crate::error::OpenErrorKind;
use rustix::fs::{FileType, RawMode};
use std::fs::File;

/// Whether a device is a regular file or a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    RegularFile,
    BlockDevice,
}

impl Backing {
    /// Returns the backing of an open file; refuses every other type of file.
    pub(crate) fn of(file: &File) -> Result<Self, OpenErrorKind> {
        let stat = rustix::fs::fstat(file).map_err(OpenErrorKind::io)?;
        Self::of_mode(stat.st_mode)
    }

    /// Returns the backing of a file with this mode; refuses every other type of file.
    pub(crate) fn of_mode(mode: RawMode) -> Result<Self, OpenErrorKind> {
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Ok(Self::RegularFile),
            FileType::BlockDevice => Ok(Self::BlockDevice),
            FileType::Directory => Err(OpenErrorKind::IsDirectory),
            FileType::CharacterDevice => Err(OpenErrorKind::UnsupportedFileType("character device")),
            FileType::Fifo => Err(OpenErrorKind::UnsupportedFileType("FIFO")),
            FileType::Socket => Err(OpenErrorKind::UnsupportedFileType("socket")),
            _ => Err(OpenErrorKind::UnsupportedFileType("special file")),
        }
    }
}
