//! Sharing the data of equal blocks, in an image or in a mount, by reading them.
//! [`crate::checksum_dedupe`] finds them without reading.
//!
//! Owns [`Dedupe`], its report and its observer. All files are read in blocks. Adjacent blocks with
//! the hashes of earlier ones are a run, which the file system compares and shares at once.
//!
//! **Invariants**
//! - Nothing is shared by its hash alone: the file system compares both ranges, locked, first.
//! - Blocks that share their data already are not counted, and are read once.
//!
//! **Locks:** those of the public methods.

use crate::file_walk::{FileVisitor, FileWalk, UsedExtent, WalkError, WalkRoot, WantedExtents};
use crate::image_path::ImagePath;
use crate::text::{escaped, system_text};
use papilio_engine::data::{FileExtent, FileExtentKind};
use papilio_engine::errors::Error;
use papilio_format::{ChecksumType, InodeNumber, TreeId};
use papilio_fs::{File, FileSystem};
use papilio_ioctl::client::MountedPath;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Most bytes of one request, which the kernel compares at once.
const BATCH: u64 = 16 << 20;
/// The files that stay open, since the next run often uses them again.
const OPEN_FILES: usize = 8;

/// Shares the data of equal blocks. Content and times of the files stay. Space is free once no file
/// uses any part of an extent.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("new.img");
/// use papilio::{Dedupe, DedupeReport, FileSystem, MkfsOptions, OpenOptions, WalkRoot};
///
/// papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20))?;
/// let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true))?;
/// let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
/// fs.write("/a", &content)?;
/// fs.write("/b", &content)?;
/// let mut report = DedupeReport::default();
/// Dedupe::new().run(vec![WalkRoot::in_file_system(&fs, "/")?], &mut report, &mut ())?;
/// assert_eq!((report.files, report.shared_bytes), (2, 400_000));
/// fs.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Dedupe {
    block_size: u64,
    dry_run: bool,
}

/// The amount of work done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DedupeReport {
    /// Regular files.
    pub files: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that share the data of others now, or would in a dry run.
    pub shared_bytes: u64,
    /// Blocks whose content differs from that of a block with the same hash.
    pub differing_blocks: u64,
}

/// An error that ends the work, or that concerns one file.
#[derive(Debug)]
#[non_exhaustive]
pub enum DedupeError {
    /// A file or directory cannot be read, or the file system fails to share a range of it.
    File(WalkError),
    /// The mount of this file has no call that compares and shares.
    Unsupported {
        /// The path on the host.
        path: PathBuf,
    },
    /// The roots are in several file systems, or in an image and in a mount of it.
    SeveralFileSystems,
    /// The block size is no power of two in [`Dedupe::BLOCK_SIZES`].
    BlockSize(u64),
    /// A tree cannot be read, or the file system fails to change.
    Library(Box<Error>),
    /// A file of the host fails: the state file, or a temporary file.
    Host {
        /// The file, or the directory of temporary files.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The state file is not one of this file system.
    State {
        /// The state file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The observer ended the work.
    Stopped(io::Error),
}

/// A stage of the work by checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DedupeStage {
    /// The checksums of extents are read; the number counts extents.
    Extents,
    /// Whole extents are compared; the number counts different ones.
    Whole,
    /// The checksums of extents are read once more; the number counts extents.
    Seeds,
    /// Runs are looked for; the number counts places.
    Runs,
    /// Extents are shared; the number counts bytes that are free.
    Sharing,
}

/// Watches the work.
pub trait DedupeObserver {
    /// A file is about to be read, with what was done before it.
    ///
    /// # Errors
    /// An error that ends the work with [`DedupeError::Stopped`].
    fn file(&mut self, _path: &[u8], _before: &DedupeReport) -> io::Result<()> {
        Ok(())
    }

    /// The work by checksums goes on with this number of things in a stage done.
    ///
    /// # Errors
    /// As [`Self::file`].
    fn stage(&mut self, _stage: DedupeStage, _done: u64) -> io::Result<()> {
        Ok(())
    }

    /// Something that the user should know, and that is no failure.
    fn note(&mut self, _text: &str) {}

    /// A file or directory is left out, with the reason. The work goes on.
    fn failed(&mut self, error: DedupeError);
}

/// Watches nothing.
impl DedupeObserver for () {
    fn failed(&mut self, _error: DedupeError) {}
}

impl fmt::Display for DedupeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::Unsupported { path } => {
                let path = escaped(path.as_os_str().as_bytes());
                let path = String::from_utf8_lossy(&path);
                write!(f, "{path}: the mount cannot compare and share; unmount it, and name the image")
            }
            Self::SeveralFileSystems => f.write_str("the arguments are in several file systems"),
            Self::BlockSize(bytes) => {
                write!(f, "block size of {bytes} bytes: not a power of two from 4K to 16M")
            }
            Self::Library(error) => write!(f, "{error}"),
            Self::Host { path, error } if path.as_os_str().is_empty() => write!(f, "{error}"),
            Self::Host { path, error } => write!(f, "{}: {}", path.display(), system_text(error)),
            Self::State { path, reason } => {
                write!(f, "{}: {reason}; name another state file", path.display())
            }
            Self::Stopped(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DedupeError {}

impl From<WalkError> for DedupeError {
    fn from(error: WalkError) -> Self {
        Self::File(error)
    }
}

impl Default for Dedupe {
    fn default() -> Self {
        Self { block_size: 128 << 10, dry_run: false }
    }
}

impl Dedupe {
    /// The block sizes in bytes; only powers of two are possible.
    pub const BLOCK_SIZES: RangeInclusive<u64> = 4096..=BATCH;

    /// The defaults: blocks of 128 KiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of a block in bytes, a power of two in [`Self::BLOCK_SIZES`].
    pub fn block_size(mut self, bytes: u64) -> Self {
        self.block_size = bytes;
        self
    }

    /// Sets whether equal blocks are only counted, by their hashes (default false).
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Reads the files below `roots`, which must be in one file system, and shares what is equal.
    /// `report` counts what was done, also if the work fails.
    ///
    /// # Errors
    /// A root that cannot be read; roots in several file systems; the block size; an error of the
    /// observer. Other
    /// files that cannot be read are left out, and the observer hears of them.
    pub fn run(
        &self,
        roots: Vec<WalkRoot>,
        report: &mut DedupeReport,
        observer: &mut dyn DedupeObserver,
    ) -> Result<(), DedupeError> {
        self.run_on(roots, None, report, observer)
    }

    /// As [`Dedupe::run`], and with `extents` reads only those at these addresses, ascending.
    ///
    /// # Errors
    /// As [`Dedupe::run`].
    pub fn run_on(
        &self,
        roots: Vec<WalkRoot>,
        extents: Option<&[u64]>,
        report: &mut DedupeReport,
        observer: &mut dyn DedupeObserver,
    ) -> Result<(), DedupeError> {
        if !self.block_size.is_power_of_two() || !Self::BLOCK_SIZES.contains(&self.block_size) {
            return Err(DedupeError::BlockSize(self.block_size));
        }
        let mut systems = Vec::new();
        for root in &roots {
            systems.push((root.file_system()?, matches!(root, WalkRoot::Image(..))));
        }
        if systems.iter().any(|system| *system != systems[0]) {
            return Err(DedupeError::SeveralFileSystems);
        }
        let mut sharing = Sharing {
            options: *self,
            only: extents,
            report,
            observer,
            images: Vec::new(),
            files: Vec::new(),
            seen: HashMap::new(),
            hashes: HashMap::new(),
            run: None,
            opened: Vec::new(),
        };
        let mut walk = FileWalk::new(WantedExtents::Items);
        for root in roots {
            walk.walk(root, &mut sharing)?;
        }
        sharing.flush()
    }
}

/// A block that was seen: its file, where it begins, and where its data is.
#[derive(Clone, Copy)]
struct SeenBlock {
    file: usize,
    start: u64,
    data: (u64, u64),
}

/// Adjacent equal blocks that were not shared yet.
struct BlockRun {
    source: usize,
    from: u64,
    target: usize,
    to: u64,
    length: u64,
}

/// A file, by the names that open it again. There may be millions of them.
enum FileName {
    /// The index of its image, its subvolume, its number, and its path inside.
    Image(usize, TreeId, InodeNumber, Vec<u8>),
    Mounted(PathBuf),
}

/// An open file.
enum OpenedFile {
    Image(ImagePath, Box<File>),
    Mounted(PathBuf, MountedPath),
}

/// The work of one [`Dedupe::run`].
struct Sharing<'a> {
    options: Dedupe,
    /// The addresses of the extents to read, ascending; `None` for all.
    only: Option<&'a [u64]>,
    report: &'a mut DedupeReport,
    observer: &'a mut dyn DedupeObserver,
    images: Vec<(PathBuf, FileSystem)>,
    files: Vec<FileName>,
    /// The first block with a hash and a length.
    seen: HashMap<(u64, u64), SeenBlock>,
    /// The hashes of blocks that lie in one extent, by address, offset in it, and length.
    hashes: HashMap<(u64, u64, u64), u64>,
    run: Option<BlockRun>,
    opened: Vec<(usize, OpenedFile)>,
}

impl FileVisitor for Sharing<'_> {
    type Error = DedupeError;

    fn file(&mut self, file: &WalkRoot, _depth: usize, extents: &[UsedExtent]) -> Result<(), DedupeError> {
        let only = self.only;
        let is_read = |extent: &UsedExtent| {
            let is_regular = extent.0.kind == FileExtentKind::Regular;
            is_regular && only.is_none_or(|only| only.binary_search(&extent.0.address.0).is_ok())
        };
        if only.is_some() && !extents.iter().any(is_read) {
            return Ok(());
        }
        let extents: Vec<FileExtent> =
            extents.iter().filter(|extent| is_read(extent)).map(|(extent, _)| *extent).collect();
        self.observer.file(&file.path(), self.report).map_err(DedupeError::Stopped)?;
        self.report.files += 1;
        let index = self.files.len();
        let name = self.name_of(file);
        self.files.push(name);
        if let Err(error) = self.read_file(index, &extents) {
            // One file that cannot be read does not end the work.
            self.run = None;
            self.observer.failed(error);
        }
        Ok(())
    }

    fn failed(&mut self, error: WalkError) -> Result<(), DedupeError> {
        self.observer.failed(error.into());
        Ok(())
    }
}

impl Sharing<'_> {
    fn name_of(&mut self, file: &WalkRoot) -> FileName {
        let (path, inode) = match file {
            WalkRoot::Mounted(path) => return FileName::Mounted(path.clone()),
            WalkRoot::Image(path, inode) => (path, inode),
        };
        let known = self.images.iter().position(|(image, _)| *image == path.image);
        let index = known.unwrap_or_else(|| {
            self.images.push((path.image.clone(), inode.file_system().clone()));
            self.images.len() - 1
        });
        FileName::Image(index, inode.tree(), inode.number(), path.path.clone())
    }

    fn read_file(&mut self, index: usize, extents: &[FileExtent]) -> Result<(), DedupeError> {
        let block_size = self.options.block_size;
        let mut buffer = vec![0; block_size as usize];
        let mut next = 0;
        let size = self.open(index)?.size()?;
        for extent in extents {
            let end = extent.start.0.saturating_add(extent.length).min(size);
            // A block belongs to the extent in which it begins.
            let mut start = extent.start.0.next_multiple_of(block_size).max(next);
            while start < end {
                let length = block_size.min(size - start);
                let data = (extent.address.0, extent.offset.saturating_add(start - extent.start.0));
                let key = (data.0, data.1, length);
                let known = if start + length <= end { self.hashes.get(&key).copied() } else { None };
                let hash = match known {
                    Some(hash) => hash,
                    None => {
                        let bytes = &mut buffer[..length as usize];
                        self.open(index)?.read(bytes, start)?;
                        self.report.read_bytes += length;
                        hash_of(bytes)
                    }
                };
                if start + length <= end {
                    self.hashes.insert(key, hash);
                }
                self.block(hash, length, SeenBlock { file: index, start, data })?;
                start += block_size;
                next = start;
            }
        }
        Ok(())
    }

    fn block(&mut self, hash: u64, length: u64, block: SeenBlock) -> Result<(), DedupeError> {
        let SeenBlock { file, start, data } = block;
        let first = *self.seen.entry((hash, length)).or_insert(block);
        if (first.file, first.start) == (file, start) || first.data == data {
            return Ok(());
        }
        if let Some(run) = &mut self.run {
            let adjacent = (run.source, run.from + run.length) == (first.file, first.start)
                && (run.target, run.to + run.length) == (file, start);
            if adjacent && run.length + length <= BATCH {
                run.length += length;
                return Ok(());
            }
        }
        self.flush()?;
        self.run = Some(BlockRun { source: first.file, from: first.start, target: file, to: start, length });
        Ok(())
    }

    /// Shares the blocks of the run.
    fn flush(&mut self) -> Result<(), DedupeError> {
        let Some(run) = self.run.take() else { return Ok(()) };
        if self.options.dry_run {
            self.report.shared_bytes += run.length;
            return Ok(());
        }
        if self.share(&run)? {
            return Ok(());
        }
        // One block of the run has another content: the others may be equal all the same.
        let mut done = 0;
        while done < run.length {
            let length = self.options.block_size.min(run.length - done);
            let part = BlockRun { from: run.from + done, to: run.to + done, length, ..run };
            if !self.share(&part)? {
                self.report.differing_blocks += 1;
            }
            done += length;
        }
        Ok(())
    }

    /// Returns whether the bytes were equal.
    fn share(&mut self, run: &BlockRun) -> Result<bool, DedupeError> {
        self.open(run.source)?;
        self.open(run.target)?;
        let file = |index| {
            let found = self.opened.iter().find(|(known, _)| *known == index);
            &found.expect("opened above").1
        };
        let shared = match (file(run.source), file(run.target)) {
            (OpenedFile::Image(_, source), OpenedFile::Image(path, target)) => {
                let shared = target.dedupe_range(source, run.from, run.length, run.to);
                shared.map_err(WalkError::image(path))?
            }
            (OpenedFile::Mounted(_, source), OpenedFile::Mounted(path, target)) => {
                let shared = source.dedupe_range(run.from, run.length, target, run.to);
                shared.map_err(|error| match Errno::from_io_error(&error) {
                    Some(Errno::OPNOTSUPP | Errno::NOTTY) => unsupported(path.clone()),
                    _ => WalkError::mounted(path)(error).into(),
                })?
            }
            _ => unreachable!("all roots are in one file system"),
        };
        self.report.shared_bytes += shared.unwrap_or_default();
        Ok(shared.is_some())
    }

    /// Opens a file, and keeps the last few open.
    fn open(&mut self, index: usize) -> Result<&OpenedFile, WalkError> {
        if let Some(at) = self.opened.iter().position(|(known, _)| *known == index) {
            let opened = self.opened.remove(at);
            self.opened.push(opened);
        } else {
            if self.opened.len() > OPEN_FILES {
                self.opened.remove(0);
            }
            let opened = match &self.files[index] {
                FileName::Image(image, tree, number, path) => {
                    let (image, fs) = &self.images[*image];
                    let path = ImagePath { image: image.clone(), path: path.clone() };
                    let file = fs.inode_at(*tree, *number).and_then(|inode| inode.open());
                    let file = file.map_err(WalkError::image(&path))?;
                    OpenedFile::Image(path, Box::new(file))
                }
                FileName::Mounted(path) => {
                    let file = MountedPath::open(path).map_err(WalkError::mounted(path))?;
                    OpenedFile::Mounted(path.clone(), file)
                }
            };
            self.opened.push((index, opened));
        }
        Ok(&self.opened.last().expect("pushed above").1)
    }
}

impl OpenedFile {
    fn size(&self) -> Result<u64, WalkError> {
        match self {
            Self::Image(path, file) => file.size().map_err(WalkError::image(path)),
            Self::Mounted(path, file) => {
                let metadata = file.file().metadata().map_err(WalkError::mounted(path))?;
                Ok(metadata.len())
            }
        }
    }

    fn read(&self, buffer: &mut [u8], start: u64) -> Result<(), WalkError> {
        match self {
            Self::Image(path, file) => file.read_exact_at(buffer, start).map_err(WalkError::image(path)),
            Self::Mounted(path, file) => read_whole(file, buffer, start).map_err(WalkError::mounted(path)),
        }
    }
}

fn read_whole(file: &MountedPath, buffer: &mut [u8], start: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(file.as_fd(), &mut buffer[done..], start + done as u64)? {
            0 => return Err(io::Error::other("the file became shorter")),
            count => done += count,
        }
    }
    Ok(())
}

/// Returns the error for a mount that has no call to share.
pub(crate) fn unsupported(path: PathBuf) -> DedupeError {
    DedupeError::Unsupported { path }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let sum = ChecksumType::XxHash64.compute(bytes);
    let bytes = sum.as_bytes().first_chunk().expect("XxHash64 has 8 bytes");
    u64::from_le_bytes(*bytes)
}

impl DedupeError {
    /// Returns the library's error, if it is one of an image.
    pub fn image_error(&self) -> Option<&Error> {
        match self {
            Self::Library(error) => Some(error),
            Self::File(WalkError::Image { error, .. }) => Some(error),
            _ => None,
        }
    }
}
