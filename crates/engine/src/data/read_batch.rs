//! The device reads of one request that are in flight together.
//!
//! Owns [`Batch`] and the scratch memory of each thread. Bytes that a read cannot put into the
//! caller's buffer straight away pass through the scratch: partly wanted sectors, and compressed
//! extents.
//!
//! Invariant: the scratch is up to [`ARENA`] bytes and one uncompressed extent; a thread allocates
//! it once. A batch allocates nothing. Locks: none.

use crate::data::compress::MAX_UNCOMPRESSED;
use crate::data::extent_map::DiskExtent;
use crate::volume::LogicalRead;
use arrayvec::ArrayVec;
use papilio_format::LogicalAddress;
use papilio_format::items::file_extent::Compression;

/// The most reads of a batch.
const BATCH: usize = 32;
/// The most reads of one extent: its first sector, its middle, its last sector.
const READS_PER_EXTENT: usize = 3;
/// Bytes of scratch for data that is not read straight into the caller's buffer. One extent needs
/// at most 128 KiB: a compressed extent, or two sectors of 64 KiB.
pub(super) const ARENA: usize = 1 << 20;
/// Bytes of scratch at first: enough for the ends of unaligned reads.
pub(super) const SMALL_ARENA: usize = 32 << 10;

/// The memory that a thread keeps between requests.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) arena: Vec<u8>,
    pub(super) last: LastExtent,
}

/// The last extent that the thread decompressed: small sequential reads decompress it once.
#[derive(Default)]
pub(super) struct LastExtent {
    pub(super) key: Option<(u64, u64, DiskExtent)>,
    pub(super) bytes: Vec<u8>,
}

/// Where the bytes of a read go.
pub(super) enum Destination<'b> {
    /// They were read to their destination.
    Direct,
    /// Those from `skip` on are copied to `target`.
    Copy { target: &'b mut [u8], skip: usize },
    /// Those from `skip` on of the decompressed extent are copied to `target`.
    Decompress { target: &'b mut [u8], skip: usize, extent: DiskExtent },
}

/// A read of a batch, beside its [`LogicalRead`].
pub(super) struct PlannedRead<'b> {
    /// The file offset of the first byte.
    pub(super) offset: u64,
    pub(super) destination: Destination<'b>,
}

/// The reads of a batch and the scratch that is left.
pub(super) struct Batch<'b> {
    pub(super) reads: ArrayVec<LogicalRead<'b>, BATCH>,
    pub(super) planned: ArrayVec<PlannedRead<'b>, BATCH>,
    arena: &'b mut [u8],
}

impl LastExtent {
    /// Forgets the extent, and returns a buffer of `length` bytes.
    pub(super) fn reset(&mut self, length: u64) -> &mut [u8] {
        assert!(length <= MAX_UNCOMPRESSED, "the parser refuses larger extents");
        self.key = None;
        self.bytes.resize(length as usize, 0);
        &mut self.bytes
    }
}

impl<'b> Batch<'b> {
    pub(super) fn new(arena: &'b mut Vec<u8>, bytes: usize) -> Self {
        if arena.len() < bytes {
            arena.resize(bytes, 0);
        }
        Self { reads: ArrayVec::new(), planned: ArrayVec::new(), arena }
    }

    /// Returns whether the reads of one more extent fit.
    pub(super) fn fits(&self, extent: &DiskExtent, sector_size: usize) -> bool {
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
        self.planned.push(PlannedRead { offset, destination: to });
    }

    /// Adds reads of the part of an uncompressed extent that starts at file offset `offset`.
    pub(super) fn add_plain(
        &mut self,
        offset: u64,
        extent: &DiskExtent,
        target: &'b mut [u8],
        sector_size: usize,
    ) {
        // No overflow: the part lies inside its extent, and the extent inside the address space.
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

    /// Adds a read of the sectors that contain `target`'s bytes, into the scratch.
    fn add_bounced(&mut self, offset: u64, at: u64, target: &'b mut [u8], sector_size: usize) {
        let skip = (at % sector_size as u64) as usize;
        let buffer = self.take_arena((skip + target.len()).next_multiple_of(sector_size));
        let start = LogicalAddress(at - skip as u64);
        self.push(start, buffer, offset - skip as u64, Destination::Copy { target, skip });
    }

    /// Adds a read of a whole compressed extent.
    pub(super) fn add_compressed(
        &mut self,
        offset: u64,
        extent: DiskExtent,
        skip: usize,
        target: &'b mut [u8],
    ) {
        let buffer = self.take_arena(extent.disk_length as usize);
        let to = Destination::Decompress { target, skip, extent };
        self.push(extent.disk_address, buffer, offset, to);
    }
}
