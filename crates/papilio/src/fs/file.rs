//! Regular files, as callers see them.
//!
//! Owns [`File`], which any number of threads may read at once, and [`FileReader`], which adds a
//! position for `std::io`.

use crate::btree::LiveTree;
use crate::data::{self, FiemapExtent, FileData, FileTree, Whence};
use crate::errors::{Error, PathError, Result};
use crate::fs::open_inodes::OpenInode;
use crate::fs::{Inode, Metadata};
use crate::transaction::{LazyTree, Transactions};
use papilio_format::FileOffset;
use papilio_locks::Mutex;
use papilio_pagecache::{Mapping, Readahead, ReadaheadRequest};
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Bytes read at once when a whole file is asked for.
const STEP: usize = 1 << 20;
/// Pages that a file is read ahead by at most.
const READAHEAD_PAGES: u64 = 1024;

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
    /// Keeps the file alive after its last name went; absent where nothing changes. Let go of before the
    /// file system is.
    open: Option<Arc<OpenInode>>,
    inode: Inode,
    /// Its subvolume, once it was needed: no other takes its number.
    live: OnceLock<Arc<LiveTree>>,
    /// Reads and writes go past the page cache.
    direct: bool,
    readahead: Arc<Mutex<Readahead>>,
}

impl File {
    /// `inode` is a regular file's.
    pub(super) fn new(inode: Inode) -> Self {
        let mounted = &inode.file_system().mounted;
        let changes = mounted.trees.transactions().is_some();
        let open = changes.then(|| mounted.open_inodes.open(mounted, inode.place()));
        let readahead = Arc::new(Mutex::new(Readahead::new(READAHEAD_PAGES)));
        Self { open, inode, live: OnceLock::new(), direct: false, readahead }
    }

    /// Whether reads and writes go past the page cache, from and to the device (`O_DIRECT`). Without a cache
    /// ([`OpenOptions::cache_bytes`](crate::OpenOptions::cache_bytes)) they always do. Neither offsets nor
    /// lengths have to be aligned, and both kinds of access see what the other wrote.
    pub fn set_direct(&mut self, direct: bool) {
        self.direct = direct;
    }

    /// The file's pages, if this handle is to use them.
    pub(super) fn cached<'a>(&self, open: &'a OpenInode) -> Option<&'a Mapping> {
        open.mapping.as_ref().filter(|_| !self.direct)
    }

    /// What is to be read ahead, given what is read.
    pub(super) fn readahead(
        &self,
        pages: Range<u64>,
        missing: bool,
        file_pages: u64,
    ) -> Option<ReadaheadRequest> {
        // Several threads on one handle: whoever comes second has nothing to say about its order.
        self.readahead.try_lock()?.access(pages, missing, file_pages)
    }

    /// What keeps readers and writers of its data apart.
    pub(super) fn open_inode(&self) -> Result<&OpenInode> {
        self.inode.file_system().transactions()?;
        Ok(self.open.as_ref().expect("files of a file system that can be written have one"))
    }

    /// As [`File::open_inode`], where it is open for writing.
    pub(super) fn open_arc(&self) -> Option<&Arc<OpenInode>> {
        self.open.as_ref()
    }

    /// It was made without a name: it goes when it is closed.
    pub(super) fn set_unnamed(&self) {
        if let Some(open) = &self.open {
            open.set_unnamed();
        }
    }

    /// Its inode.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// What `stat` shows of it.
    pub fn metadata(&self) -> &Metadata {
        self.inode.metadata()
    }

    /// Its size in bytes, as of now.
    ///
    /// # Errors
    /// An inode that cannot be read.
    pub fn size(&self) -> Result<u64> {
        match &self.open {
            Some(open) => self.size_of(open),
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
        if let Some(open) = &self.open
            && let Some(mapping) = &open.mapping
        {
            if !self.direct {
                return self.read_buffered(open, mapping, buffer, offset);
            }
            let range = offset..offset.saturating_add(buffer.len() as u64);
            // Also what lies before dirty pages that make the file longer belongs to it.
            if mapping.has_dirty(range.clone()) || self.is_longer_in_memory(open, range.end)? {
                self.flush()?;
            }
        }
        match &self.open {
            Some(open) => {
                let _shared = open.data.read();
                self.read_trees(open, buffer, offset)
            }
            None => {
                let handle = self.inode.handle()?;
                let file = FileData {
                    tree: handle.tree().into(),
                    inode: handle.number,
                    flags: handle.item.flags,
                    size: handle.item.size,
                    written: None,
                    known: None,
                    ordered: None,
                };
                self.inode.file_system().mounted.reader.read(&file, FileOffset(offset), buffer)
            }
        }
    }

    /// The subvolume that it is in.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(super) fn live(&self, transactions: &Transactions) -> Result<&LiveTree> {
        if let Some(live) = self.live.get() {
            return Ok(live);
        }
        let live = transactions.live().get(self.inode.tree())?;
        Ok(self.live.get_or_init(|| live))
    }

    /// Whether `end` lies behind the end of the file as the tree has it, and memory has more of it.
    fn is_longer_in_memory(&self, open: &OpenInode, end: u64) -> Result<bool> {
        let live = self.live(self.inode.file_system().transactions()?)?;
        let in_tree = open.glance(live)?.size;
        Ok(end > in_tree && open.size(live)? > in_tree)
    }

    /// Reads what trees and device have; the caller holds the data lock.
    pub(super) fn read_trees(&self, open: &OpenInode, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let fs = self.inode.file_system();
        let transactions = fs.transactions()?;
        let live = self.live(transactions)?;
        self.check_referenced(live)?;
        let glance = open.glance(live)?;
        let tree = LazyTree::new(transactions, live);
        let ordered = Some(&open.ordered).filter(|ordered| !ordered.is_empty());
        let _locked = ordered.map(|ordered| ordered.lock_to_read(self.sectors(buffer, offset)));
        let file = FileData {
            tree: FileTree::Live(&tree),
            inode: self.inode.number(),
            flags: glance.flags,
            size: glance.size,
            written: Some(open.in_place.written()),
            known: Some(&open.extents),
            ordered,
        };
        let read = fs.mounted.reader.read(&file, FileOffset(offset), buffer);
        // What is known without the tree is not pinned. The data lock keeps extents in the file and thereby in
        // use, unless the subvolume as a whole went: then others may have written there meanwhile.
        self.check_referenced(live)?;
        read
    }

    /// # Errors
    /// [`PathError::NoSubvolume`] where the subvolume is being deleted.
    fn check_referenced(&self, live: &LiveTree) -> Result<()> {
        if live.is_referenced() {
            return Ok(());
        }
        let path = format!("subvolume {}", self.inode.tree());
        Err(Error::path(path.as_bytes(), PathError::NoSubvolume))
    }

    /// The whole sectors that a buffer's bytes lie in.
    fn sectors(&self, buffer: &[u8], offset: u64) -> Range<u64> {
        let sector = u64::from(self.sector_size());
        let end = offset.saturating_add(buffer.len() as u64);
        offset - offset % sector..end.checked_next_multiple_of(sector).unwrap_or(u64::MAX)
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

    /// A reader with a position, for `std::io`.
    pub fn reader(&self) -> FileReader {
        FileReader { file: self.clone(), position: 0 }
    }

    /// What memory holds of it goes to the trees.
    pub(super) fn flush(&self) -> Result<()> {
        self.open.as_ref().map_or(Ok(()), |open| self.inode.file_system().flush(open))
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<Option<u64>> {
        self.flush()?;
        let handle = self.inode.handle()?;
        let sector_size = self.sector_size();
        let size = self.len();
        let found = data::seek(handle.tree(), handle.number, size, sector_size, FileOffset(offset), whence)?;
        Ok(found.map(FileOffset::get))
    }

    pub(super) fn sector_size(&self) -> u32 {
        // Not from the superblock, which a commit holds while it waits for the device.
        self.inode.file_system().mounted.volume().geometry().sector_size
    }

    fn check_within(&self, offset: u64) -> Result<()> {
        if offset < self.len() {
            return Ok(());
        }
        let path = format!("subvolume {}, inode {}, offset {offset}", self.inode.tree(), self.inode.number());
        Err(Error::path(path.as_bytes(), PathError::BeyondEnd))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // What was written to a file without a name goes with the last handle, not with the next flush.
        if let Some(open) = self.open.take().filter(|open| open.is_unlinked()) {
            self.inode.file_system().mounted.dirty_inodes.forget_unlinked(open);
        }
    }
}

/// A [`File`] with a position.
#[derive(Clone, Debug)]
pub struct FileReader {
    file: File,
    position: u64,
}

impl io::Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position).map_err(io::Error::other)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl io::Seek for FileReader {
    fn seek(&mut self, target: io::SeekFrom) -> io::Result<u64> {
        let (base, offset) = match target {
            io::SeekFrom::Start(offset) => {
                self.position = offset;
                return Ok(offset);
            }
            io::SeekFrom::End(offset) => (self.file.len(), offset),
            io::SeekFrom::Current(offset) => (self.position, offset),
        };
        self.position = base.checked_add_signed(offset).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "seek before the start or past 2^64")
        })?;
        Ok(self.position)
    }
}
