//! Data that is on the device and in no tree yet.
//!
//! Owns [`WrittenExtents`], the first phase of every change of data that is published at once:
//! space is allocated, data is compressed, checksummed and written.
//! [`publish_extents`](super::publish_extents) is the second phase.
//!
//! Invariants:
//! - Allocated space is either published or released, also after an error.
//! - Data goes in place where the file alone has a preallocated extent, or is `NODATACOW` and alone
//!   has any. So a full file system cannot fail such a write. Only the tree may then still call the
//!   range preallocated, until the second phase.
//! - An uncompressed extent has at most [`MAX_EXTENT`] bytes. A compressed one has at most 128 KiB
//!   uncompressed, and is at least a sector smaller on disk.
//!
//! Locks: none. Kernel counterparts: `cow_file_range`, `compress_file_range`,
//! `submit_one_async_extent` (`fs/btrfs/inode.c`).

use crate::data::compress::{compress, is_compressible};
use crate::data::csum_edit::ChecksumRuns;
use crate::data::data_context::DataContext;
use crate::data::file_edit::FileEdit;
use crate::data::image::Image;
use crate::data::nocow::InPlacePart;
use crate::data::overlap::checksums_of;
use crate::data::own_extents::own_extents;
use crate::data::space::DataExtent;
use crate::data::write_data::{Placed, write_data};
use crate::data::write_rules::CompressionPlan;
use crate::errors::Result;
use crate::space::RangeSet;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::file_extent::{
    Compression, ExtentPart, FileExtentContent, FileExtentItem, MAX_UNCOMPRESSED,
};
use papilio_format::items::inode::InodeFlags;
use papilio_format::{Generation, LogicalAddress};
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The most bytes of an extent (`BTRFS_MAX_EXTENT_SIZE`).
pub(crate) const MAX_EXTENT: u64 = 128 << 20;

/// The most bytes of a cloned extent that are read at once for their checksums.
const READ_BACK: u64 = 1 << 20;

/// An extent on the device that no tree refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenExtent {
    /// File offset in bytes.
    pub(super) start: u64,
    /// Bytes of the file, a multiple of the sector size.
    pub(super) length: u64,
    pub(super) disk: DataExtent,
    pub(super) compression: Compression,
    /// The size of the whole extent in bytes, without compression.
    uncompressed: u64,
    /// Bytes of the whole extent before those of the file.
    offset: u64,
}

impl WrittenExtent {
    /// Creates an uncompressed extent of `range` in the file, at `disk`.
    pub(crate) fn plain(range: &Range<u64>, disk: LogicalAddress) -> Self {
        let length = range.end - range.start;
        Self::new(range.start, length, DataExtent { address: disk, length }, Compression::None)
    }

    /// Creates an extent of which the file has all bytes.
    fn new(start: u64, length: u64, disk: DataExtent, compression: Compression) -> Self {
        Self { start, length, disk, compression, uncompressed: length, offset: 0 }
    }

    /// Returns the range of the file that it holds.
    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.start + self.length
    }

    /// Returns the item of its first reference.
    pub(super) fn item(&self) -> FileExtentItem<'static> {
        let part = ExtentPart {
            disk_address: self.disk.address,
            disk_length: self.disk.length,
            offset: self.offset,
            length: self.length,
        };
        FileExtentItem {
            generation: Generation(0),
            ram_bytes: self.uncompressed,
            compression: self.compression,
            other_encoding: 0,
            content: FileExtentContent::Regular(part),
        }
    }
}

/// The extents of one change. Dropping it releases their space.
pub(crate) struct WrittenExtents<'a> {
    context: DataContext<'a>,
    /// Ascending, without gaps.
    pub(super) extents: Vec<WrittenExtent>,
    /// `None` for a file without checksums.
    pub(super) checksums: Option<ChecksumRuns>,
    /// Feature bits that a reader of the extents needs.
    pub(super) features: IncompatFeatures,
    /// Flags that the inode gets.
    pub(super) flags: InodeFlags,
    /// The parts of the file that are written in place, ascending.
    own: Vec<InPlacePart>,
    /// The preallocated ranges that hold data now.
    pub(super) filled: RangeSet,
}

/// A piece of an image and its place on the device.
struct WrittenPiece {
    start: u64,
    length: u64,
    address: LogicalAddress,
}

impl Drop for WrittenExtents<'_> {
    fn drop(&mut self) {
        for extent in self.extents.drain(..) {
            self.context.allocator.release_data(extent.disk);
        }
    }
}

impl<'a> WrittenExtents<'a> {
    /// Creates an empty set for a file with inode flags `flags`.
    pub(crate) fn new(context: &DataContext<'a>, flags: InodeFlags) -> Self {
        let checksummed = !flags.contains(InodeFlags::NODATASUM);
        Self {
            context: *context,
            extents: Vec::new(),
            checksums: checksummed.then(|| ChecksumRuns::new(&context.geometry)),
            features: IncompatFeatures::empty(),
            flags: InodeFlags::empty(),
            own: Vec::new(),
            filled: RangeSet::default(),
        }
    }

    /// As [`WrittenExtents::new`], for data of `range` in `file`, which may go in place. The caller
    /// holds the lock on `sharing` until the data is published.
    ///
    /// # Errors
    /// A tree block or an item that cannot be read.
    pub(crate) fn of_range(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        range: &Range<u64>,
    ) -> Result<Self> {
        let mut written = Self::new(context, file.item.flags);
        written.own = own_extents(context, file, range)?;
        Ok(written)
    }

    /// Writes the image uncompressed.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or a device's error.
    pub(crate) fn write_plain(&mut self, image: &Image<'_>) -> Result<()> {
        self.write_plain_part(image, image.start(), image.end())
    }

    fn write_plain_part(&mut self, image: &Image<'_>, from: u64, to: u64) -> Result<()> {
        let mut pieces = Vec::new();
        let mut at = from;
        let own: Vec<InPlacePart> = self.own_between(&(from..to)).collect();
        for InPlacePart { range, disk, preallocated } in own {
            self.allocate_between(at, range.start, &mut pieces)?;
            if preallocated {
                self.filled.cover(&range);
            }
            pieces.push(WrittenPiece { start: range.start, length: range.end - range.start, address: disk });
            at = range.end;
        }
        self.allocate_between(at, to, &mut pieces)?;
        let mut placed = Vec::new();
        for piece in &pieces {
            let mut address = piece.address;
            for bytes in image.slices(piece.start, piece.start + piece.length) {
                placed.push(Placed { address, bytes });
                address = LogicalAddress(address.0 + bytes.len() as u64);
            }
        }
        let computed =
            write_data(self.context.volume, &self.context.rules, self.checksums.is_some(), &placed)?;
        if let Some(checksums) = &mut self.checksums {
            let mut rest = &computed[..];
            for Placed { address, bytes } in &placed {
                let (own, others) = rest.split_at(checksums.size_of(bytes.len()));
                checksums.add(*address, own);
                rest = others;
            }
        }
        Ok(())
    }

    /// Allocates extents for the file between `start` and `to`, and adds their pieces.
    fn allocate_between(&mut self, mut start: u64, to: u64, pieces: &mut Vec<WrittenPiece>) -> Result<()> {
        while start < to {
            let wanted = (to - start).min(MAX_EXTENT);
            let disk = self.context.allocator.allocate_data(self.context.sector(), wanted)?;
            assert!(
                disk.length > 0 && disk.length <= wanted,
                "the allocator returns at most what was asked for"
            );
            let length = disk.length;
            self.extents.push(WrittenExtent::new(start, length, disk, Compression::None));
            pieces.push(WrittenPiece { start, length, address: disk.address });
            start += length;
        }
        Ok(())
    }

    /// Returns the parts of `range` that are written in place.
    fn own_between(&self, range: &Range<u64>) -> impl Iterator<Item = InPlacePart> + '_ {
        let range = range.clone();
        self.own.iter().filter_map(move |part| {
            let (start, end) = (part.range.start.max(range.start), part.range.end.min(range.end));
            let disk = LogicalAddress(part.disk.0 + start.saturating_sub(part.range.start));
            (start < end).then_some(InPlacePart { range: start..end, disk, preallocated: part.preallocated })
        })
    }

    /// Writes the image of a file of `size` bytes, compressing each piece where that saves at least
    /// a sector.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or a device's error.
    pub(crate) fn write_compressed(
        &mut self,
        image: &Image<'_>,
        size: u64,
        plan: &CompressionPlan,
    ) -> Result<()> {
        let (mut scratch, mut packed) = (Vec::new(), Vec::new());
        // The start of the part that is not written yet.
        let mut plain = image.start();
        let mut at = image.start();
        while at < image.end() && !self.flags.contains(InodeFlags::NOCOMPRESS) {
            let end = (at + MAX_UNCOMPRESSED).min(image.end());
            // As in the kernel, data in preallocated space is not compressed.
            let in_place = self.own_between(&(at..end)).next().is_some();
            if !in_place && self.pack(image, at..end, size, plan, &mut scratch, &mut packed) {
                self.write_plain_part(image, plain, at)?;
                self.write_packed(at, end - at, &packed, plan.choice.algorithm())?;
                plain = end;
            }
            at = end;
        }
        self.write_plain_part(image, plain, image.end())
    }

    /// Compresses one piece into `packed`, and returns whether that saves space.
    fn pack(
        &mut self,
        image: &Image<'_>,
        range: Range<u64>,
        size: u64,
        plan: &CompressionPlan,
        scratch: &mut Vec<u8>,
        packed: &mut Vec<u8>,
    ) -> bool {
        let (sector, length) = (self.context.sector(), range.end - range.start);
        if length <= sector {
            return false;
        }
        // Bytes after the end of the file are zeros, which readers fill in.
        let bytes = image.contiguous(range.start, range.end.min(size), scratch);
        if !plan.forced && !is_compressible(bytes) {
            return false;
        }
        let verify = self.context.rules.options.verify_compression;
        if compress(plan.choice, bytes, packed, sector as u32, verify) {
            return true;
        }
        // Only a full-sized piece is evidence about the file. The size of others depends on how the
        // caller splits its writes, while the kernel sees all that writeback gathered.
        if plan.marks && length == MAX_UNCOMPRESSED {
            self.flags |= InodeFlags::NOCOMPRESS;
        }
        false
    }

    fn write_packed(
        &mut self,
        start: u64,
        length: u64,
        packed: &[u8],
        compression: Compression,
    ) -> Result<()> {
        let disk = self.allocate_packed(packed)?;
        self.extents.push(WrittenExtent::new(start, length, disk, compression));
        self.store_packed(disk, packed, compression)
    }

    /// Writes an extent that is compressed already: whole sectors, of which the file gets `length`
    /// bytes at `start` from byte `offset` of the `uncompressed` bytes on. All are multiples of the
    /// sector size.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or a device's error.
    pub(crate) fn write_encoded(
        &mut self,
        start: u64,
        length: u64,
        packed: &[u8],
        compression: Compression,
        [offset, uncompressed]: [u64; 2],
    ) -> Result<()> {
        let disk = self.allocate_packed(packed)?;
        self.extents.push(WrittenExtent { start, length, disk, compression, uncompressed, offset });
        self.store_packed(disk, packed, compression)
    }

    /// Clones `length` bytes of a host file, from byte `from` on, as the bytes of the file at
    /// `start`. The checksums are those of the blocks that are shared now, even if another process
    /// changes the host file. All numbers are multiples of the sector size.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; as [`crate::volume::Volume::clone_from_file`].
    pub(crate) fn write_cloned(
        &mut self,
        start: u64,
        length: u64,
        source: BorrowedFd<'_>,
        from: u64,
    ) -> Result<()> {
        let mut done = 0;
        while done < length {
            let wanted = (length - done).min(MAX_EXTENT);
            let disk = self.context.allocator.allocate_data(self.context.sector(), wanted)?;
            self.extents.push(WrittenExtent::new(start + done, disk.length, disk, Compression::None));
            self.context.volume.clone_from_file(disk.address, source, from + done, disk.length)?;
            if let Some(checksums) = &mut self.checksums {
                let rules = &self.context.rules;
                let (algorithm, sector) = (rules.geometry.checksum_type, rules.geometry.sector_size as usize);
                let mut buffer = vec![0; disk.length.min(READ_BACK) as usize];
                let (mut at, end) = (disk.address.0, disk.address.0 + disk.length);
                while at < end {
                    let piece = &mut buffer[..(end - at).min(READ_BACK) as usize];
                    self.context.volume.read(LogicalAddress(at), piece)?;
                    checksums.add(LogicalAddress(at), &checksums_of(algorithm, sector, &[piece]));
                    at += piece.len() as u64;
                }
            }
            done += disk.length;
        }
        Ok(())
    }

    fn allocate_packed(&self, packed: &[u8]) -> Result<DataExtent> {
        let bytes = packed.len() as u64;
        self.context.allocator.allocate_data(bytes, bytes)
    }

    fn store_packed(&mut self, disk: DataExtent, packed: &[u8], compression: Compression) -> Result<()> {
        let placed = [Placed { address: disk.address, bytes: packed }];
        let computed =
            write_data(self.context.volume, &self.context.rules, self.checksums.is_some(), &placed)?;
        if let Some(checksums) = &mut self.checksums {
            checksums.add(disk.address, &computed);
        }
        self.features |= compression.feature();
        Ok(())
    }

    /// Declares the extents published: their space belongs to the tree.
    pub(super) fn set_published(&mut self) {
        self.extents.clear();
        self.filled.clear();
    }
}
