//! Writes the file system of an archive to devices.
//!
//! Owns [`restore_archive`] and [`write_superblocks`].
//!
//! **Invariants**
//! - Old superblocks on the devices are destroyed first, and the caller writes new ones last, after
//!   the end mark of every archive was read. A restore that was cut short leaves nothing that looks
//!   like a file system.
//! - Frames of a chain are written from the oldest archive to the newest.

use super::archive_error;
use crate::image::restore::volume_over;
use papilio_device::Device;
use papilio_device::archive::{ArchiveFrame, ArchiveMap, ArchiveReader, check_parent};
use papilio_engine::errors::{Error, Result};
use papilio_engine::volume::Volume;
use papilio_format::disk_archive::FrameKind;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{LogicalAddress, PhysicalAddress};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

/// Frames that are read before they are decompressed and written.
const FRAMES_AT_ONCE: usize = 16;

/// An archive that is read in order.
pub type ArchiveSource = ArchiveReader<Box<dyn Read + Send>>;

/// A file system that was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveRestored {
    /// Bytes of tree blocks and data that were written, each copy and parity not counted.
    pub bytes: u64,
    /// Bytes that the source of the archive could not read. They are arbitrary on the devices.
    pub unreadable_bytes: u64,
}

/// Returns the sizes in bytes of the devices that an archive needs.
pub fn restore_sizes(source: &ArchiveSource) -> Vec<u64> {
    source.map().devices().iter().map(|item| item.total_bytes).collect()
}

/// Writes everything but the superblocks to the devices, which are as large as [`restore_sizes`]
/// says or larger. `sources` are a chain, the full archive first. Calls `progress` with the bytes
/// that were read of the archives.
///
/// # Errors
/// Archives that are damaged or no chain; too few or too small devices; a device fails.
pub fn restore_archive(
    sources: &mut [ArchiveSource],
    devices: &[Arc<dyn Device>],
    progress: &mut dyn FnMut(u64),
) -> Result<ArchiveRestored> {
    check_chain(sources)?;
    let Some(newest) = sources.last() else {
        return Err(Error::Invalid("no archive was given to restore".to_owned()));
    };
    let map = newest.map().clone();
    let items = map.devices();
    if items.len() != devices.len() {
        let (needed, given) = (items.len(), devices.len());
        let text = format!("{}: its file system has {needed} devices, {given} were given", newest.name());
        return Err(Error::Invalid(text));
    }
    for (device, item) in devices.iter().zip(items) {
        if device.size() < item.total_bytes {
            let (need, have) = (item.total_bytes, device.size());
            return Err(Error::Truncated { device: device.name().to_owned(), need, have });
        }
    }
    for device in devices {
        destroy_superblocks(&**device)?;
    }
    let volume = volume_over(map.superblock(), items, map.chunks(), devices)?;
    let mut restore = Restore { volume: &volume, map: &map, unreadable: BTreeMap::new(), bytes: 0, read: 0 };
    let last = sources.len() - 1;
    for (number, source) in sources.iter_mut().enumerate() {
        let boots = if number == last { devices } else { &[] };
        restore.source(source, boots, progress)?;
    }
    // A volume forgives a device that fails, as a file system in use can do without it.
    if let Some(lost) = volume.devices().iter().find(|slot| slot.stale) {
        let name = lost.name().unwrap_or_default();
        return Err(Error::Invalid(format!("{name}: a write failed, and the restore is incomplete")));
    }
    devices.iter().try_for_each(|device| flush(&**device))?;
    let unreadable_bytes = restore.unreadable.iter().map(|(start, end)| end - start).sum();
    Ok(ArchiveRestored { bytes: restore.bytes, unreadable_bytes })
}

fn check_chain(sources: &[ArchiveSource]) -> Result<()> {
    let Some(oldest) = sources.first() else { return Ok(()) };
    if oldest.header().is_incremental() {
        let (name, parent) = (oldest.name(), oldest.header().parent);
        let text = format!("{name}: it is based on the archive {parent}, which is needed, too");
        return Err(Error::Invalid(text));
    }
    for pair in sources.windows(2) {
        check_parent(pair[1].name(), pair[1].header(), pair[0].name(), pair[0].header())
            .map_err(archive_error)?;
    }
    Ok(())
}

struct Restore<'a> {
    volume: &'a Volume,
    map: &'a ArchiveMap,
    /// Ranges that no archive so far could read: their starts and ends.
    unreadable: BTreeMap<u64, u64>,
    bytes: u64,
    read: u64,
}

impl Restore<'_> {
    /// Writes the frames of an archive. `boots` are the devices whose boot areas are written.
    fn source(
        &mut self,
        source: &mut ArchiveSource,
        boots: &[Arc<dyn Device>],
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let name = source.name().to_owned();
        let before = self.read;
        loop {
            let mut frames = Vec::with_capacity(FRAMES_AT_ONCE);
            while frames.len() < FRAMES_AT_ONCE
                && let Some(frame) = source.next_frame().map_err(archive_error)?
            {
                frames.push(frame);
            }
            if frames.is_empty() {
                return Ok(());
            }
            let contents: std::result::Result<Vec<_>, _> =
                frames.par_iter().map(|frame| frame.content(&name)).collect();
            for (frame, content) in frames.iter().zip(contents.map_err(archive_error)?) {
                match frame.kind() {
                    FrameKind::Metadata | FrameKind::Data => self.ranges(frame, &content)?,
                    FrameKind::Unreadable => self.note_unreadable(frame),
                    FrameKind::Boot => {
                        let Some(device) = boots.get(frame.device()) else { continue };
                        write(&**device, &content, PhysicalAddress(0))?;
                    }
                    FrameKind::Map | FrameKind::Table => {}
                }
            }
            self.read = before + source.position();
            progress(self.read);
        }
    }

    fn ranges(&mut self, frame: &ArchiveFrame, content: &[u8]) -> Result<()> {
        let mut rest = content;
        for range in frame.ranges() {
            let (mut bytes, after) = rest.split_at(range.length as usize);
            rest = after;
            let mut at = range.start.0;
            if !self.unreadable.is_empty() {
                forget(&mut self.unreadable, at, at + bytes.len() as u64);
            }
            // Chunks of an older archive may be gone in the newest.
            while !bytes.is_empty() {
                let length = match self.map.chunk_at(at) {
                    Some((start, chunk)) => {
                        let length = (start.0 + chunk.length - at).min(bytes.len() as u64);
                        self.volume.write(LogicalAddress(at), &bytes[..length as usize])?;
                        self.bytes += length;
                        length
                    }
                    None => self.until_chunk(at).min(bytes.len() as u64),
                };
                at += length;
                bytes = &bytes[length as usize..];
            }
        }
        Ok(())
    }

    /// Returns the bytes from an address outside chunks to the next chunk.
    fn until_chunk(&self, at: u64) -> u64 {
        let chunks = self.map.chunks();
        let next = chunks.partition_point(|(start, _)| start.0 <= at);
        chunks.get(next).map_or(u64::MAX, |(start, _)| start.0 - at)
    }

    fn note_unreadable(&mut self, frame: &ArchiveFrame) {
        for range in frame.ranges() {
            let end = range.start.0 + u64::from(range.length);
            forget(&mut self.unreadable, range.start.0, end);
            self.unreadable.insert(range.start.0, end);
        }
    }
}

/// Removes a range from disjoint ranges.
fn forget(ranges: &mut BTreeMap<u64, u64>, start: u64, end: u64) {
    let hit: Vec<_> =
        ranges.range(..end).rev().map(|(from, to)| (*from, *to)).take_while(|(_, to)| *to > start).collect();
    for (from, to) in hit {
        ranges.remove(&from);
        if from < start {
            ranges.insert(from, start);
        }
        if to > end {
            ranges.insert(end, to);
        }
    }
}

/// Destroys all superblocks of a device.
pub(super) fn destroy_superblocks(device: &dyn Device) -> Result<()> {
    for place in (0..SUPERBLOCK_MIRRORS).map(superblock_offset) {
        if place.0 + SUPERBLOCK_SIZE as u64 <= device.size() {
            write(device, &[0; SUPERBLOCK_SIZE], place)?;
        }
    }
    flush(device)
}

/// Writes the superblocks of a file system to its devices, which makes the restore visible.
///
/// # Errors
/// A device fails.
pub fn write_superblocks(map: &ArchiveMap, devices: &[Arc<dyn Device>]) -> Result<()> {
    for (number, device) in devices.iter().enumerate() {
        let superblock = map.superblock_of(number);
        let end = superblock.raw.dev_item.total_bytes.min(device.size());
        // The first copy is the one that a kernel looks for: it comes last.
        for place in (0..SUPERBLOCK_MIRRORS).rev().map(superblock_offset) {
            if place.0 + (SUPERBLOCK_SIZE as u64) < end {
                write(&**device, &superblock.to_bytes(place), place)?;
            }
        }
        flush(&**device)?;
    }
    Ok(())
}

/// Makes what was written durable.
pub(super) fn flush(device: &dyn Device) -> Result<()> {
    device.flush().map_err(|source| write_error(device, PhysicalAddress(0), 0, source))
}

/// Writes bytes to a device; an error names both.
pub(super) fn write(device: &dyn Device, bytes: &[u8], place: PhysicalAddress) -> Result<()> {
    device.write_at(bytes, place).map_err(|source| write_error(device, place, bytes.len(), source))
}

fn write_error(device: &dyn Device, offset: PhysicalAddress, length: usize, source: std::io::Error) -> Error {
    Error::Device { device: device.name().to_owned(), operation: "write", offset, length, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_forgotten_in_part() {
        let mut ranges = BTreeMap::from([(0, 10), (20, 30), (40, 50)]);
        forget(&mut ranges, 5, 45);
        assert_eq!(ranges, BTreeMap::from([(0, 5), (45, 50)]));
        forget(&mut ranges, 1, 2);
        assert_eq!(ranges, BTreeMap::from([(0, 1), (2, 5), (45, 50)]));
        forget(&mut ranges, 60, 70);
        assert_eq!(ranges.len(), 3);
    }
}
