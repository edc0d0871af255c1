//! Reading file data.
//!
//! Owns [`ReadContext`], [`FileData`] and each thread's scratch. A request is cut along the extents
//! into reads, which go to the devices together; then each is verified, repaired from other copies
//! where it is bad, and brought to the caller's buffer: whole sectors of uncompressed extents were
//! read there in the first place, everything else passes through the scratch. Nothing that failed
//! its checksum is ever handed out. Whole sectors that memory knows all about are read without any of that.
//!
//! Memory: a thread's scratch is up to [`ARENA`] bytes and one uncompressed extent, taken once; a request
//! allocates nothing more. Locks: none. Kernel counterparts: `btrfs_readahead` (`fs/btrfs/extent_io.c`),
//! `btrfs_submit_bbio`, `btrfs_check_read_bio` (`fs/btrfs/bio.c`), `btrfs_submit_compressed_read`
//! (`fs/btrfs/compression.c`).

use crate::btree::{LiveTree, Tree};
use crate::data::checksum::{DataSums, SectorFault, first_mismatch};
use crate::data::checksum_cache::ChecksumCache;
use crate::data::compress::{DecompressError, MAX_UNCOMPRESSED, decompress};
use crate::data::extent_cache::ExtentCache;
use crate::data::extent_map::{DiskExtent, Extent, ExtentKind, FileExtents, InlineExtent};
use crate::data::ordered_extents::{OrderedAt, OrderedExtents};
use crate::errors::{Error, FilePlace, Result};
use crate::space::RangeSet;
use crate::transaction::{LazyTree, Transactions, assert_no_handle};
use crate::tuning::CsumLookup;
use crate::volume::{LogicalRead, Volume};
use arrayvec::ArrayVec;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, Geometry, InodeNumber, LogicalAddress, TreeId, objectid};
use papilio_locks::RwLock;
use std::cell::{OnceCell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Reads that go to the devices together.
const BATCH: usize = 32;
/// Reads that one extent needs at most: its first sector, its middle, its last sector.
const READS_PER_EXTENT: usize = 3;
/// Bytes of scratch for what isn't read straight into the caller's buffer. The largest need of one
/// extent is 128 KiB: a compressed extent, or two sectors of 64 KiB.
const ARENA: usize = 1 << 20;
/// Bytes that it begins with: for the ends of reads that are not of whole sectors.
const SMALL_ARENA: usize = 32 << 10;
/// Bytes of sums that are taken from memory at once.
const SUMS_AT_ONCE: usize = 256;

/// What reading data needs besides the file: made once for an open file system.
#[derive(Debug)]
pub(crate) struct ReadContext {
    /// Tells the extents of one file system from those of another in the threads' caches.
    id: u64,
    pub(super) volume: Arc<Volume>,
    sums: SumsSource,
    verify: bool,
    lookup: CsumLookup,
}

/// Where checksums are looked up.
#[derive(Debug)]
enum SumsSource {
    /// In this tree, or nowhere.
    Committed(Option<Tree>),
    /// In the tree as it is at the time of a read; it is kept here once it was found.
    Live(Arc<Transactions>, OnceLock<Arc<LiveTree>>),
}

/// The checksum tree of one request, from the time it is first asked for.
struct SumsTree<'a> {
    source: &'a SumsSource,
    live: OnceCell<LazyTree<'a>>,
}

impl<'a> SumsTree<'a> {
    fn new(source: &'a SumsSource) -> Self {
        Self { source, live: OnceCell::new() }
    }

    /// The tree, unless there is none.
    fn get(&self) -> Result<Option<&Tree>> {
        let (transactions, known) = match self.source {
            SumsSource::Committed(tree) => return Ok(tree.as_ref()),
            SumsSource::Live(transactions, known) => (transactions, known),
        };
        let live = match known.get() {
            Some(live) => live,
            None => match transactions.live().find(objectid::CSUM_TREE)? {
                Some(live) => known.get_or_init(|| live),
                None => return Ok(None),
            },
        };
        Ok(Some(self.live.get_or_init(|| LazyTree::new(transactions, live)).get()))
    }
}

/// The subvolume of a file that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileTree<'a> {
    /// As it was when the caller took it.
    Taken(&'a Tree),
    /// As it is when something is not known without it. The caller keeps the file's extents from changing.
    Live(&'a LazyTree<'a>),
}

impl<'a> FileTree<'a> {
    fn id(self) -> TreeId {
        match self {
            Self::Taken(tree) => tree.id(),
            Self::Live(tree) => tree.live().id(),
        }
    }

    /// The tree.
    pub(crate) fn get(self) -> &'a Tree {
        match self {
            Self::Taken(tree) => tree,
            Self::Live(tree) => tree.get(),
        }
    }
}

impl<'a> From<&'a Tree> for FileTree<'a> {
    fn from(tree: &'a Tree) -> Self {
        Self::Taken(tree)
    }
}

/// A file whose data is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileData<'a> {
    /// Its subvolume.
    pub(crate) tree: FileTree<'a>,
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// Its flags; without checksums, nothing is verified.
    pub(crate) flags: InodeFlags,
    /// Its bytes.
    pub(crate) size: u64,
    /// Preallocated ranges that hold data though the tree says otherwise.
    pub(crate) written: Option<&'a RwLock<RangeSet>>,
    /// What is known of its extents.
    pub(crate) known: Option<&'a ExtentCache>,
    /// What no tree tells of yet, where there is any; the range that is read is locked.
    pub(crate) ordered: Option<&'a OrderedExtents>,
}

impl FileData<'_> {
    fn place(&self, offset: u64) -> FilePlace {
        FilePlace { tree: self.tree.id(), inode: self.inode, offset: FileOffset(offset) }
    }
}

/// What a thread keeps between requests.
#[derive(Default)]
struct Scratch {
    arena: Vec<u8>,
    last: LastExtent,
}

/// The last extent that a thread decompressed, so that small sequential reads do so once.
#[derive(Default)]
struct LastExtent {
    key: Option<(u64, DiskExtent)>,
    bytes: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Where the bytes of one read belong.
enum Destination<'b> {
    /// They are there.
    Direct,
    /// Those from `skip` on go to `target`.
    Copy { target: &'b mut [u8], skip: usize },
    /// Those from `skip` on of what they decompress to go to `target`.
    Decompress { target: &'b mut [u8], skip: usize, extent: DiskExtent },
}

/// One read of a batch, beside its `LogicalRead`.
struct Piece<'b> {
    /// The file offset of its first byte, for errors.
    offset: u64,
    destination: Destination<'b>,
}

/// What was read, and is to be verified.
#[derive(Clone, Copy)]
struct Verified<'a> {
    logical: LogicalAddress,
    /// File offset.
    offset: u64,
    /// What has its sums, if not their tree.
    ordered: Option<&'a OrderedExtents>,
}

impl Verified<'_> {
    fn advanced(self, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { logical: LogicalAddress(self.logical.0 + bytes), offset: self.offset + bytes, ..self }
    }
}

/// The reads that go to the devices together.
struct Batch<'b> {
    reads: ArrayVec<LogicalRead<'b>, BATCH>,
    pieces: ArrayVec<Piece<'b>, BATCH>,
    arena: &'b mut [u8],
}

impl ReadContext {
    /// Reads from `volume`; data is verified against `sums` if `verify` says so. Where that
    /// tree is absent, all data that should have sums then counts as having lost them.
    pub(crate) fn new(volume: Arc<Volume>, sums: Option<Tree>, verify: bool) -> Self {
        Self::with_sums(volume, SumsSource::Committed(sums), verify, CsumLookup::default())
    }

    /// Reads from a volume that is open for writing.
    pub(crate) fn live(transactions: &Arc<Transactions>, verify: bool, lookup: CsumLookup) -> Self {
        let volume = Arc::clone(transactions.volume());
        Self::with_sums(volume, SumsSource::Live(Arc::clone(transactions), OnceLock::new()), verify, lookup)
    }

    fn with_sums(volume: Arc<Volume>, sums: SumsSource, verify: bool, lookup: CsumLookup) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), volume, sums, verify, lookup }
    }

    /// Fills `buffer` with the file's bytes from `offset` on, as many as there are up to the end of
    /// the file, and says how many. Offset and length need no alignment.
    ///
    /// # Errors
    /// Tree blocks that cannot be read, extents that make no sense, [`Error::DataChecksum`] or
    /// [`Error::MissingChecksum`] where no copy is good, [`Error::Decompress`], or a device's error.
    /// The buffer's content is then undefined.
    pub(crate) fn read(&self, file: &FileData<'_>, offset: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        assert_no_handle();
        let left = file.size.saturating_sub(offset.0);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if length == 0 {
            return Ok(0);
        }
        if self.read_in_one_piece(file, offset.0, &mut buffer[..length]) {
            return Ok(length);
        }
        // The scratch is taken out, not borrowed: nothing here can then find it borrowed already.
        let mut scratch = SCRATCH.take();
        // Taken after the file's tree: sums of what that reaches are there until its pin goes.
        let sums = SumsTree::new(&self.sums);
        let mut request = Request::new(self, file, &sums);
        let result = request.run(offset.0, &mut buffer[..length], &mut scratch);
        SCRATCH.set(scratch);
        result.map(|()| length)
    }

    /// Reads whole sectors of which memory knows everything: an uncompressed extent, and its checksums
    /// where they are verified. Returns whether they were read and are good. If not, a request has to
    /// read them.
    fn read_in_one_piece(&self, file: &FileData<'_>, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(logical) = self.locate_in_one_piece(file, offset, buffer.len()) else { return false };
        if !self.verifies(file) {
            return self.volume.read(logical, buffer).is_ok();
        }
        let geometry = self.volume.geometry();
        let mut sums = [0; SUMS_AT_ONCE];
        let Some(sums) = self.copy_checksums(file, logical, buffer.len(), &mut sums) else { return false };
        self.volume.read(logical, buffer).is_ok()
            && first_mismatch(geometry.checksum_type, geometry.sector_size as usize, buffer, sums).is_none()
    }

    /// Returns the address of `length` bytes, whole sectors, if they lie in one uncompressed extent that
    /// memory knows.
    pub(super) fn locate_in_one_piece(
        &self,
        file: &FileData<'_>,
        offset: u64,
        length: usize,
    ) -> Option<LogicalAddress> {
        let sector_size = self.volume.geometry().sector_size as usize;
        // Sector sizes are powers of two.
        let unaligned = (offset as usize | length) & (sector_size - 1) != 0;
        let (Some(known), None, false) = (file.known, file.ordered, unaligned) else { return None };
        let Some(Extent { end, kind: ExtentKind::Regular(disk), .. }) = known.get(offset) else {
            return None;
        };
        let logical = LogicalAddress(disk.disk_address.0 + disk.offset);
        let in_one_piece = disk.compression == Compression::None
            && end.0 - offset >= length as u64
            && logical.0 & (sector_size as u64 - 1) == 0;
        in_one_piece.then_some(logical)
    }

    /// Returns whether a read of `length` bytes from `logical` can be verified without a tree.
    pub(super) fn has_checksums_at_hand(
        &self,
        file: &FileData<'_>,
        logical: LogicalAddress,
        length: usize,
    ) -> bool {
        let mut sums = [0; SUMS_AT_ONCE];
        !self.verifies(file) || self.copy_checksums(file, logical, length, &mut sums).is_some()
    }

    /// Returns whether `data`, which was read from `logical`, is good by the checksums that memory has.
    pub(super) fn is_verified(&self, file: &FileData<'_>, logical: LogicalAddress, data: &[u8]) -> bool {
        if !self.verifies(file) {
            return true;
        }
        let geometry = self.volume.geometry();
        let mut sums = [0; SUMS_AT_ONCE];
        self.copy_checksums(file, logical, data.len(), &mut sums).is_some_and(|sums| {
            first_mismatch(geometry.checksum_type, geometry.sector_size as usize, data, sums).is_none()
        })
    }

    fn verifies(&self, file: &FileData<'_>) -> bool {
        self.verify && !file.flags.contains(InodeFlags::NODATASUM)
    }

    /// Copies the checksums of `length` bytes from `logical` into `sums`, if memory has all of them.
    fn copy_checksums<'s>(
        &self,
        file: &FileData<'_>,
        logical: LogicalAddress,
        length: usize,
        sums: &'s mut [u8; SUMS_AT_ONCE],
    ) -> Option<&'s [u8]> {
        let geometry = self.volume.geometry();
        let wanted = length / geometry.sector_size as usize * geometry.checksum_type.size();
        let sums = sums.get_mut(..wanted).filter(|_| self.lookup == CsumLookup::Stack)?;
        (file.known?.sums().copy(logical, &geometry, sums) == wanted).then_some(&*sums)
    }
}

/// The extents of a request, one after the other: from memory, or else from the tree.
struct Extents<'a> {
    file: &'a FileData<'a>,
    sector_size: u32,
    /// The walk over the tree, and where it stands.
    walk: Option<(FileExtents<'a>, u64)>,
    /// Of what is known, from before the tree was taken.
    epoch: u64,
}

impl Extents<'_> {
    /// The extent that holds byte `at`, from there on.
    fn at(&mut self, at: u64, end: u64) -> Result<Extent> {
        let Some(ordered) = self.file.ordered else { return self.in_tree(at, end) };
        match ordered.at(at) {
            OrderedAt::Here(extent) => Ok(extent),
            OrderedAt::Until(next) => {
                let extent = self.in_tree(at, end)?;
                Ok(Extent { end: extent.end.min(FileOffset(next)), ..extent })
            }
        }
    }

    fn in_tree(&mut self, at: u64, end: u64) -> Result<Extent> {
        if let Some(extent) = self.file.known.and_then(|known| known.get(at)) {
            return Ok(extent);
        }
        let mut walk = match self.walk.take() {
            Some((walk, next)) if next == at => walk,
            _ => FileExtents::whole(
                self.file.tree.get(),
                self.file.inode,
                self.sector_size,
                FileOffset(at),
                FileOffset(end),
            ),
        };
        let extent = walk.next().expect("extents cover the whole range")?;
        if let Some(known) = self.file.known {
            known.insert(&extent, at, self.epoch);
        }
        self.walk = Some((walk, extent.end.0));
        Ok(extent.from(at))
    }
}

/// A request on its way.
struct Request<'a> {
    context: &'a ReadContext,
    file: &'a FileData<'a>,
    geometry: Geometry,
    sector_size: usize,
    verified: bool,
    sums_tree: &'a SumsTree<'a>,
    /// The walk over it, once it has begun.
    sums: Option<DataSums<'a>>,
}

impl<'a> Request<'a> {
    fn new(context: &'a ReadContext, file: &'a FileData<'a>, sums_tree: &'a SumsTree<'a>) -> Self {
        let geometry = context.volume.geometry();
        let verified = context.verify && !file.flags.contains(InodeFlags::NODATASUM);
        let sector_size = geometry.sector_size as usize;
        Self { context, file, geometry, sector_size, verified, sums_tree, sums: None }
    }

    fn run(&mut self, offset: u64, buffer: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let end = offset + buffer.len() as u64;
        let epoch = self.file.known.map_or(0, ExtentCache::epoch);
        let mut extents =
            Extents { file: self.file, sector_size: self.sector_size as u32, walk: None, epoch };
        let mut at = offset;
        let mut rest = buffer;
        // The rest of an extent that was cut, and one that the batch had no room for.
        let mut carried: ArrayVec<Extent, 2> = ArrayVec::new();
        let mut room = SMALL_ARENA;
        while !rest.is_empty() {
            let mut batch = Batch::new(&mut scratch.arena, room);
            while !rest.is_empty() {
                let extent = match carried.pop() {
                    Some(extent) => extent,
                    None => extents.at(at, end)?,
                };
                let extent = self.cut_written(extent, &mut carried);
                if let ExtentKind::Regular(disk) = &extent.kind
                    && !batch.has_room(disk, self.sector_size)
                {
                    carried.push(extent);
                    room = ARENA;
                    break;
                }
                let wanted = (extent.end.0.min(end) - extent.start.0) as usize;
                at = extent.end.0;
                let (target, after) = std::mem::take(&mut rest).split_at_mut(wanted);
                rest = after;
                self.plan(&extent, target, &mut batch, &mut scratch.last)?;
            }
            self.finish(&mut batch, &mut scratch.last)?;
        }
        Ok(())
    }

    /// The start of a preallocated extent, as far as all of it holds data or none does; the rest is carried.
    fn cut_written(&self, extent: Extent, carried: &mut ArrayVec<Extent, 2>) -> Extent {
        let (ExtentKind::Prealloc(disk), Some(written)) = (&extent.kind, self.file.written) else {
            return extent;
        };
        let (disk, start, end) = (*disk, extent.start, extent.end);
        let (cut, kind) = match written.read().first_behind(start.0) {
            Some(run) if run.start <= start.0 => (run.end.min(end.0), ExtentKind::Regular(disk)),
            Some(run) => (run.start.min(end.0), ExtentKind::Prealloc(disk)),
            None => (end.0, ExtentKind::Prealloc(disk)),
        };
        if cut < end.0 {
            let rest = ExtentKind::Prealloc(disk.advanced(cut - start.0));
            carried.push(Extent { start: FileOffset(cut), end, kind: rest });
        }
        Extent { start, end: FileOffset(cut), kind }
    }

    /// Fills `target` with the start of `extent`, or puts the reads that will into the batch.
    fn plan<'b>(
        &self,
        extent: &Extent,
        target: &'b mut [u8],
        batch: &mut Batch<'b>,
        last: &mut LastExtent,
    ) -> Result<()> {
        match &extent.kind {
            ExtentKind::Hole | ExtentKind::Prealloc(_) => target.fill(0),
            ExtentKind::Inline(inline) => self.read_inline(extent.start.0, inline, target, last)?,
            ExtentKind::Regular(disk) if disk.compression == Compression::None => {
                batch.add_plain(extent.start.0, disk, target, self.sector_size);
            }
            ExtentKind::Regular(disk) => {
                let whole = DiskExtent { offset: 0, ..*disk };
                let skip = disk.offset as usize;
                if last.key == Some((self.context.id, whole)) {
                    target.copy_from_slice(&last.bytes[skip..][..target.len()]);
                } else {
                    batch.add_compressed(extent.start.0, whole, skip, target);
                }
            }
        }
        Ok(())
    }

    /// Inline data, which its leaf's checksum has vouched for; `offset` counts from its start, which
    /// is the file's.
    fn read_inline(
        &self,
        offset: u64,
        inline: &InlineExtent,
        target: &mut [u8],
        last: &mut LastExtent,
    ) -> Result<()> {
        let stored = inline.data();
        let copy = |bytes: &[u8], target: &mut [u8]| {
            let bytes = usize::try_from(offset).ok().and_then(|skip| bytes.get(skip..)).unwrap_or(&[]);
            let filled = bytes.len().min(target.len());
            target[..filled].copy_from_slice(&bytes[..filled]);
            target[filled..].fill(0);
        };
        if inline.compression == Compression::None {
            copy(stored, target);
            return Ok(());
        }
        let fault = |error| self.decompress_error(offset, error);
        let sector_size = self.sector_size as u32;
        if offset == 0 {
            let length = target.len().min(inline.ram_bytes as usize);
            target[length..].fill(0);
            return decompress(inline.compression, stored, &mut target[..length], sector_size).map_err(fault);
        }
        let bytes = last.forget(inline.ram_bytes);
        decompress(inline.compression, stored, bytes, sector_size).map_err(fault)?;
        copy(bytes, target);
        Ok(())
    }

    /// Reads, verifies, and brings everything to where it belongs.
    fn finish(&mut self, batch: &mut Batch<'_>, last: &mut LastExtent) -> Result<()> {
        match &mut batch.reads[..] {
            [] => return Ok(()),
            [read] => read.result = self.context.volume.read(read.logical, read.buffer),
            reads => self.context.volume.read_many(reads),
        }
        for (read, piece) in batch.reads.drain(..).zip(batch.pieces.drain(..)) {
            let LogicalRead { logical, buffer, result } = read;
            // All of a read lies in an ordered extent, or nothing of it; none of those is compressed.
            let compressed = matches!(piece.destination, Destination::Decompress { .. });
            let ordered = self.file.ordered.filter(|ordered| !compressed && ordered.holds(piece.offset));
            let read = Verified { logical, offset: piece.offset, ordered };
            self.check(&read, buffer, result)?;
            match piece.destination {
                Destination::Direct => {}
                Destination::Copy { target, skip } => {
                    target.copy_from_slice(&buffer[skip..][..target.len()]);
                }
                Destination::Decompress { target, skip, extent } => self
                    .decompress_to(buffer, target, skip, extent, piece.offset, last)
                    .map_err(|error| self.decompress_error(piece.offset, error))?,
            }
        }
        Ok(())
    }

    fn decompress_to(
        &self,
        input: &[u8],
        target: &mut [u8],
        skip: usize,
        extent: DiskExtent,
        offset: u64,
        last: &mut LastExtent,
    ) -> Result<(), DecompressError> {
        let sector_size = self.sector_size as u32;
        // Where nobody can want the rest next, the caller's buffer is as good a place as any.
        let wanted_whole =
            target.len() as u64 == extent.ram_bytes || offset + target.len() as u64 == self.file.size;
        if skip == 0 && wanted_whole {
            return decompress(extent.compression, input, target, sector_size);
        }
        let bytes = last.forget(extent.ram_bytes);
        decompress(extent.compression, input, bytes, sector_size)?;
        target.copy_from_slice(&bytes[skip..][..target.len()]);
        last.key = Some((self.context.id, extent));
        Ok(())
    }

    fn decompress_error(&self, offset: u64, error: DecompressError) -> Error {
        Error::Decompress { place: self.file.place(offset), reason: error.to_string() }
    }

    /// Verifies whole sectors that were read with `result`, and replaces the bad ones by those of
    /// other copies.
    fn check(&mut self, read: &Verified<'_>, data: &mut [u8], result: Result<()>) -> Result<()> {
        let sector_size = self.sector_size;
        let mut checked = 0;
        // A read that failed says nothing about which of its sectors did: each is read again.
        let unread = result.is_err();
        while checked < data.len() {
            let at = read.advanced(checked);
            let rest = &mut data[checked..];
            let sector = if unread {
                0
            } else {
                match self.first_fault(&at, rest)? {
                    None => return Ok(()),
                    Some((sector, SectorFault::Mismatch)) => sector,
                    Some((sector, SectorFault::NoSum)) => {
                        let Verified { logical, offset, .. } = at.advanced(sector * sector_size);
                        return Err(Error::MissingChecksum { place: self.file.place(offset), logical });
                    }
                }
            };
            let bad = at.advanced(sector * sector_size);
            self.repair(&bad, &mut rest[sector * sector_size..][..sector_size])?;
            checked += (sector + 1) * sector_size;
        }
        Ok(())
    }

    /// The first of the sectors that were read from `read` that is not as its sum.
    fn first_fault(&mut self, read: &Verified<'_>, data: &[u8]) -> Result<Option<(usize, SectorFault)>> {
        if !self.verified {
            return Ok(None);
        }
        if let Some(ordered) = read.ordered {
            let bad = ordered.first_mismatch(read.offset, data);
            return Ok(bad.map(|sector| (sector, SectorFault::Mismatch)));
        }
        let known = self.file.known.filter(|_| self.context.lookup == CsumLookup::Stack);
        match known {
            Some(known) => self.first_fault_known(known.sums(), read.logical, data),
            None => self.first_fault_in_tree(read.logical, data),
        }
    }

    /// As [`Request::first_fault`], by sums from memory, where those that are missing are taken up.
    fn first_fault_known(
        &mut self,
        known: &ChecksumCache,
        logical: LogicalAddress,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        let (sector_size, algorithm) = (self.sector_size, self.geometry.checksum_type);
        let mut sums = [0; SUMS_AT_ONCE];
        let mut done = 0;
        while done < data.len() {
            let at = LogicalAddress(logical.0 + done as u64);
            let rest = &data[done..];
            let wanted = (rest.len() / sector_size * algorithm.size()).min(SUMS_AT_ONCE);
            let mut found = known.copy(at, &self.geometry, &mut sums[..wanted]);
            if found == 0 {
                let geometry = self.geometry;
                if let Some(tree) = self.sums()? {
                    known.fill(at, &geometry, tree)?;
                }
                found = known.copy(at, &geometry, &mut sums[..wanted]);
            }
            // There is no sum, or no memory for it.
            let sectors = (found / algorithm.size()).max(1);
            let part = &rest[..sectors * sector_size];
            let fault = if found == 0 {
                self.first_fault_in_tree(at, part)?
            } else {
                let bad = first_mismatch(algorithm, sector_size, part, &sums[..found]);
                bad.map(|sector| (sector, SectorFault::Mismatch))
            };
            if let Some((sector, fault)) = fault {
                return Ok(Some((done / sector_size + sector, fault)));
            }
            done += part.len();
        }
        Ok(None)
    }

    fn first_fault_in_tree(
        &mut self,
        logical: LogicalAddress,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        let lookup = self.context.lookup;
        match self.sums()? {
            Some(sums) => match lookup {
                CsumLookup::Stack => sums.first_fault(logical, data),
                CsumLookup::Heap => sums.first_fault_copied(logical, data),
            },
            None => Ok(Some((0, SectorFault::NoSum))),
        }
    }

    /// The walk over the checksum tree, unless there is none.
    fn sums(&mut self) -> Result<Option<&mut DataSums<'a>>> {
        if self.sums.is_none() {
            self.sums = self.sums_tree.get()?.map(|tree| DataSums::new(tree, self.geometry));
        }
        Ok(self.sums.as_mut())
    }

    /// Fills one sector from the first copy that is good.
    fn repair(&mut self, bad: &Verified<'_>, sector: &mut [u8]) -> Result<()> {
        let Verified { logical, offset, .. } = *bad;
        let volume = &self.context.volume;
        if !self.verified {
            return volume.read(logical, sector);
        }
        let copies = volume.copies(logical)?;
        let mut error = None;
        for copy in 0..copies {
            match self.context.volume.read_copy(logical, sector, copy) {
                Err(failure) => error = error.or(Some(failure)),
                Ok(()) => match self.first_fault(bad, sector)? {
                    Some((_, SectorFault::Mismatch)) => {}
                    Some((_, SectorFault::NoSum)) => {
                        return Err(Error::MissingChecksum { place: self.file.place(offset), logical });
                    }
                    None => {
                        tracing::warn!("{}: read from copy {copy}", self.file.place(offset));
                        return Ok(());
                    }
                },
            }
        }
        match error {
            Some(error) if copies == 1 => Err(error),
            _ => Err(Error::DataChecksum { place: self.file.place(offset), logical, copies }),
        }
    }
}

impl LastExtent {
    /// Room for `length` bytes; what was remembered is not any more.
    fn forget(&mut self, length: u64) -> &mut [u8] {
        assert!(length <= MAX_UNCOMPRESSED, "the parser refuses larger extents");
        self.key = None;
        self.bytes.resize(length as usize, 0);
        &mut self.bytes
    }
}

impl<'b> Batch<'b> {
    fn new(arena: &'b mut Vec<u8>, room: usize) -> Self {
        if arena.len() < room {
            arena.resize(room, 0);
        }
        Self { reads: ArrayVec::new(), pieces: ArrayVec::new(), arena }
    }

    /// Whether the reads of one more extent fit.
    fn has_room(&self, extent: &DiskExtent, sector_size: usize) -> bool {
        let scratch = match extent.compression {
            Compression::None => 2 * sector_size,
            _ => extent.disk_length as usize,
        };
        self.reads.remaining_capacity() >= READS_PER_EXTENT && self.arena.len() >= scratch
    }

    fn take_arena(&mut self, length: usize) -> &'b mut [u8] {
        let (taken, rest) = std::mem::take(&mut self.arena).split_at_mut(length);
        self.arena = rest;
        taken
    }

    fn push(&mut self, logical: LogicalAddress, buffer: &'b mut [u8], offset: u64, to: Destination<'b>) {
        self.reads.push(LogicalRead::new(logical, buffer));
        self.pieces.push(Piece { offset, destination: to });
    }

    /// Reads the part of an uncompressed extent that stands for the file from `offset` on.
    fn add_plain(&mut self, offset: u64, extent: &DiskExtent, target: &'b mut [u8], sector_size: usize) {
        // No sum here overflows: the part lies inside its extent, and that inside the address space.
        let at = extent.disk_address.0 + extent.offset;
        let head = (at % sector_size as u64) as usize;
        let span = (head + target.len()).next_multiple_of(sector_size);
        if head == 0 && target.len().is_multiple_of(sector_size) {
            return self.push(LogicalAddress(at), target, offset, Destination::Direct);
        }
        if span <= 2 * sector_size {
            return self.add_bounced(offset, at, target, sector_size);
        }
        let first = if head == 0 { 0 } else { sector_size - head };
        let middle = (target.len() - first) / sector_size * sector_size;
        let (first_target, target) = target.split_at_mut(first);
        let (middle_target, last_target) = target.split_at_mut(middle);
        if first > 0 {
            self.add_bounced(offset, at, first_target, sector_size);
        }
        let (offset, at) = (offset + first as u64, at + first as u64);
        if middle > 0 {
            self.push(LogicalAddress(at), middle_target, offset, Destination::Direct);
        }
        if !last_target.is_empty() {
            self.add_bounced(offset + middle as u64, at + middle as u64, last_target, sector_size);
        }
    }

    /// Reads the sectors around `target`'s bytes into the scratch.
    fn add_bounced(&mut self, offset: u64, at: u64, target: &'b mut [u8], sector_size: usize) {
        let skip = (at % sector_size as u64) as usize;
        let buffer = self.take_arena((skip + target.len()).next_multiple_of(sector_size));
        let start = LogicalAddress(at - skip as u64);
        self.push(start, buffer, offset - skip as u64, Destination::Copy { target, skip });
    }

    /// Reads the whole of a compressed extent.
    fn add_compressed(&mut self, offset: u64, extent: DiskExtent, skip: usize, target: &'b mut [u8]) {
        let buffer = self.take_arena(extent.disk_length as usize);
        let to = Destination::Decompress { target, skip, extent };
        self.push(extent.disk_address, buffer, offset, to);
    }
}
