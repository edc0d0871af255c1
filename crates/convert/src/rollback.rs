//! The way back: the source as it was before the conversion.
//!
//! Owns [`rollback`].
//!
//! **Order**
//! 1. The image is checked: every extent lies where the source had it and matches its checksums,
//!    and every block that the source uses has one.
//! 2. The content that had moved is written back, except for the block of the first superblock.
//!    Btrfs uses none of these ranges. The record of the switch is written, and all is flushed.
//! 3. The superblock gets pointers to the record.
//! 4. The block of the source is written over the superblock: that is the switch.
//! 5. Superblock copies in free space of the source are wiped, and the record is erased.
//!
//! A power cut before the switch leaves Btrfs, one after it the source. If the device writes a part
//! of the 4 KiB of step 3 or 4 only, the next run finds the record: [`crate::interrupted`].

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::ext::reader::ExtFs;
use crate::image::find_image;
use crate::image_extents::{Fault, ImageExtents};
use crate::interrupted::refuse_torn;
use crate::io::{flush, write, write_durably};
use crate::layout::{is_free, reserved_ranges};
use crate::options::{ConvertProgress, ConvertStage, Progress};
use crate::record::{HEAD_BYTES, SwitchRecord, Way, erase_records, point_to};
use crate::record_place::record_place;
use crate::source::{Profile, Source, read};
use crate::xfs::reader::XfsFs;
use papilio_device::{Access, Device, check_read};
use papilio_engine::options::OpenOptions;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{PhysicalAddress, Uuid};
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
    refuse_torn(device)?;
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
    let (place, superblocks) = place_record(&**device, &fs, &used, block_size)?;
    progress(ConvertProgress { stage: ConvertStage::Switching, done: 0, total: 0 });
    let uuid = profile.uuid;
    let (device, source) = (&**device, &*source);
    let way = WayBack { device, source, size, used: &used, block_size, uuid, place, superblocks };
    let result = RolledBack {
        variant: profile.variant,
        saved,
        btrfs_label: fs.label(),
        btrfs_uuid: raw.fsid,
        uuid: profile.uuid,
        written: way.write()?,
    };
    Ok(result)
}

/// Finds a place for the record of the switch. Returns it with the superblock on the device, as it
/// is and with pointers to the record.
fn place_record(
    device: &dyn Device,
    fs: &FileSystem,
    used: &BlockSet,
    block_size: u64,
) -> Result<(u64, [Vec<u8>; 2])> {
    let refuse =
        |reason: &str| ConvertError::Rollback { device: device.name().to_owned(), reason: reason.to_owned() };
    let mut plain = vec![0; SUPERBLOCK_SIZE];
    read(device, &mut plain, superblock_offset(0).0)?;
    let is_free =
        |range: &Range<u64>| !used.intersects(&(range.start / block_size..range.end.div_ceil(block_size)));
    let place = record_place(fs, is_free)?.ok_or_else(|| {
        refuse("the system chunks have no free block; run `btrfs balance start -s --force` on it first")
    })?;
    let pointing = point_to(&plain, place).ok_or_else(|| {
        refuse("it has too many system chunks; run `btrfs balance start -s --force` on it first")
    })?;
    Ok((place, [plain, pointing]))
}

/// Returns the facts of the source, and the blocks that it uses.
fn facts_of<S: Source>(fs: S) -> Result<(Profile, BlockSet)> {
    Ok((fs.profile().clone(), fs.used_blocks()?))
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

/// A way back that is proven to be possible.
struct WayBack<'a> {
    device: &'a dyn Device,
    /// The image.
    source: &'a dyn Device,
    size: u64,
    used: &'a BlockSet,
    block_size: u64,
    uuid: Uuid,
    /// The place of the record.
    place: u64,
    /// The superblock as it is, and with pointers to the record.
    superblocks: [Vec<u8>; 2],
}

impl WayBack<'_> {
    /// Writes back what Btrfs had taken. Returns the bytes written.
    fn write(self) -> Result<u64> {
        let switch = superblock_offset(0).0;
        let switch = switch..switch + SUPERBLOCK_SIZE as u64;
        let mut written = 0;
        let mut freed = Vec::new();
        for range in reserved_ranges(self.size) {
            if range.start == 0 {
                written += self.copy(range.start..switch.start)? + self.copy(switch.end..range.end)?;
                continue;
            }
            // A copy of the superblock where the source has nothing is wiped after the switch.
            let is_free = is_free(self.used, self.block_size, range.start);
            let copy_bytes = if is_free { SUPERBLOCK_SIZE as u64 } else { 0 };
            freed.extend(is_free.then_some(range.start));
            written += self.copy((range.start + copy_bytes).min(range.end)..range.end)?;
        }
        let mut head = vec![0; HEAD_BYTES as usize];
        read(self.source, &mut head, 0)?;
        let mut block = vec![0; SUPERBLOCK_SIZE];
        read(self.source, &mut block, switch.start)?;
        let [plain, pointing] = self.superblocks;
        let contents = vec![plain, pointing.clone(), block.clone()];
        SwitchRecord::new(Way::Rollback, self.uuid, &head, contents).write(self.device, self.place)?;
        flush(self.device)?;
        write_durably(self.device, &pointing, switch.start)?;
        write_durably(self.device, &block, switch.start)?;
        for place in freed {
            write(self.device, &vec![0; SUPERBLOCK_SIZE.min((self.size - place) as usize)], place)?;
        }
        erase_records(self.device, &pointing)?;
        flush(self.device)?;
        Ok(written + block.len() as u64)
    }

    fn copy(&self, range: Range<u64>) -> Result<u64> {
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        if !bytes.is_empty() {
            read(self.source, &mut bytes, range.start)?;
            write(self.device, &bytes, range.start)?;
        }
        Ok(bytes.len() as u64)
    }
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
