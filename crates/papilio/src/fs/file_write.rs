//! Changes of a file's data.
//!
//! Owns the methods of [`File`] that write, truncate, allocate, clone and sync. The work is done by
//! [`crate::file`].

use crate::errors::Result;
use crate::fs::file::File;
use crate::fs::inode::Inode;
use papilio_format::items::inode::FileKind;

impl File {
    /// Writes all of `data` at byte `offset`; behind the end, zeros come in between. Neither has to be
    /// aligned, but sectors that are written in part are read first.
    ///
    /// # Errors
    /// [`PathError::TooLarge`], [`Error::NoSpace`], [`PathError::NotPermitted`] for an immutable file, or what
    /// reading and writing meets. What came before a failing step stays written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.open_file()?.write_at(data, offset)
    }

    /// Makes the file `size` bytes long (`ftruncate`).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.open_file()?.set_len(size)
    }

    /// Makes a hole of `length` bytes from `offset` on; the size stays (`FALLOC_FL_PUNCH_HOLE`).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        self.open_file()?.punch_hole(offset, length)
    }

    /// Gives room to all sectors of a range; those that had none read as zeros (`fallocate`).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.open_file()?.allocate(offset, length, keep_size)
    }

    /// Makes a range read as zeros, with room for all its sectors (`FALLOC_FL_ZERO_RANGE`). Where there is no
    /// room for them, a part of the range may be a hole, which reads the same.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.open_file()?.zero_range(offset, length, keep_size)
    }

    /// Shares `length` bytes of `source` from `from` on (up to its end for 0) as this file's from `to` on
    /// (`FICLONERANGE`). The files may be the same, and lie in different subvolumes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for offsets that are not at sector boundaries, overlapping ranges, or files of
    /// which only one has checksums; as [`File::write_at`].
    pub fn clone_range(&self, source: &File, from: u64, length: u64, to: u64) -> Result<()> {
        self.open_file()?.clone_range(source.open_file()?, from, length, to)
    }

    /// Shares the bytes of `source` if they are the same (`FIDEDUPERANGE`). Returns how many bytes were, or
    /// `None` where the ranges differ.
    ///
    /// # Errors
    /// As [`File::clone_range`].
    pub fn dedupe_range(&self, source: &File, from: u64, length: u64, to: u64) -> Result<Option<u64>> {
        self.open_file()?.dedupe_range(source.open_file()?, from, length, to)
    }

    /// Lets go of the pages that the page cache holds of this file, after writing back those that are dirty.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn drop_cache(&self) -> Result<()> {
        self.writable().map_or(Ok(()), |open| open.drop_cache())
    }

    /// Makes all changes of this file that were made before the call durable, and the names that it has by then, where
    /// they changed (`fsync`). The file system writes the log tree for that, or commits where the log cannot express
    /// the change or is turned off.
    ///
    /// # Errors
    /// As [`FileSystem::sync`](crate::FileSystem::sync).
    pub fn sync(&self) -> Result<()> {
        self.open_file()?.sync()
    }

    /// Makes all data that was written to this file before the call durable, and the metadata that reading it back
    /// takes: the size, the extents, the names of a new file. Times, attributes and new names of a file that had one
    /// before are not included (`fdatasync`). Where none of these changed, only data that was overwritten in place is
    /// flushed.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn sync_data(&self) -> Result<()> {
        self.open_file()?.sync_data()
    }
}

impl Inode {
    /// Makes this inode durable as [`File::sync`] does, whatever kind it is. A directory is made durable with all of its
    /// entries, new and removed ones, and with new directories below it. The data of files in it need not be.
    ///
    /// # Errors
    /// As [`FileSystem::sync`](crate::FileSystem::sync).
    pub fn sync(&self) -> Result<()> {
        match self.kind() {
            FileKind::Regular => self.open()?.sync(),
            _ => self.file_system().info.sync_inode(self.place(), None),
        }
    }
}
