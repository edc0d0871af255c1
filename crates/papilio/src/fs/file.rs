//! Regular files.
//!
//! Owns [`File`], which any number of threads may read at once. Changes of data are in
//! [`file_write`](super::file_write).

use crate::data::{self, FiemapExtent, FileData, Whence};
use crate::errors::{Error, PathError, Result};
use crate::file::open_file::OpenFile;
use crate::fs::inode::Inode;
use crate::fs::metadata::Metadata;
use papilio_format::FileOffset;
use papilio_format::items::inode::FileKind;

/// Bytes that [`File::read_all`] reads at once.
const STEP: usize = 1 << 20;

/// An open regular file.
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
/// file.read_at(&mut middle, 500_000)?;
/// assert_eq!(&middle, b"mid\n");
/// assert!(data <= 500_000 && file.seek_hole(data)? > 500_000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct File {
    // In this order: the open file is dropped before the file system.
    /// `None` where the file system is open for reading.
    open: Option<OpenFile>,
    inode: Inode,
}

impl Inode {
    /// Opens this regular file.
    ///
    /// # Errors
    /// [`PathError::IsADirectory`] or [`PathError::NotAFile`].
    pub fn open(&self) -> Result<File> {
        match self.kind() {
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

    /// Makes reads and writes of this handle bypass the page cache (`O_DIRECT`). Without a page cache
    /// ([`OpenOptions::cache_bytes`](crate::OpenOptions::cache_bytes)) they always do. Neither offsets nor lengths
    /// have to be aligned, and each kind of access sees what the other wrote.
    pub fn set_direct(&mut self, direct: bool) {
        if let Some(open) = &mut self.open {
            open.set_direct(direct);
        }
    }

    /// The file as one that can be written.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`].
    pub(super) fn open_file(&self) -> Result<&OpenFile> {
        self.inode.file_system().info.transactions()?;
        Ok(self.open.as_ref().expect("a file system that is open for writing has open files"))
    }

    /// Marks a file that was created without a name: it is deleted with its last handle.
    pub(super) fn set_unnamed(&self) {
        if let Some(open) = &self.open {
            open.set_unnamed();
        }
    }

    /// The file as one that can be written, where the file system can.
    pub(super) fn writable(&self) -> Option<&OpenFile> {
        self.open.as_ref()
    }

    /// Its inode.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// What `stat` shows of it.
    pub fn metadata(&self) -> &Metadata {
        self.inode.metadata()
    }

    /// Returns the size in bytes as of now.
    ///
    /// # Errors
    /// An inode that cannot be read.
    pub fn size(&self) -> Result<u64> {
        match &self.open {
            Some(open) => open.size(),
            None => Ok(self.metadata().size()),
        }
    }

    /// As [`File::size`]; where that cannot be told, as of when it was opened.
    pub fn len(&self) -> u64 {
        self.size().unwrap_or(self.metadata().size())
    }

    /// Whether its size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads from byte `offset` on, and returns how many bytes were read: fewer than fit only at the
    /// end of the file. Holes and preallocated ranges read as zeros. Every byte was compared with
    /// its checksum, unless the file has none or the options said not to.
    ///
    /// # Errors
    /// [`Error::DataChecksum`] where no copy is good; a device's error; an extent that makes no
    /// sense.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(open) = &self.open {
            return open.read_at(buffer, offset);
        }
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
        self.inode.file_system().info.reader.read(&file, FileOffset(offset), buffer)
    }

    /// The first byte at or after `offset` that holds data (`SEEK_DATA`); `None` if only a hole
    /// follows. Preallocated ranges are holes.
    ///
    /// # Errors
    /// [`PathError::BeyondEnd`] from the end of the file on; a tree block that cannot be read.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.check_within(offset)?;
        self.seek(offset, Whence::Data)
    }

    /// The first byte at or after `offset` that lies in a hole (`SEEK_HOLE`); the end of the file is
    /// one.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.check_within(offset)?;
        Ok(self.seek(offset, Whence::Hole)?.unwrap_or(self.len()))
    }

    /// The extents as `FIEMAP` reports them, in order, from the one that holds byte `offset` on.
    /// Whether others refer to an extent ([`FiemapExtent::SHARED`]) is not looked up.
    ///
    /// # Errors
    /// A tree block or an extent that cannot be read.
    pub fn fiemap(&self, offset: u64) -> Result<Vec<FiemapExtent>> {
        self.flush()?;
        let handle = self.inode.handle()?;
        let mut extents = Vec::new();
        data::fiemap(
            handle.tree(),
            handle.number,
            self.sector_size(),
            FileOffset(offset),
            |_| Ok(false),
            |extent| {
                extents.push(extent);
                true
            },
        )?;
        Ok(extents)
    }

    /// The whole content. Memory grows as bytes are read, never by the size that the inode claims.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_all(&self) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        loop {
            let start = content.len();
            // It may have become shorter since.
            let left = self.size()?.saturating_sub(start as u64);
            let step = STEP.min(usize::try_from(left).unwrap_or(STEP));
            if step == 0 {
                return Ok(content);
            }
            content.try_reserve(step).map_err(|_| {
                Error::Invalid(format!("inode {}: its content does not fit in memory", self.inode.number()))
            })?;
            content.resize(start + step, 0);
            let read = self.read_at(&mut content[start..], start as u64)?;
            content.truncate(start + read);
            if read == 0 {
                return Ok(content);
            }
        }
    }

    /// Publishes what memory holds of the file.
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
        // Not from the superblock, which a commit locks while the device works.
        self.inode.file_system().info.volume().geometry().sector_size
    }

    fn check_within(&self, offset: u64) -> Result<()> {
        if offset < self.len() {
            return Ok(());
        }
        let path = format!("subvolume {}, inode {}, offset {offset}", self.inode.tree(), self.inode.number());
        Err(Error::path(path.as_bytes(), PathError::BeyondEnd))
    }
}
