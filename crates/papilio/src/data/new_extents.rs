//! Extents that are being made: room allocated, data and sums ready, in no tree yet.
//!
//! Owns [`Image`], the bytes of whole sectors that a write consists of, and [`NewExtents`], which puts
//! them on disk. Invariants: room that was allocated is either published or given back, also on an
//! error; data is on the device before a tree refers to it; an uncompressed extent has at most
//! [`MAX_EXTENT`] bytes, a compressed one at most 128 KiB uncompressed and at least one sector less on
//! disk. Locks: the editors of the checksum tree and of the file's tree, one after the other. Kernel
//! counterparts: `cow_file_range`, `compress_file_range`, `submit_one_async_extent` (`fs/btrfs/inode.c`).

use crate::data::compress::{compress, is_compressible};
use crate::data::csum_edit::{SumRuns, insert_sums};
use crate::data::file_edit::{CompressionPlan, FileEdit, WriteContext};
use crate::data::file_extents_edit::ExtentChanges;
use crate::data::overlap::sum_and_write;
use crate::data::space::DataExtent;
use crate::errors::Result;
use crate::volume::LogicalWrite;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::file_extent::{
    Compression, ExtentPart, FileExtentContent, FileExtentItem, MAX_UNCOMPRESSED,
};
use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_format::{Generation, Geometry, LogicalAddress};
use std::borrow::Cow;

/// Most bytes of an extent (`BTRFS_MAX_EXTENT_SIZE`).
pub(crate) const MAX_EXTENT: u64 = 128 << 20;
/// Writes with partly filled sectors up to this size are copied together and written at once.
const GATHERED: usize = 64 << 10;

/// Whole sectors of a file, in up to three parts so that what is aligned stays where the caller has it.
pub(crate) struct Image<'a> {
    /// The file offset of the first byte.
    start: u64,
    end: u64,
    parts: Vec<Cow<'a, [u8]>>,
}

impl<'a> Image<'a> {
    /// The sectors that `data`, written at `offset`, leaves behind. What else is in the first and the
    /// last of them is read from the file.
    ///
    /// # Errors
    /// What reading meets.
    pub(crate) fn over(
        context: &WriteContext<'_>,
        file: &FileEdit<'_>,
        offset: u64,
        data: &'a [u8],
    ) -> Result<Self> {
        let end = offset + data.len() as u64;
        let (start, last) = (context.round_down(offset), context.round_up(end));
        let sector = context.sector() as usize;
        let (head, tail) = ((offset - start) as usize, (last - end) as usize);
        let size = file.item.size;
        let mut image = Self { start, end: last, parts: Vec::with_capacity(3) };
        if head == 0 && tail == 0 {
            image.parts.push(Cow::Borrowed(data));
            return Ok(image);
        }
        if data.len() <= GATHERED {
            let mut bytes = vec![0; (last - start) as usize];
            if head > 0 {
                context.read_as(file, size, start, &mut bytes[..sector])?;
            }
            if tail > 0 && end < size && (head == 0 || bytes.len() > sector) {
                let at = bytes.len() - sector;
                context.read_as(file, size, last - sector as u64, &mut bytes[at..])?;
            }
            bytes[head..][..data.len()].copy_from_slice(data);
            image.parts.push(Cow::Owned(bytes));
            return Ok(image);
        }
        let (first, rest) = data.split_at(if head == 0 { 0 } else { sector - head });
        let (middle, rest) = rest.split_at(rest.len() / sector * sector);
        if head > 0 {
            let mut bytes = vec![0; sector];
            context.read_as(file, size, start, &mut bytes)?;
            bytes[head..].copy_from_slice(first);
            image.parts.push(Cow::Owned(bytes));
        }
        image.parts.push(Cow::Borrowed(middle));
        if tail > 0 {
            let mut bytes = vec![0; sector];
            if end < size {
                context.read_as(file, size, last - sector as u64, &mut bytes)?;
            }
            bytes[..rest.len()].copy_from_slice(rest);
            image.parts.push(Cow::Owned(bytes));
        }
        Ok(image)
    }

    /// Whole sectors that start at `start`.
    pub(crate) fn of_sectors(start: u64, bytes: Vec<u8>) -> Self {
        Self { start, end: start + bytes.len() as u64, parts: vec![Cow::Owned(bytes)] }
    }

    /// Whole sectors that start at `start`, in pieces.
    pub(crate) fn of_pages(start: u64, pages: &[&'a [u8]]) -> Self {
        let length: u64 = pages.iter().map(|page| page.len() as u64).sum();
        Self { start, end: start + length, parts: pages.iter().map(|page| Cow::Borrowed(*page)).collect() }
    }

    /// File offset of the first byte.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// File offset behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The bytes from `from` to `to`, file offsets, in pieces.
    fn slices(&self, from: u64, to: u64) -> impl Iterator<Item = &[u8]> {
        let mut at = self.start;
        self.parts.iter().filter_map(move |part| {
            let start = at;
            at += part.len() as u64;
            let (from, to) = (from.max(start), to.min(at));
            (from < to).then(|| &part[(from - start) as usize..(to - start) as usize])
        })
    }

    /// The bytes from `from` to `to` in one piece, which is in `scratch` unless they are so already.
    fn contiguous<'s>(&'s self, from: u64, to: u64, scratch: &'s mut Vec<u8>) -> &'s [u8] {
        let mut slices = self.slices(from, to);
        let first = slices.next().unwrap_or(&[]);
        if first.len() as u64 == to - from {
            return first;
        }
        scratch.clear();
        scratch.extend_from_slice(first);
        slices.for_each(|slice| scratch.extend_from_slice(slice));
        scratch
    }
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct NewExtent {
    /// File offset.
    start: u64,
    /// Bytes of the file, a multiple of the sector size.
    length: u64,
    disk: DataExtent,
    compression: Compression,
}

impl NewExtent {
    fn item(&self) -> FileExtentItem<'static> {
        let part = ExtentPart {
            disk_address: self.disk.address,
            disk_length: self.disk.length,
            offset: 0,
            length: self.length,
        };
        FileExtentItem {
            generation: Generation(0),
            ram_bytes: self.length,
            compression: self.compression,
            other_encoding: 0,
            content: FileExtentContent::Regular(part),
        }
    }
}

/// Extents in the making. Dropping it gives back their room.
pub(crate) struct NewExtents<'a> {
    context: &'a WriteContext<'a>,
    extents: Vec<NewExtent>,
    sums: Option<SumRuns>,
    features: IncompatFeatures,
    /// Flags that the inode gets.
    flags: InodeFlags,
}

impl Drop for NewExtents<'_> {
    fn drop(&mut self) {
        for extent in self.extents.drain(..) {
            self.context.space.release_data(extent.disk);
        }
    }
}

impl<'a> NewExtents<'a> {
    /// None yet, for a file with these flags.
    pub(crate) fn new(context: &'a WriteContext<'a>, flags: InodeFlags) -> Self {
        let summed = !flags.contains(InodeFlags::NODATASUM);
        Self {
            context,
            extents: Vec::new(),
            sums: summed.then(|| SumRuns::new(&context.geometry())),
            features: IncompatFeatures::empty(),
            flags: InodeFlags::empty(),
        }
    }

    /// Writes the image as it is.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or a device's error.
    pub(crate) fn add_plain(&mut self, image: &Image<'_>) -> Result<()> {
        self.add_plain_part(image, image.start, image.end)
    }

    fn add_plain_part(&mut self, image: &Image<'_>, from: u64, to: u64) -> Result<()> {
        let first = self.extents.len();
        let mut start = from;
        while start < to {
            let wanted = (to - start).min(MAX_EXTENT);
            let disk = self.context.space.allocate_data(self.context.sector(), wanted)?;
            assert!(disk.length > 0 && disk.length <= wanted, "as much as was asked for, or less");
            let length = disk.length;
            self.extents.push(NewExtent { start, length, disk, compression: Compression::None });
            start += length;
        }
        let (mut writes, mut slices) = (Vec::new(), Vec::new());
        for extent in &self.extents[first..] {
            let mut address = extent.disk.address;
            for slice in image.slices(extent.start, extent.start + extent.length) {
                writes.push(LogicalWrite::new(address, slice));
                slices.push(slice);
                address = LogicalAddress(address.0 + slice.len() as u64);
            }
        }
        let volume = self.context.volume;
        match &mut self.sums {
            Some(sums) => {
                let Geometry { checksum_type, sector_size, .. } = self.context.geometry();
                let how = self.context.options.checksum;
                let (computed, ()) = sum_and_write(how, checksum_type, sector_size as usize, &slices, || {
                    volume.write_many(&mut writes);
                });
                let mut rest = &computed[..];
                for write in &writes {
                    let (own, others) = rest.split_at(sums.size_of(write.buffer.len()));
                    sums.add_known(write.logical, own);
                    rest = others;
                }
            }
            None => volume.write_many(&mut writes),
        }
        writes.into_iter().try_for_each(|write| write.result)
    }

    /// Writes the image of a file of `size` bytes, compressed where that saves a sector at least.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], or a device's error.
    pub(crate) fn add_compressed(
        &mut self,
        image: &Image<'_>,
        size: u64,
        plan: &CompressionPlan,
    ) -> Result<()> {
        let (mut scratch, mut packed) = (Vec::new(), Vec::new());
        // From here on nothing is written yet.
        let mut plain = image.start;
        let mut at = image.start;
        while at < image.end && !self.flags.contains(InodeFlags::NOCOMPRESS) {
            let end = (at + MAX_UNCOMPRESSED).min(image.end);
            if self.pack(image, at..end, size, plan, &mut scratch, &mut packed) {
                self.add_plain_part(image, plain, at)?;
                self.add_packed(at, end - at, &packed, plan.choice.algorithm())?;
                plain = end;
            }
            at = end;
        }
        self.add_plain_part(image, plain, image.end)
    }

    /// Compresses one piece; says whether that is worth it.
    fn pack(
        &mut self,
        image: &Image<'_>,
        range: std::ops::Range<u64>,
        size: u64,
        plan: &CompressionPlan,
        scratch: &mut Vec<u8>,
        packed: &mut Vec<u8>,
    ) -> bool {
        let (sector, length) = (self.context.sector(), range.end - range.start);
        if length <= sector {
            return false;
        }
        // What lies behind the end of the file is zeros, and readers fill them in.
        let bytes = image.contiguous(range.start, range.end.min(size), scratch);
        if !plan.forced && !is_compressible(bytes) {
            return false;
        }
        if compress(plan.choice, bytes, packed, sector as u32) {
            return true;
        }
        // Only a whole piece says something about the file; here, how small the others are depends on
        // how the caller cuts its writes, while the kernel sees what writeback collected.
        if plan.marks && length == MAX_UNCOMPRESSED {
            self.flags |= InodeFlags::NOCOMPRESS;
        }
        false
    }

    fn add_packed(&mut self, start: u64, length: u64, packed: &[u8], compression: Compression) -> Result<()> {
        let bytes = packed.len() as u64;
        let disk = self.context.space.allocate_data(bytes, bytes)?;
        self.extents.push(NewExtent { start, length, disk, compression });
        self.context.volume.write(disk.address, packed)?;
        if let Some(sums) = &mut self.sums {
            sums.add(disk.address, packed);
        }
        self.features |= feature_of(compression);
        Ok(())
    }

    /// Publishes them: the sums, then what `changes` says with these extents in it, and `item` as the
    /// inode.
    ///
    /// # Errors
    /// What changing trees meets; the transaction is then to be aborted.
    pub(crate) fn publish(
        mut self,
        file: &mut FileEdit<'_>,
        mut changes: ExtentChanges,
        mut item: InodeItem,
    ) -> Result<()> {
        if !self.features.is_empty() {
            self.context.space.require_features(self.features)?;
        }
        item.flags |= self.flags;
        if let Some(sums) = self.sums.take().filter(|sums| !sums.is_empty()) {
            insert_sums(&mut self.context.checksum_tree.edit(self.context.space), sums)?;
        }
        for extent in &self.extents {
            changes.insert(extent.start, &extent.item(), true);
        }
        file.publish(self.context, changes, item)?;
        // They are the tree's now.
        self.extents.clear();
        Ok(())
    }
}

/// The bit that a reader of such data has to know; zlib was there from the start.
pub(crate) fn feature_of(compression: Compression) -> IncompatFeatures {
    match compression {
        Compression::None | Compression::Zlib => IncompatFeatures::empty(),
        Compression::Lzo => IncompatFeatures::COMPRESS_LZO,
        Compression::Zstd => IncompatFeatures::COMPRESS_ZSTD,
    }
}
