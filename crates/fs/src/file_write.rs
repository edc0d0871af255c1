//! Changes of a file's data.
//!
//! Owns the methods of [`File`] that write, truncate, allocate, clone and sync. The work is done by
//! [`papilio_engine::file`].

use crate::file::File;
use crate::inode::Inode;
use papilio_engine::data::EncodedExtent;
use papilio_engine::errors::Result;
use papilio_engine::file::defragment::DefragmentOptions;
use papilio_engine::file::open_file::{OpenFile, Stamp};
use papilio_engine::file::verity::FsverityOptions;
use papilio_engine::file::write_promise::WritePromise;
use papilio_format::items::inode::FileKind;
use std::os::fd::AsFd;

impl File {
    /// Runs a change, and waits for deletions if there is no space for it.
    fn change<R>(&self, mut change: impl FnMut(&OpenFile) -> Result<R>) -> Result<R> {
        let open = self.open_file()?;
        open.fs.deletions.beside(|| change(open))
    }

    /// Notes that this handle and its clones are open for writing. They write data from now on even
    /// if the subvolume becomes read-only, as descriptors of the kernel do. Without this call, a
    /// handle does so if the subvolume was writable when the handle was opened, or at a write.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`]; [`PathError::ReadOnly`] if the subvolume is read-only;
    /// [`PathError::NoSubvolume`].
    ///
    /// [`Error::ReadOnlyFileSystem`]: papilio_engine::Error::ReadOnlyFileSystem
    /// [`PathError::ReadOnly`]: papilio_engine::PathError::ReadOnly
    /// [`PathError::NoSubvolume`]: papilio_engine::PathError::NoSubvolume
    pub fn begin_writing(&self) -> Result<()> {
        self.open_file()?.begin_writing()
    }

    /// Writes `data` at byte `offset` and returns the number of bytes that are stored, as `pwrite`
    /// does. They are fewer than `data` has only if the others have no space, or would exceed the
    /// limit of a qgroup, or a later step failed. The next call then meets the error.
    ///
    /// # Errors
    /// As [`File::write_all_at`], if no byte is stored.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let (stored, result) = self.write_prefix(data, offset, Stamp::Now);
        if stored > 0 { Ok(stored) } else { result.map(|()| 0) }
    }

    /// Writes all of `data` at byte `offset`. If `offset` is past the end, the gap reads as zeros.
    /// Neither `offset` nor the length needs to be aligned, but the file system first reads sectors
    /// that are written in part.
    ///
    /// # Errors
    /// [`PathError::TooLarge`], [`Error::NoSpace`], [`PathError::NotPermitted`] for an immutable
    /// file, or a failure to read or write. As much of the data as [`File::write_at`] stores stays
    /// written.
    ///
    /// [`PathError::TooLarge`]: papilio_engine::PathError::TooLarge
    /// [`PathError::NotPermitted`]: papilio_engine::PathError::NotPermitted
    /// [`Error::NoSpace`]: papilio_engine::Error::NoSpace
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_prefix(data, offset, Stamp::Now).1
    }

    /// Writes as much of `data` as fits, and returns the number of bytes that are stored beside the
    /// result for all of it.
    fn write_prefix(&self, data: &[u8], offset: u64, stamp: Stamp) -> (usize, Result<()>) {
        let mut stored = 0;
        let result = self.change(|open| {
            let (rest, at) = (&data[stored..], offset.saturating_add(stored as u64));
            open.write_prefix(rest, at, (stamp, WritePromise::default()), &mut stored)
        });
        (stored, result)
    }

    /// Writes a part of a compressed extent at byte `offset`, without decompressing it
    /// (`BTRFS_IOC_ENCODED_WRITE`). The device gets the extent as it is; that it decompresses is
    /// the caller's promise. Returns false if the file cannot have it so, and has not changed: the
    /// range ends neither at a sector nor at the end of the file, the file has no checksums, or the
    /// extent saves no sector. The caller then writes the bytes.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn write_encoded_at(&self, extent: &EncodedExtent<'_>, offset: u64) -> Result<bool> {
        self.change(|open| open.write_encoded_at(extent, offset))
    }

    /// Shares `length` bytes of a file of the host, from byte `from` on, with this file at byte
    /// `offset` (`FICLONERANGE`). The image must be a regular file in the same file system of the
    /// host, one that can share blocks. All numbers are multiples of the sector size.
    ///
    /// # Errors
    /// As [`File::write_all_at`]; [`Error::Invalid`](papilio_engine::Error::Invalid) for numbers
    /// that are no multiples of the sector size, and for chunks with parity;
    /// [`Error::Device`](papilio_engine::Error::Device) if the host cannot share the blocks.
    pub fn clone_from_host(&self, source: impl AsFd, from: u64, length: u64, offset: u64) -> Result<()> {
        self.change(|open| open.clone_from_file(source.as_fd(), from, length, offset))
    }

    /// As [`File::write_all_at`], but leaves mtime and ctime as they are. For a caller that writes
    /// back what its client cached, and that stores the times of the client's changes with
    /// [`Inode::set_attributes`], before or after.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn write_back_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_prefix(data, offset, Stamp::Keep).1
    }

    /// Keeps space for a write of `length` bytes that a client announces; without an `offset`, for
    /// one anywhere in the file. The result is empty where the file has the space already: in
    /// preallocated extents, or in a `NODATACOW` file. The limits of qgroups count the write at
    /// once.
    ///
    /// # Errors
    /// [`Error::NoSpace`](papilio_engine::Error::NoSpace), or
    /// [`QuotaError::Exceeded`](papilio_engine::QuotaError::Exceeded).
    pub fn promise_write(&self, offset: Option<u64>, length: u64) -> Result<WritePromise> {
        self.change(|open| open.promise_write(offset, length))
    }

    /// As [`File::write_back_at`], in the space of `promise` as far as that lasts. Returns the
    /// number of bytes that are stored beside the result for all of the data.
    pub fn write_back_promised(
        &self,
        data: &[u8],
        offset: u64,
        promise: WritePromise,
    ) -> (usize, Result<()>) {
        if promise.is_empty() {
            return self.write_prefix(data, offset, Stamp::Keep);
        }
        let mut stored = 0;
        let write = |open: &OpenFile| open.write_prefix(data, offset, (Stamp::Keep, promise), &mut stored);
        let result = self.open_file().and_then(write);
        (stored, result)
    }

    /// Sets the size of the file in bytes (`ftruncate`). A longer file reads as zeros at its end.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.change(|open| open.set_len(size))
    }

    /// Writes small extents in a range of bytes anew as larger ones, without a change of the
    /// content or the times. Extents that snapshots share are copied, so this may need space. Calls
    /// `progress` with the offset that is reached; where it returns false, the work stops. Returns
    /// the bytes that were rewritten.
    ///
    /// # Errors
    /// As [`File::write_all_at`]. The extents that were rewritten until then stay so.
    pub fn defragment(
        &self,
        range: std::ops::Range<u64>,
        options: &DefragmentOptions,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<u64> {
        self.open_file()?.defragment(range, options, &mut progress)
    }

    /// Builds the Merkle tree of the file's data and turns on fs-verity (`FS_IOC_ENABLE_VERITY`):
    /// from then on the data never changes, and every read is verified. It is durable on return.
    /// Calls `progress` with the bytes that are hashed; where it returns false, the work stops and
    /// the file stays as it was.
    ///
    /// # Errors
    /// - [`PathError::Exists`] if the file has fs-verity.
    /// - [`PathError::NotPermitted`] for an immutable or append-only file.
    /// - [`PathError::Busy`] if the file changes meanwhile.
    /// - As [`File::write_all_at`]; [`Error::Invalid`](papilio_engine::Error::Invalid) for wrong
    ///   options, or where `progress` stops the work.
    ///
    /// [`PathError::Exists`]: papilio_engine::PathError::Exists
    /// [`PathError::NotPermitted`]: papilio_engine::PathError::NotPermitted
    /// [`PathError::Busy`]: papilio_engine::PathError::Busy
    pub fn enable_verity(
        &self,
        options: &FsverityOptions,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<()> {
        self.open_file()?.enable_verity(options, &mut progress)
    }

    /// Makes a hole of `length` bytes at `offset` (`FALLOC_FL_PUNCH_HOLE`). The size does not
    /// change.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        self.change(|open| open.punch_hole(offset, length))
    }

    /// Allocates space for all sectors of a range (`fallocate`). Sectors that had no space read as
    /// zeros.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.change(|open| open.allocate(offset, length, keep_size))
    }

    /// Makes a range read as zeros and allocates space for all its sectors
    /// (`FALLOC_FL_ZERO_RANGE`). If the space does not suffice, a part of the range may become a
    /// hole, which also reads as zeros.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.change(|open| open.zero_range(offset, length, keep_size))
    }

    /// Shares `length` bytes of `source` at `from` with this file at `to` (`FICLONERANGE`). A
    /// `length` of 0 means up to the end of `source`. Both may be the same file, or be in different
    /// subvolumes.
    ///
    /// # Errors
    /// [`Error::Invalid`](papilio_engine::Error::Invalid) if an offset is not at a sector boundary,
    /// the ranges overlap, or only one of the files has checksums; as [`File::write_all_at`].
    pub fn clone_range(&self, source: &File, from: u64, length: u64, to: u64) -> Result<()> {
        self.open_file()?.clone_range(source.open_file()?, from, length, to)
    }

    /// Shares a range of `source` with this file if their bytes are equal (`FIDEDUPERANGE`).
    /// Returns the number of bytes shared, or `None` if the ranges differ.
    ///
    /// # Errors
    /// As [`File::clone_range`].
    pub fn dedupe_range(&self, source: &File, from: u64, length: u64, to: u64) -> Result<Option<u64>> {
        self.open_file()?.dedupe_range(source.open_file()?, from, length, to)
    }

    /// Writes back the dirty pages of this file and evicts all its pages from the page cache.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn drop_cache(&self) -> Result<()> {
        self.writable().map_or(Ok(()), |open| open.drop_cache())
    }

    /// Makes all changes of this file up to now durable, and its names if they changed (`fsync`).
    /// The file system writes the log tree, or commits if the log cannot express the change or is
    /// turned off.
    ///
    /// # Errors
    /// As [`FileSystem::sync`](crate::FileSystem::sync).
    pub fn sync_all(&self) -> Result<()> {
        self.change(OpenFile::sync)
    }

    /// Makes all data written to this file up to now durable, with the metadata needed to read it
    /// back: the size, the extents, the names of a new file (`fdatasync`). Times, attributes and
    /// further names of an older file are not included. If no such metadata changed, the file
    /// system only flushes the data overwritten in place.
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub fn sync_data(&self) -> Result<()> {
        self.change(OpenFile::sync_data)
    }
}

impl Inode {
    /// Makes this inode durable as [`File::sync_all`] does, for every kind of file. For a directory
    /// this includes all changes of its entries and the new directories below it, but not the data
    /// of files in it.
    ///
    /// # Errors
    /// As [`FileSystem::sync`](crate::FileSystem::sync).
    pub fn sync_all(&self) -> Result<()> {
        match self.file_type() {
            FileKind::Regular => self.open()?.sync_all(),
            _ => self.file_system().info.sync_inode(self.place(), None),
        }
    }
}
