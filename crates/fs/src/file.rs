//! Regular files.
//!
//! Owns [`File`], which any number of threads may use at once. Changes of data are in
//! [`file_write`](super::file_write).

use crate::inode::Inode;
use crate::metadata::Metadata;
use papilio_engine::data::extent_map::FileExtents;
use papilio_engine::data::{self, EncodedRead, FiemapExtent, FileData, FileExtent, ReadContext, Whence};
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::file::committed_read::CommittedRead;
use papilio_engine::file::in_flight_io::{Begin, MayWait};
use papilio_engine::file::open_file::OpenFile;
use papilio_engine::file::verity::{FsverityInfo, FsverityMetadata};
use papilio_engine::volume::{Pieces, Volume};
use papilio_format::FileOffset;
use papilio_format::items::inode::FileKind;
use std::ops::Range;

/// The number of bytes that [`File::read_all`] reads at once.
const STEP: usize = 1 << 20;

/// An open regular file. The names of methods are those of [`std::fs::File`] and
/// [`std::os::unix::fs::FileExt`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("backup.img");
/// # let carried = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/fuzz-mixed.img.zst");
/// # zstd::stream::copy_decode(std::fs::File::open(carried)?, std::fs::File::create(&image)?)?;
/// let fs = papilio::FileSystem::open(&image)?;
/// let file = fs.open_file("/sparse")?;
/// assert_eq!(file.len(), 1 << 20);
/// let data = file.seek_data(0)?.expect("a piece in the middle");
/// let mut middle = [0; 4];
/// file.read_exact_at(&mut middle, 500_000)?;
/// assert_eq!(&middle, b"mid\n");
/// assert!(data <= 500_000 && file.seek_hole(data)? > 500_000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct File {
    // Fields drop in this order: the open file goes before the file system.
    /// `None` if the file system is open for reading only.
    open: Option<OpenFile>,
    inode: Inode,
}

impl Inode {
    /// Opens this inode as a regular file.
    ///
    /// # Errors
    /// [`PathError::IsADirectory`], or [`PathError::NotAFile`] for other kinds.
    pub fn open(&self) -> Result<File> {
        match self.file_type() {
            FileKind::Regular => Ok(File::new(self.clone())),
            FileKind::Directory => Err(self.path_error(PathError::IsADirectory)),
            _ => Err(self.path_error(PathError::NotAFile)),
        }
    }
}

impl File {
    /// Opens `inode`, a regular file.
    fn new(inode: Inode) -> Self {
        let info = &inode.file_system().info;
        let open = info.trees.transactions().is_some().then(|| OpenFile::new(info, inode.place()));
        Self { open, inode }
    }

    /// Sets whether reads and writes of this handle bypass the page cache (`O_DIRECT`). Without a
    /// page cache ([`OpenOptions::cache_bytes`](papilio_engine::OpenOptions::cache_bytes)) they
    /// always do. Offsets and lengths need no alignment, and cached and direct handles see each
    /// other's writes.
    pub fn set_direct(&mut self, direct: bool) {
        if let Some(open) = &mut self.open {
            open.set_direct(direct);
        }
    }

    /// Returns the open file of a writable file system.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`].
    pub(super) fn open_file(&self) -> Result<&OpenFile> {
        self.inode.file_system().info.transactions()?;
        Ok(self.open.as_ref().expect("a file of a writable file system is an open file"))
    }

    /// Marks a file that was created without a name, which is deleted with its last handle.
    pub(super) fn set_unnamed(&self) {
        if let Some(open) = &self.open {
            open.set_unnamed();
        }
    }

    /// Returns the open file; `None` if the file system is open for reading only.
    pub(super) fn writable(&self) -> Option<&OpenFile> {
        self.open.as_ref()
    }

    pub(super) fn volume(&self) -> &Volume {
        self.inode.file_system().info.volume()
    }

    /// Returns whether reads of this file may be in flight without a thread.
    pub(super) fn queues_reads(&self) -> bool {
        self.inode.file_system().queues_reads()
    }

    /// Begins a read of a file system that is open for reading only, and adds its pieces.
    pub(super) fn begin_committed_read(
        &self,
        range: (u64, usize),
        may_wait: MayWait,
        pieces: &mut Pieces,
    ) -> Begin<CommittedRead> {
        let info = &self.inode.file_system().info;
        self.with_committed(|file| Ok(info.begin_committed_read(file, range, may_wait, pieces)))
            .unwrap_or(Begin::Wait)
    }

    /// Ends such a read, whose pieces are in `data`, or of which one has failed. Returns whether
    /// `data` is valid; if not, a call that waits reads it anew.
    ///
    /// # Errors
    /// `failed`, where there are no other copies.
    pub(super) fn end_committed_read(
        &self,
        read: &CommittedRead,
        data: &[u8],
        failed: Option<Error>,
    ) -> Result<bool> {
        let info = &self.inode.file_system().info;
        match failed {
            Some(error) if info.has_one_copy(read) => Err(error),
            Some(_) => Ok(false),
            None => Ok(self.with_committed(|file| info.is_valid_read(file, read, data)).unwrap_or(false)),
        }
    }

    /// Returns the inode, with the metadata as of when the file was opened.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Returns the metadata as it is now (`fstat`).
    ///
    /// # Errors
    /// An inode that cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        match &self.open {
            Some(_) => Ok(*self.inode.file_system().reload(self.inode.place())?.metadata()),
            None => Ok(*self.inode.metadata()),
        }
    }

    /// Returns the size in bytes as it is now. Cheaper than [`File::metadata`].
    ///
    /// # Errors
    /// An inode that cannot be read.
    pub fn size(&self) -> Result<u64> {
        match &self.open {
            Some(open) => open.size(),
            None => Ok(self.inode.metadata().size()),
        }
    }

    /// Returns the size in bytes; if [`File::size`] fails, as of when the file was opened.
    pub fn len(&self) -> u64 {
        self.size().unwrap_or(self.inode.metadata().size())
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads at byte `offset` and returns the number of bytes read, which is less than the buffer's
    /// length only at the end of the file. Holes and preallocated ranges read as zeros. Every byte
    /// is verified by its checksum, unless the file has none or verification is turned off.
    ///
    /// # Errors
    /// [`Error::DataChecksum`] if no copy is good; [`Error::Verity`]; a device error; an invalid
    /// extent.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(open) = &self.open {
            return open.read_at(buffer, offset);
        }
        self.read_committed(&self.inode.file_system().info.reader, buffer, offset)
    }

    fn read_committed(&self, reader: &ReadContext, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.with_committed(|file| reader.read(file, FileOffset(offset), buffer))
    }

    /// Runs `read` on the file as the last commit has it; again, where extents moved meanwhile.
    fn with_committed<R>(&self, mut read: impl FnMut(&FileData<'_>) -> Result<R>) -> Result<R> {
        self.inode.file_system().info.read_until_unmoved(|| {
            let handle = self.inode.handle()?;
            let file = FileData {
                tree: handle.tree().into(),
                inode: handle.number,
                flags: handle.item.flags,
                size: handle.item.size,
                written: None,
                extent_cache: None,
                ordered: None,
            };
            read(&file)
        })
    }

    /// Returns the parameters of the file's Merkle tree and the file digest, or `None` for a file
    /// without fs-verity.
    ///
    /// # Errors
    /// [`Error::MissingItem`] or [`Error::Item`] for a descriptor that is missing or invalid; a
    /// tree block that cannot be read.
    pub fn verity(&self) -> Result<Option<FsverityInfo>> {
        match &self.open {
            Some(open) => open.verity(),
            None => {
                let info = &self.inode.file_system().info;
                self.with_committed(|file| FsverityInfo::of(info, file))
            }
        }
    }

    /// Reads what fs-verity stores beside the file (`FS_IOC_READ_VERITY_METADATA`) from byte
    /// `offset` on. Returns the number of bytes, which is smaller than the buffer only at the end;
    /// `None` without fs-verity, and for the signature of a file that has none.
    ///
    /// # Errors
    /// As [`File::verity`].
    pub fn read_verity(
        &self,
        kind: FsverityMetadata,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        match &self.open {
            Some(open) => open.read_verity(kind, offset, buffer),
            None => {
                let info = &self.inode.file_system().info;
                self.with_committed(|file| kind.read(info, file, offset, buffer))
            }
        }
    }

    /// Fills `buffer` from byte `offset` on.
    ///
    /// # Errors
    /// [`PathError::UnexpectedEnd`] if the file ends first, with unspecified content in `buffer`;
    /// as [`File::read_at`].
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        // One read is short only at the end of the file.
        let read = self.read_at(buffer, offset)?;
        if read < buffer.len() {
            return Err(self.offset_error(offset + read as u64, PathError::UnexpectedEnd));
        }
        Ok(())
    }

    /// Returns the first byte of data at or after `offset` (`SEEK_DATA`), or `None` if only a hole
    /// follows. Preallocated ranges count as holes.
    ///
    /// # Errors
    /// [`PathError::BeyondEnd`] if `offset` is not below the size; a tree block that cannot be
    /// read.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.check_within(offset)?;
        self.seek(offset, Whence::Data)
    }

    /// Returns the first byte of a hole at or after `offset` (`SEEK_HOLE`). The end of the file
    /// counts as a hole.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.check_within(offset)?;
        Ok(self.seek(offset, Whence::Hole)?.unwrap_or(self.len()))
    }

    /// Returns the next range at or after `offset` of which the extents cannot be read, so that its
    /// content is unknown, with the reason. `None` if all the others are known. The range ends at
    /// an extent that can be read, or at the end of the file.
    pub fn next_unreadable(&self, offset: u64) -> Option<(Range<u64>, Error)> {
        let size = self.len();
        let handle = match self.inode.handle() {
            Ok(handle) => handle,
            Err(error) => return Some((offset..size, error)),
        };
        let (tree, number) = (handle.tree(), handle.number);
        let mut extents =
            FileExtents::new(tree, number, self.sector_size(), FileOffset(offset), FileOffset(size));
        let error = extents.by_ref().find_map(Result::err)?;
        let start = extents.reached().min(size);
        let end = extents.behind_fault().map_or(size, |behind| behind.min(size));
        (start < end).then_some((start..end, error))
    }

    /// Reads as [`File::read_at`], but does not verify checksums. For data whose checksums are
    /// lost. A file system that is open for writing is read with verification.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_unverified_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if self.open.is_some() {
            return self.read_at(buffer, offset);
        }
        self.read_committed(&self.inode.file_system().info.unverified, buffer, offset)
    }

    /// Returns the extents in order (`FIEMAP`), starting with the one that contains byte `offset`.
    /// [`FiemapExtent::SHARED`] is never set.
    ///
    /// # Errors
    /// A tree block or an extent that cannot be read.
    pub fn fiemap(&self, offset: u64) -> Result<Vec<FiemapExtent>> {
        self.map_extents(offset, usize::MAX, |_| Ok(false))
    }

    /// As [`File::fiemap`], but ends after `most` extents, and marks those that other files use, as
    /// far as the last commit knows.
    ///
    /// # Errors
    /// A tree block or an extent that cannot be read.
    #[cfg(feature = "unstable")]
    pub fn fiemap_with_shared(&self, offset: u64, most: usize) -> Result<Vec<FiemapExtent>> {
        let mut shared = self.inode.file_system().shared_extents_of_last_commit();
        let (tree, number) = (self.inode.tree(), self.inode.number());
        self.map_extents(offset, most, |extent| shared.is_shared(tree, number, extent))
    }

    fn map_extents(
        &self,
        offset: u64,
        most: usize,
        shared: impl FnMut(&FileExtent) -> Result<bool>,
    ) -> Result<Vec<FiemapExtent>> {
        self.flush()?;
        let handle = self.inode.handle()?;
        let mut extents = Vec::new();
        let report = |extent| {
            extents.push(extent);
            extents.len() < most
        };
        let (tree, offset) = (handle.tree(), FileOffset(offset));
        data::fiemap(tree, handle.number, self.sector_size(), offset, shared, report)?;
        Ok(extents)
    }

    /// Returns the extents in order, one for each item of the file, without holes. Starts with the
    /// one that contains byte `offset`, and ends after `most` of them.
    ///
    /// # Errors
    /// A tree block or an extent that cannot be read.
    pub fn extents(&self, offset: u64, most: usize) -> Result<Vec<FileExtent>> {
        self.flush()?;
        let handle = self.inode.handle()?;
        let sector_size = self.sector_size();
        let end = FileOffset(u64::MAX - u64::from(sector_size));
        FileExtents::whole(handle.tree(), handle.number, sector_size, FileOffset(offset), end)
            .filter_map(|extent| extent.map(|extent| FileExtent::of(&extent)).transpose())
            .take(most)
            .collect()
    }

    /// Reads at byte `offset` as the data lies on the device, without decompressing it
    /// (`BTRFS_IOC_ENCODED_READ`). Covers one extent or hole, and at most `most` stored bytes;
    /// without compression at most 128 KiB from the start of the sector. Checksums are verified.
    /// Returns `None` for a compressed extent that is larger than `most`.
    ///
    /// # Errors
    /// As [`File::read_at`]; [`Error::ReadOnlyFileSystem`] if the file system is open for reading
    /// only.
    pub fn read_encoded_at(&self, offset: u64, most: usize) -> Result<Option<EncodedRead>> {
        self.open_file()?.read_encoded_at(offset, most)
    }

    /// Reads the whole file. Memory grows as bytes are read, not by the size that the inode claims.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_all(&self) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        loop {
            let start = content.len();
            // Another thread may have truncated the file since.
            let left = self.size()?.saturating_sub(start as u64);
            let step = STEP.min(usize::try_from(left).unwrap_or(STEP));
            if step == 0 {
                return Ok(content);
            }
            content.try_reserve(step).map_err(|_| {
                Error::Invalid(format!("inode {}: the content does not fit in memory", self.inode.number()))
            })?;
            content.resize(start + step, 0);
            let read = self.read_at(&mut content[start..], start as u64)?;
            content.truncate(start + read);
            if read == 0 {
                return Ok(content);
            }
        }
    }

    /// Flushes the file: publishes its dirty pages and ordered extents.
    pub(super) fn flush(&self) -> Result<()> {
        self.open.as_ref().map_or(Ok(()), OpenFile::flush)
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<Option<u64>> {
        self.flush()?;
        let handle = self.inode.handle()?;
        let sector_size = self.sector_size();
        let size = self.len();
        let found = data::seek(handle.tree(), handle.number, size, sector_size, FileOffset(offset), whence)?;
        Ok(found.map(FileOffset::get))
    }

    fn sector_size(&self) -> u32 {
        // Not from the superblock: a commit holds its lock during device I/O.
        self.inode.file_system().info.volume().geometry().sector_size
    }

    fn check_within(&self, offset: u64) -> Result<()> {
        if offset < self.len() {
            return Ok(());
        }
        Err(self.offset_error(offset, PathError::BeyondEnd))
    }

    fn offset_error(&self, offset: u64, kind: PathError) -> Error {
        let path = format!("subvolume {}, inode {}, offset {offset}", self.inode.tree(), self.inode.number());
        Error::path(path.as_bytes(), kind)
    }
}
