//! Reading file data.
//!
//! Owns [`ReadContext`]. A request goes through these steps:
//! 1. It is cut along the file's extents into device reads, which are issued in batches.
//! 2. Each read is verified. Bad sectors are replaced from other copies.
//! 3. The bytes reach the caller's buffer. Whole sectors of uncompressed extents were read there in
//!    the first place; all others pass through the thread's scratch ([`super::read_batch`]).
//!
//! Whole sectors of a cached extent with cached checksums take a short cut: one read into the
//! caller's buffer.
//!
//! Invariants:
//! - No data that failed its checksum, or its hash of fs-verity, is returned.
//! - A request allocates nothing once the thread has its scratch.
//!
//! Locks: none held between calls. Kernel counterparts: `btrfs_readahead` (`fs/btrfs/extent_io.c`),
//! `btrfs_submit_bbio`, `btrfs_check_read_bio` (`fs/btrfs/bio.c`), `btrfs_submit_compressed_read`
//! (`fs/btrfs/compression.c`).

use crate::btree::Tree;
use crate::data::checksum::{SectorFault, first_mismatch};
use crate::data::compress::{DecompressError, decompress};
use crate::data::extent_map::{DiskExtent, Extent, ExtentKind, InlineExtent};
use crate::data::file_data::{ExtentLookup, FileData};
use crate::data::fsverity::{FileVerity, OpenVerity};
use crate::data::read_batch::{ARENA, Batch, Destination, LastExtent, SMALL_ARENA, Scratch};
use crate::data::verify::{CHECKSUMS_AT_ONCE, ChecksumSource, ChecksumTree, ReadRange, Verifier};
use crate::errors::{Error, Result};
use crate::transaction::{Transactions, assert_no_handle};
use crate::tuning::CsumLookup;
use crate::volume::{LogicalRead, Volume};
use arrayvec::ArrayVec;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, LogicalAddress};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Most bytes that are read and verified by a Merkle tree in one go; a multiple of any tree's
/// block.
const MEASURED_AT_ONCE: u64 = 256 << 10;

thread_local! {
    /// The scratch of this thread; empty while a request uses it.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The state that all reads of an open file system share.
#[derive(Debug)]
pub struct ReadContext {
    /// Distinguishes the extents of this file system in the threads' caches.
    id: u64,
    pub(super) volume: Arc<Volume>,
    checksums: ChecksumSource,
    verify: bool,
    lookup: CsumLookup,
    /// How often extents were moved to other addresses.
    moves: AtomicU64,
    verity: OpenVerity,
}

impl ReadContext {
    /// Creates a context that reads from `volume`, and verifies data against the tree `checksums`
    /// if `verify` is set. Without the tree, all checksums count as missing.
    pub fn new(volume: Arc<Volume>, checksums: Option<Tree>, verify: bool) -> Self {
        Self::with_checksums(volume, ChecksumSource::Committed(checksums), verify, CsumLookup::default())
    }

    /// Creates a context for a file system that is open for writing.
    pub(crate) fn live(transactions: &Arc<Transactions>, verify: bool, lookup: CsumLookup) -> Self {
        let volume = Arc::clone(transactions.volume());
        Self::with_checksums(
            volume,
            ChecksumSource::Live(Arc::clone(transactions), OnceLock::new()),
            verify,
            lookup,
        )
    }

    fn with_checksums(
        volume: Arc<Volume>,
        checksums: ChecksumSource,
        verify: bool,
        lookup: CsumLookup,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (id, moves) = (NEXT.fetch_add(1, Ordering::Relaxed), AtomicU64::new(0));
        Self { id, volume, checksums, verify, lookup, moves, verity: OpenVerity::default() }
    }

    /// Returns whether data is verified.
    pub fn verifies_any(&self) -> bool {
        self.verify
    }

    /// Returns whether there is a checksum tree that can be read, at least its root. A file system
    /// that is open for writing has one.
    pub fn has_checksum_tree(&self) -> bool {
        !matches!(self.checksums, ChecksumSource::Committed(None))
    }

    /// Returns how often extents were moved to other addresses. A read during which the number
    /// changed may have met the old address of an extent, and what is there since: it must be done
    /// again, beginning with the look-up of the extents.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    /// Counts a move. The trees lead to the new places by now, and the old ones are not free yet.
    pub(crate) fn count_move(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    /// Fills `buffer` with the file's bytes from `offset` on, up to the end of the file, and
    /// returns the number of bytes. Offset and length need not be aligned.
    ///
    /// # Errors
    /// [`Error::DataChecksum`] or [`Error::MissingChecksum`] where no copy is good;
    /// [`Error::Verity`]; [`Error::Decompress`]; a tree block that cannot be read; an invalid
    /// extent; an error of the device. The content of the buffer is then undefined.
    pub fn read(&self, file: &FileData<'_>, offset: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        assert_no_handle();
        let left = file.size.saturating_sub(offset.0);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if length == 0 {
            return Ok(0);
        }
        match self.is_measured(file) {
            true => self.read_measured(file, offset.0, &mut buffer[..length])?,
            false => self.read_checksummed(file, offset.0, &mut buffer[..length])?,
        }
        Ok(length)
    }

    /// Returns whether data of `file` is also verified by its Merkle tree.
    #[inline]
    pub(super) fn is_measured(&self, file: &FileData<'_>) -> bool {
        self.verify && file.flags.contains(InodeFlags::VERITY)
    }

    /// Returns what verifies a file with fs-verity.
    ///
    /// # Errors
    /// As [`FileVerity::load`].
    pub(crate) fn verity_of(&self, file: &FileData<'_>) -> Result<Arc<FileVerity>> {
        self.verity.of(file)
    }

    /// Fills `buffer` with bytes of a file with fs-verity. It reads whole blocks of the Merkle
    /// tree.
    #[cold]
    fn read_measured(&self, file: &FileData<'_>, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let verity = self.verity_of(file)?;
        let block = verity.block_size() as u64;
        let wanted_end = offset + buffer.len() as u64;
        let mut rest = buffer;
        let mut at = offset;
        while !rest.is_empty() {
            let start = at - at % block;
            let end = wanted_end.next_multiple_of(block).min(start + MEASURED_AT_ONCE).min(file.size);
            let (part, behind) = std::mem::take(&mut rest).split_at_mut((end.min(wanted_end) - at) as usize);
            if at == start && end <= wanted_end {
                self.read_checksummed(file, start, part)?;
                verity.verify(file.tree.get(), file.place(start), part)?;
            } else {
                let mut whole = vec![0; (end - start) as usize];
                self.read_checksummed(file, start, &mut whole)?;
                verity.verify(file.tree.get(), file.place(start), &whole)?;
                part.copy_from_slice(&whole[(at - start) as usize..][..part.len()]);
            }
            (rest, at) = (behind, end.min(wanted_end));
        }
        Ok(())
    }

    /// Fills `buffer` with bytes before the end of the file.
    fn read_checksummed(&self, file: &FileData<'_>, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let failed = match self.read_cached_extent(file, offset, buffer) {
            ShortCut::Done => return Ok(()),
            ShortCut::None => None,
            ShortCut::Failed(error) => Some(error),
        };
        // Taken, not borrowed: a nested call could not borrow it a second time.
        let mut scratch = SCRATCH.take();
        // The checksum tree is taken after the file's tree. The checksums of the data that the
        // file's tree refers to stay in place as long as its pin.
        let checksums = ChecksumTree::new(&self.checksums);
        let mut request = Request { failed, ..Request::new(self, file, &checksums) };
        let result = request.run(offset, buffer, &mut scratch);
        SCRATCH.set(scratch);
        result
    }

    /// Fills `buffer` with the bytes of an extent as they lie on disk, from the first copy that has
    /// valid checksums. Returns whether there is such a copy.
    ///
    /// # Errors
    /// A block of the checksum tree that cannot be read.
    pub fn read_stored(&self, flags: InodeFlags, logical: LogicalAddress, buffer: &mut [u8]) -> Result<bool> {
        assert_no_handle();
        let checksums = ChecksumTree::new(&self.checksums);
        let enabled = self.verify && !flags.contains(InodeFlags::NODATASUM);
        let geometry = self.volume.geometry();
        let mut verifier = Verifier::new(geometry, self.lookup, enabled, None, &checksums);
        for copy in self.volume.copies_in_order(logical)? {
            let read = ReadRange { logical, offset: 0, ordered: None };
            if self.volume.read_copy(logical, buffer, copy).is_ok()
                && verifier.first_fault(&read, buffer)?.is_none()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads whole sectors of one cached, uncompressed extent. If the data is not in `buffer` and
    /// valid after that, or if its checksums are not cached, the caller makes a full request.
    fn read_cached_extent(&self, file: &FileData<'_>, offset: u64, buffer: &mut [u8]) -> ShortCut {
        let Some(logical) = self.locate_cached(file, offset, buffer.len()) else { return ShortCut::None };
        let geometry = self.volume.geometry();
        let mut checksums = [0; CHECKSUMS_AT_ONCE];
        let verifies = self.verifies(file);
        let checksums = if verifies {
            self.cached_checksums(file, logical, buffer.len(), &mut checksums)
        } else {
            Some(&[][..])
        };
        let Some(checksums) = checksums else { return ShortCut::None };
        if let Err(error) = self.volume.read(logical, buffer) {
            return ShortCut::Failed(error);
        }
        let sector_size = geometry.sector_size as usize;
        if verifies && first_mismatch(geometry.checksum_type, sector_size, buffer, checksums).is_some() {
            return ShortCut::None;
        }
        ShortCut::Done
    }

    /// Returns the address of `length` bytes at `offset`, whole sectors, if they are in one cached,
    /// uncompressed extent.
    #[inline]
    fn locate_cached(&self, file: &FileData<'_>, offset: u64, length: usize) -> Option<LogicalAddress> {
        let sector_size = self.volume.geometry().sector_size as usize;
        // The sector size is a power of two.
        let unaligned = (offset as usize | length) & (sector_size - 1) != 0;
        let (Some(cache), None, false) = (file.extent_cache, file.ordered, unaligned) else { return None };
        let Some(Extent { end, kind: ExtentKind::Regular(disk), .. }) = cache.get(offset) else {
            return None;
        };
        let logical = LogicalAddress(disk.disk_address.0 + disk.offset);
        let in_one_piece = disk.compression == Compression::None
            && end.0 - offset >= length as u64
            && logical.0 & (sector_size as u64 - 1) == 0;
        in_one_piece.then_some(logical)
    }

    #[inline]
    pub(super) fn verifies(&self, file: &FileData<'_>) -> bool {
        self.verify && !file.flags.contains(InodeFlags::NODATASUM)
    }

    pub(super) fn checksums(&self) -> &ChecksumSource {
        &self.checksums
    }

    pub(super) fn lookup(&self) -> CsumLookup {
        self.lookup
    }

    /// Copies the checksums of `length` bytes from `logical`, if all of them are cached.
    #[inline]
    fn cached_checksums<'s>(
        &self,
        file: &FileData<'_>,
        logical: LogicalAddress,
        length: usize,
        checksums: &'s mut [u8; CHECKSUMS_AT_ONCE],
    ) -> Option<&'s [u8]> {
        let geometry = self.volume.geometry();
        let wanted = length / geometry.sector_size as usize * geometry.checksum_type.size();
        let checksums = checksums.get_mut(..wanted).filter(|_| self.lookup.is_cached())?;
        let copied = file.extent_cache?.checksums().copy(logical, &geometry, checksums);
        (copied == wanted).then_some(&*checksums)
    }
}

/// The outcome of the short cut.
enum ShortCut {
    /// The data is there.
    Done,
    /// It cannot be taken, or the data is not valid.
    None,
    /// No copy of the whole range could be read.
    Failed(Error),
}

/// One request.
struct Request<'a> {
    context: &'a ReadContext,
    file: &'a FileData<'a>,
    sector_size: usize,
    verifier: Verifier<'a>,
    /// The error of the short cut, which has tried to read the whole range.
    failed: Option<Error>,
}

impl<'a> Request<'a> {
    fn new(context: &'a ReadContext, file: &'a FileData<'a>, checksum_tree: &'a ChecksumTree<'a>) -> Self {
        let geometry = context.volume.geometry();
        let enabled = context.verify && !file.flags.contains(InodeFlags::NODATASUM);
        let sector_size = geometry.sector_size as usize;
        let verifier = Verifier::new(geometry, context.lookup, enabled, file.extent_cache, checksum_tree);
        Self { context, file, sector_size, verifier, failed: None }
    }

    fn run(&mut self, offset: u64, buffer: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let end = offset + buffer.len() as u64;
        let mut extents = ExtentLookup::new(self.file, self.sector_size as u32);
        let mut at = offset;
        let mut rest = buffer;
        // The rest of an extent that was cut, and an extent that did not fit into the batch.
        let mut carried: ArrayVec<Extent, 2> = ArrayVec::new();
        let mut arena_bytes = SMALL_ARENA;
        while !rest.is_empty() {
            let mut batch = Batch::new(&mut scratch.arena, arena_bytes);
            while !rest.is_empty() {
                let extent = match carried.pop() {
                    Some(extent) => extent,
                    None => extents.at(at, end)?,
                };
                let extent = self.cut_written(extent, &mut carried);
                if let ExtentKind::Regular(disk) = &extent.kind
                    && !batch.fits(disk, self.sector_size)
                {
                    carried.push(extent);
                    arena_bytes = ARENA;
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

    /// Cuts a preallocated extent where data begins or ends; the rest goes to `carried`.
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

    /// Fills `target` with the start of `extent`, or adds the reads that will do so to the batch.
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
                if last.key == Some((self.context.id, self.context.moves(), whole)) {
                    target.copy_from_slice(&last.bytes[skip..][..target.len()]);
                } else {
                    batch.add_compressed(extent.start.0, whole, skip, target);
                }
            }
        }
        Ok(())
    }

    /// Copies inline data, which the leaf's checksum has verified. `offset` is the file offset, and
    /// that in the extent, too.
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
        let bytes = last.reset(inline.ram_bytes);
        decompress(inline.compression, stored, bytes, sector_size).map_err(fault)?;
        copy(bytes, target);
        Ok(())
    }

    /// Issues the reads of a batch, verifies them, and copies or decompresses the data to where it
    /// belongs.
    fn finish(&mut self, batch: &mut Batch<'_>, last: &mut LastExtent) -> Result<()> {
        match &mut batch.reads[..] {
            [] => return Ok(()),
            [read] => {
                let failed = self.failed.take();
                read.result = failed.map_or_else(|| self.context.volume.read(read.logical, read.buffer), Err);
            }
            reads => self.context.volume.read_many(reads),
        }
        for (read, planned) in batch.reads.drain(..).zip(batch.planned.drain(..)) {
            let LogicalRead { logical, buffer, result } = read;
            // A read is either all in ordered extents, which are never compressed, or not at all.
            let compressed = matches!(planned.destination, Destination::Decompress { .. });
            let ordered = self.file.ordered.filter(|ordered| !compressed && ordered.holds(planned.offset));
            let read = ReadRange { logical, offset: planned.offset, ordered };
            self.check(&read, buffer, result)?;
            match planned.destination {
                Destination::Direct => {}
                Destination::Copy { target, skip } => {
                    target.copy_from_slice(&buffer[skip..][..target.len()]);
                }
                Destination::Decompress { target, skip, extent } => self
                    .decompress_to(buffer, target, skip, extent, planned.offset, last)
                    .map_err(|error| self.decompress_error(planned.offset, error))?,
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
        // If no later read can want the rest, decompress into the caller's buffer.
        let wanted_whole =
            target.len() as u64 == extent.ram_bytes || offset + target.len() as u64 == self.file.size;
        if skip == 0 && wanted_whole {
            return decompress(extent.compression, input, target, sector_size);
        }
        let bytes = last.reset(extent.ram_bytes);
        decompress(extent.compression, input, bytes, sector_size)?;
        target.copy_from_slice(&bytes[skip..][..target.len()]);
        last.key = Some((self.context.id, self.context.moves(), extent));
        Ok(())
    }

    fn decompress_error(&self, offset: u64, error: DecompressError) -> Error {
        Error::Decompress { place: self.file.place(offset), reason: error.to_string() }
    }

    /// Verifies whole sectors that were read with `result`, and replaces bad ones by other copies.
    fn check(&mut self, read: &ReadRange<'_>, data: &mut [u8], result: Result<()>) -> Result<()> {
        let sector_size = self.sector_size;
        let mut checked = 0;
        let unread = match result {
            Ok(()) => false,
            Err(error) => {
                let copies = self.context.volume.copies(read.logical)?;
                if copies == 1 || data.len() == sector_size {
                    // Every copy of it was tried.
                    return Err(self.unreadable(read, error, copies));
                }
                // The error does not tell which sectors cannot be read. Each is read again.
                true
            }
        };
        while checked < data.len() {
            let at = read.advanced(checked);
            let rest = &mut data[checked..];
            let sector = if unread {
                0
            } else {
                match self.verifier.first_fault(&at, rest)? {
                    None => return Ok(()),
                    Some((sector, SectorFault::Mismatch)) => sector,
                    Some((sector, SectorFault::Missing)) => {
                        let ReadRange { logical, offset, .. } = at.advanced(sector * sector_size);
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

    /// Returns the error for a sector that no copy has.
    fn unreadable(&self, read: &ReadRange<'_>, error: Error, copies: usize) -> Error {
        let ReadRange { logical, offset, .. } = *read;
        self.context.volume.note_bad_copy(logical);
        if copies == 1 || !self.verifier.is_enabled() {
            return error;
        }
        Error::DataChecksum { place: self.file.place(offset), logical, copies }
    }

    /// Fills one sector from the first valid copy.
    fn repair(&mut self, bad: &ReadRange<'_>, sector: &mut [u8]) -> Result<()> {
        let ReadRange { logical, offset, .. } = *bad;
        let volume = &self.context.volume;
        if !self.verifier.is_enabled() {
            return volume.read(logical, sector);
        }
        let order = volume.copies_in_order(logical)?;
        let copies = order.len();
        let mut error = None;
        for copy in order {
            match self.context.volume.read_copy(logical, sector, copy) {
                Err(failure) => error = error.or(Some(failure)),
                Ok(()) => match self.verifier.first_fault(bad, sector)? {
                    Some((_, SectorFault::Mismatch)) => {}
                    Some((_, SectorFault::Missing)) => {
                        return Err(Error::MissingChecksum { place: self.file.place(offset), logical });
                    }
                    None => {
                        tracing::warn!("{}: read copy {copy} instead of a bad one", self.file.place(offset));
                        volume.note_bad_copy(logical);
                        return Ok(());
                    }
                },
            }
        }
        volume.note_bad_copy(logical);
        match error {
            Some(error) if copies == 1 => Err(error),
            _ => Err(Error::DataChecksum { place: self.file.place(offset), logical, copies }),
        }
    }
}
