//! The way back: the source as it was before the conversion.
//!
//! Owns [`rollback`].
//!
//! **Order**
//! 1. The image is checked: every extent lies where the source had it and matches its checksums,
//!    and every block that the source uses has one.
//! 2. The content that had moved is written back, except for the block of the first superblock, and
//!    flushed. Btrfs uses none of these ranges.
//! 3. The block of the first superblock is written: that is the switch.
//!
//! A power cut before the switch leaves Btrfs, one after it the source.

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::ext::reader::ExtFs;
use crate::image::find_image;
use crate::layout::{is_free, reserved_ranges};
use crate::options::{ConvertProgress, ConvertStage, Progress};
use crate::source::{Profile, Source, read};
use crate::xfs::reader::XfsFs;
use papilio_device::{Access, Device, check_read};
use papilio_engine::errors::Error;
use papilio_engine::options::OpenOptions;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{
    DeviceId, Generation, InodeNumber, ItemType, Key, LogicalAddress, PhysicalAddress, TreeId, Uuid,
};
use papilio_fs::{File, FileSystem};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the image that are read at once.
const STEP: u64 = 1 << 20;

/// The result of a way back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RolledBack {
    /// `ext2`, `ext3`, `ext4` or `XFS`.
    pub variant: &'static str,
    /// The subvolume that had it.
    pub saved: &'static str,
    /// The label of the Btrfs that is gone.
    pub btrfs_label: Vec<u8>,
    /// The UUID of the Btrfs that is gone.
    pub btrfs_uuid: Uuid,
    /// The UUID of the file system that is back.
    pub uuid: Uuid,
    /// Bytes that were written.
    pub written: u64,
}

/// Brings back the file system that was converted. The device is open for writing, and nothing else
/// uses it.
///
/// # Errors
/// No saved image, or one that is not whole or not in place; several devices; the device's errors.
/// Nothing is written unless the image is whole.
pub fn rollback(device: &Arc<dyn Device>, progress: &mut dyn FnMut(ConvertProgress)) -> Result<RolledBack> {
    let name = device.name().to_owned();
    let refuse = |reason: String| ConvertError::Rollback { device: name.clone(), reason };
    let options = OpenOptions::new().ignore_signatures(true);
    let fs = FileSystem::from_devices(vec![Arc::clone(device)], &options)?;
    let raw = fs.info.volume().superblock().raw;
    if raw.num_devices != 1 {
        let reason = format!("the file system has {} devices; remove the others first", raw.num_devices);
        return Err(refuse(reason));
    }
    let Some((saved, image)) = find_image(&fs)? else {
        let [ext, xfs] = [crate::SAVED, crate::SAVED_XFS].map(|name| format!("{name}/{}", crate::IMAGE));
        return Err(refuse(format!("there is no {ext} or {xfs} in it")));
    };
    let path = format!("{saved}/{}", crate::IMAGE);
    let size = image.metadata().size();
    if size > device.size() {
        return Err(refuse(format!("the image has {size} bytes, the device {}", device.size())));
    }
    let (tree, number) = (image.tree(), image.number());
    let extents = ImageExtents::read(&fs, tree, number, size).map_err(|found| match found {
        Fault::Moved(reason) => refuse(reason),
        Fault::Other(error) => error,
    })?;
    let file = image.open()?;
    verify(&file, &extents, progress).map_err(refuse)?;
    let source: Arc<dyn Device> = Arc::new(ImageDevice { name: path, file, size });
    let damaged = |error: ConvertError| refuse(format!("the image is damaged: {error}"));
    let (profile, used) = match saved == crate::SAVED_XFS {
        true => XfsFs::open(Arc::clone(&source)).and_then(facts_of),
        false => ExtFs::open(Arc::clone(&source)).and_then(facts_of),
    }
    .map_err(damaged)?;
    if profile.bytes() != size {
        return Err(refuse("the image has another size than the file system in it".to_owned()));
    }
    let block_size = profile.block_size;
    for run in used.runs() {
        let range = run.start * block_size..run.end * block_size;
        if let Some(at) = extents.first_gap(&range) {
            return Err(refuse(format!("the image lacks byte {at}, which the file system in it uses")));
        }
    }
    progress(ConvertProgress { stage: ConvertStage::Switching, done: 0, total: 0 });
    let result = RolledBack {
        variant: profile.variant,
        saved,
        btrfs_label: fs.label(),
        btrfs_uuid: raw.fsid,
        uuid: profile.uuid,
        written: write_back(&**device, &*source, size, &used, block_size)?,
    };
    Ok(result)
}

/// Returns the facts of the source, and the blocks that it uses.
fn facts_of<S: Source>(fs: S) -> Result<(Profile, BlockSet)> {
    Ok((fs.profile().clone(), fs.used_blocks()?))
}

/// A reason why the image cannot be used.
enum Fault {
    Moved(String),
    Other(ConvertError),
}

impl<E: Into<ConvertError>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// The ranges of the image that have data, in order.
struct ImageExtents {
    ranges: Vec<Range<u64>>,
}

impl ImageExtents {
    /// Reads the extents of the image, and checks that each lies at its place.
    fn read(fs: &FileSystem, tree: TreeId, number: InodeNumber, size: u64) -> Result<Self, Fault> {
        let open = fs.info.trees.find(tree)?;
        let missing = || Fault::Moved("the subvolume of the image cannot be read".to_owned());
        let items = open.as_ref().ok_or_else(missing)?.tree.clone();
        let reserved = reserved_ranges(size);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut made: Option<Generation> = None;
        let from = Key::new(number.0, ItemType::EXTENT_DATA, 0);
        for item in items.range(from..=Key::new(number.0, ItemType::EXTENT_DATA, u64::MAX)) {
            let item = item?;
            let offset = item.key.offset;
            let extent = FileExtentItem::parse(item.data()).map_err(|reason| Error::Item {
                tree,
                key: item.key,
                reason,
            })?;
            let moved = |why: &str| Err(Fault::Moved(format!("the image was changed: byte {offset} {why}")));
            let part = match extent.content {
                FileExtentContent::Regular(part) if part.is_hole() => continue,
                FileExtentContent::Regular(part) if extent.compression == Compression::None => part,
                _ => return moved("is inline, preallocated or compressed"),
            };
            // All extents are of the conversion. A later one would be a change.
            if made.is_some_and(|made| made != extent.generation) {
                return moved("was written after the conversion, or before others");
            }
            made = Some(extent.generation);
            let end = offset.saturating_add(part.length);
            let is_reserved = |at: u64| reserved.iter().any(|range| range.contains(&at));
            if !is_reserved(offset) {
                let place = place_of(
                    fs,
                    LogicalAddress(part.disk_address.0.saturating_add(part.offset)),
                    part.length,
                );
                if place != Some(offset) {
                    return moved("lies elsewhere on the device, as after a balance");
                }
                if reserved.iter().any(|range| range.start < end && range.end > offset) {
                    return moved("lies where superblocks do");
                }
            }
            match ranges.last_mut() {
                Some(last) if last.end == offset => last.end = end,
                _ => ranges.push(offset..end),
            }
        }
        Ok(Self { ranges })
    }

    /// Returns the first byte of a range that has no data.
    fn first_gap(&self, range: &Range<u64>) -> Option<u64> {
        let at = self.ranges.partition_point(|known| known.end <= range.start);
        match self.ranges.get(at) {
            Some(known) if known.start <= range.start => (known.end < range.end).then_some(known.end),
            _ => Some(range.start),
        }
    }
}

/// Returns the place of a range on the only device, if all of it is in one piece there.
fn place_of(fs: &FileSystem, logical: LogicalAddress, length: u64) -> Option<u64> {
    let map = fs.info.volume().chunk_map();
    let chunk = map.find(logical)?;
    if chunk.end().0 < logical.0.checked_add(length)? {
        return None;
    }
    let [stripe] = chunk.stripes() else { return None };
    (stripe.devid == DeviceId(1)).then(|| stripe.offset.0 + (logical.0 - chunk.start().0))
}

/// Reads the whole image, so that its checksums are verified.
fn verify(file: &File, extents: &ImageExtents, progress: Progress<'_>) -> Result<(), String> {
    let total = extents.ranges.iter().map(|range| range.end - range.start).sum();
    let mut buffer = vec![0; STEP as usize];
    let mut done = 0;
    for range in &extents.ranges {
        let mut at = range.start;
        while at < range.end {
            let step = STEP.min(range.end - at);
            let bytes = &mut buffer[..step as usize];
            file.read_exact_at(bytes, at).map_err(|error| format!("the image cannot be read: {error}"))?;
            at += step;
            done += step;
            progress(ConvertProgress { stage: ConvertStage::Checking, done, total });
        }
    }
    Ok(())
}

/// Writes back what Btrfs had taken. Returns the bytes written.
fn write_back(
    device: &dyn Device,
    source: &dyn Device,
    size: u64,
    used: &BlockSet,
    block_size: u64,
) -> Result<u64> {
    let failed = |operation, offset| {
        move |source| ConvertError::Device { device: device.name().to_owned(), operation, offset, source }
    };
    let switch = superblock_offset(0).0;
    let switch = switch..switch + SUPERBLOCK_SIZE as u64;
    let mut written = 0;
    let mut copy = |range: Range<u64>| -> Result<()> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let place = PhysicalAddress(range.start);
        read(source, &mut bytes, range.start)?;
        device.write_at(&bytes, place).map_err(failed("write", range.start))?;
        written += bytes.len() as u64;
        Ok(())
    };
    for range in reserved_ranges(size) {
        if range.start == 0 {
            copy(range.start..switch.start.min(range.end))?;
            if switch.end < range.end {
                copy(switch.end..range.end)?;
            }
        } else {
            // A copy in free space stays: it helps if the device tears the last write.
            let copy_bytes = if is_free(used, block_size, range.start) { SUPERBLOCK_SIZE as u64 } else { 0 };
            copy((range.start + copy_bytes).min(range.end)..range.end)?;
        }
    }
    device.flush().map_err(failed("flush", 0))?;
    copy(switch.start..switch.end.min(size))?;
    device.flush().map_err(failed("flush", 0))?;
    Ok(written)
}

/// The image as a device, for reading.
#[derive(Debug)]
struct ImageDevice {
    name: String,
    file: File,
    size: u64,
}

impl Device for ImageDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        self.file.read_exact_at(buffer, offset.0).map_err(io::Error::from)
    }

    fn write_at(&self, _buffer: &[u8], _offset: PhysicalAddress) -> io::Result<()> {
        Err(papilio_device::read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: PhysicalAddress, _length: u64) -> io::Result<()> {
        Err(papilio_device::read_only())
    }
}
