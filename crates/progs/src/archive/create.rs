//! Writes an archive in order, also to a pipe.
//!
//! Owns [`create_archive`]. Frames are filled by several threads and written in the order of their
//! addresses.
//!
//! **Invariant:** the end mark is written last. An output that was cut has none, so that no reader
//! takes it for a whole archive.

use super::fill::{FilledFrame, FrameFiller};
use super::options::{ArchiveCreated, ArchiveOptions, ArchiveParent};
use super::plan::plan;
use papilio_device::Device;
use papilio_device::archive::{ArchiveMap, pack};
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::trees::Trees;
use papilio_engine::volume::Volume;
use papilio_format::disk_archive::{
    ARCHIVE_MAGIC, ARCHIVE_VERSION, ArchiveEnd, ArchiveHeader, ArchiveRange, END_MAGIC, FRAME_MAGIC,
    FrameHeader, FrameKind, HEADER_SIZE, TableEntry, ranges_to_bytes, short_id,
};
use papilio_format::items::chunk::ChunkItem;
use papilio_format::superblock::{Superblock, superblock_offset};
use papilio_format::{DeviceId, Generation, LogicalAddress, PhysicalAddress, Uuid, objectid};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// The most bytes of a frame's content.
const FRAME_SIZE: u32 = 1 << 20;
/// Frames that each thread fills before they are written.
const FRAMES_AT_ONCE: usize = 8;
/// Bytes before the first superblock, where boot loaders are.
const BOOT_AREA: usize = 64 << 10;

/// Writes an archive of the last commit. With a parent, only what the parent does not have. Calls
/// `progress` with the bytes done and all.
///
/// # Errors
/// A file system on seeds, or one whose device is being replaced; a parent of another file system,
/// or one that is newer; a tree that cannot be read; bytes that cannot be read, unless the options
/// skip them; `out` fails.
pub fn create_archive(
    trees: &Trees,
    parent: Option<ArchiveParent<'_>>,
    out: &mut dyn Write,
    options: &ArchiveOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ArchiveCreated> {
    let volume = trees.forest().volume();
    let mut superblock = volume.superblock().clone();
    if !options.log {
        (superblock.raw.log_root, superblock.raw.log_root_level) = (LogicalAddress(0), 0);
    }
    let map = map_of(volume, &superblock)?;
    let mut header = ArchiveHeader {
        magic: ARCHIVE_MAGIC,
        version: ARCHIVE_VERSION,
        reserved: 0,
        header_size: HEADER_SIZE as u32,
        id: Uuid::new_v4(),
        parent: Uuid::nil(),
        fsid: superblock.raw.fsid,
        generation: superblock.raw.generation,
        parent_generation: Generation(0),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        frame_size: FRAME_SIZE,
        map_frames: 0,
        devices: map.devices().len() as u32,
        chunks: map.chunks().len() as u32,
    };
    if let Some(parent) = parent {
        set_parent(&mut header, parent.chain.newest().header(), parent.chain.newest().name())?;
    }
    let log = superblock.log_root().map(|(address, _)| address);
    let frames = plan(trees, log, parent.map(|_| header.parent_generation))?;
    let map_bytes = map.to_bytes();
    let map_parts: Vec<_> = map_bytes.chunks(FRAME_SIZE as usize).collect();
    header.map_frames = map_parts.len() as u32;

    let mut writer = ArchiveWriter::new(out, &header, options.level);
    writer.put(&header.to_header(&superblock.to_bytes(superblock_offset(0))))?;
    for part in map_parts {
        writer.content(FrameKind::Map, 0, &[], part.to_vec())?;
    }
    boot_areas(volume, &map, &mut writer)?;
    let csum_tree = |trees: &Trees| trees.find(objectid::CSUM_TREE);
    let filler = FrameFiller {
        volume,
        checksums: csum_tree(trees)?,
        parent,
        parent_checksums: parent.map(|parent| csum_tree(parent.trees)).transpose()?.flatten(),
        level: options.level,
        skip_unreadable: options.skip_unreadable,
    };
    let pool = ThreadPoolBuilder::new().num_threads(options.threads).build();
    let pool = pool.map_err(|error| Error::Invalid(format!("no threads for the archive: {error}")))?;
    let bytes_of =
        |frame: &super::plan::PlannedFrame| frame.ranges.iter().map(|range| range.length).sum::<u64>();
    let (mut done, all) = (0, frames.iter().map(bytes_of).sum());
    let mut created = ArchiveCreated { id: header.id, ..ArchiveCreated::default() };
    for frames in frames.chunks(pool.current_num_threads() * FRAMES_AT_ONCE) {
        let filled = pool.install(|| {
            frames.par_iter().map(|frame| filler.fill(frame)).collect::<Result<Vec<FilledFrame>>>()
        })?;
        for (frame, filled) in frames.iter().zip(filled) {
            created.damaged_bytes += filled.damaged;
            created.unchanged_bytes += filled.unchanged;
            let missing = filled.unreadable.iter().map(|range| u64::from(range.length)).sum::<u64>();
            created.unreadable_bytes += missing;
            match frame.kind {
                FrameKind::Metadata => created.metadata_bytes += u64::from(filled.unpacked),
                _ => created.data_bytes += u64::from(filled.unpacked),
            }
            if !filled.unreadable.is_empty() {
                writer.content(FrameKind::Unreadable, 0, &filled.unreadable, Vec::new())?;
            }
            if !filled.ranges.is_empty() {
                writer.filled(frame.kind, filled)?;
            }
            done += bytes_of(frame);
        }
        progress(done, all);
    }
    created.bytes = writer.finish()?;
    Ok(created)
}

/// Names the parent in a header.
fn set_parent(header: &mut ArchiveHeader, parent: &ArchiveHeader, name: &str) -> Result<()> {
    if parent.fsid != header.fsid {
        let text = format!("{name} is an archive of the file system {}, not of {}", parent.fsid, header.fsid);
        return Err(Error::Invalid(text));
    }
    if parent.generation > header.generation {
        let (newer, older) = (parent.generation, header.generation);
        let text = format!(
            "{name} is an archive of commit {newer}, but the file system is at {older}: it was set back since"
        );
        return Err(Error::Invalid(text));
    }
    header.parent = parent.id;
    header.parent_generation = parent.generation;
    Ok(())
}

/// Returns devices and chunks, and refuses file systems that an archive cannot hold.
fn map_of(volume: &Volume, superblock: &Superblock) -> Result<ArchiveMap> {
    let fsid = superblock.raw.fsid;
    let mut devices = Vec::new();
    for slot in volume.devices().iter().filter(|slot| slot.in_chunk_tree || slot.devid() != DeviceId(0)) {
        if slot.item.fsid != fsid {
            let text = format!("device {} belongs to a seed: archive the seed by itself", slot.devid());
            return Err(Error::Invalid(text));
        }
        devices.push(slot.item);
    }
    let mut chunks = Vec::new();
    for chunk in volume.chunk_map().iter() {
        let item = ChunkItem {
            length: chunk.length(),
            owner: objectid::EXTENT_TREE.0,
            stripe_length: papilio_format::items::chunk::STRIPE_LENGTH,
            flags: chunk.flags(),
            io_align: volume.geometry().sector_size,
            io_width: volume.geometry().sector_size,
            sector_size: volume.geometry().sector_size,
            sub_stripes: u16::from(chunk.profile() == papilio_format::items::chunk::RaidProfile::Raid10) + 1,
            stripes: chunk.stripes().to_vec(),
        };
        chunks.push((chunk.start(), item));
    }
    Ok(ArchiveMap::new(superblock.clone(), devices, chunks))
}

/// Writes the boot areas of the devices that have one.
fn boot_areas(volume: &Volume, map: &ArchiveMap, writer: &mut ArchiveWriter<'_>) -> Result<()> {
    for (number, item) in map.devices().iter().enumerate() {
        let devices = volume.devices();
        let slot = devices.iter().find(|slot| slot.devid() == item.devid);
        let Some(device) = slot.and_then(|slot| slot.device.clone()) else { continue };
        let stripes = map.chunks().iter().flat_map(|(_, chunk)| &chunk.stripes);
        let mut own = stripes.filter(|stripe| stripe.devid == item.devid);
        // Old file systems have chunks there.
        if own.any(|stripe| stripe.offset.0 < BOOT_AREA as u64) {
            continue;
        }
        let mut bytes = vec![0; BOOT_AREA];
        read_boot(&*device, &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            let range = ArchiveRange { start: LogicalAddress(0), length: BOOT_AREA as u32 };
            writer.content(FrameKind::Boot, number as u32, &[range], bytes)?;
        }
    }
    Ok(())
}

fn read_boot(device: &dyn Device, bytes: &mut [u8]) -> Result<()> {
    let length = bytes.len();
    device.read_at(bytes, PhysicalAddress(0)).map_err(|source| Error::Device {
        device: device.name().to_owned(),
        operation: "read",
        offset: PhysicalAddress(0),
        length,
        source,
    })
}

/// Writes frames, and keeps the table of contents.
struct ArchiveWriter<'o> {
    out: &'o mut dyn Write,
    id: Uuid,
    level: i32,
    offset: u64,
    /// The number of the next frame.
    number: u64,
    /// The part of the table that is not full.
    table: Vec<u8>,
    /// The full parts: their bytes for the archive, `compression`, and length.
    tables: Vec<(Vec<u8>, u8, u32)>,
}

impl<'o> ArchiveWriter<'o> {
    fn new(out: &'o mut dyn Write, header: &ArchiveHeader, level: i32) -> Self {
        Self { out, id: header.id, level, offset: 0, number: 0, table: Vec::new(), tables: Vec::new() }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.offset += bytes.len() as u64;
        self.out.write_all(bytes).map_err(write_error)
    }

    /// Compresses content and writes it.
    fn content(
        &mut self,
        kind: FrameKind,
        device: u32,
        ranges: &[ArchiveRange],
        content: Vec<u8>,
    ) -> Result<()> {
        let unpacked = content.len() as u32;
        let (packed, compression) = pack(content, self.level).map_err(write_error)?;
        self.frame(kind, device, ranges, &packed, compression, unpacked)
    }

    fn filled(&mut self, kind: FrameKind, filled: FilledFrame) -> Result<()> {
        self.frame(kind, 0, &filled.ranges, &filled.packed, filled.compression, filled.unpacked)
    }

    fn frame(
        &mut self,
        kind: FrameKind,
        device: u32,
        ranges: &[ArchiveRange],
        packed: &[u8],
        compression: u8,
        unpacked: u32,
    ) -> Result<()> {
        let range_bytes = ranges_to_bytes(ranges);
        let header = FrameHeader {
            magic: FRAME_MAGIC,
            kind: kind as u8,
            compression,
            reserved: 0,
            number: self.number,
            archive: short_id(self.id),
            packed: packed.len() as u32,
            unpacked,
            ranges: ranges.len() as u32,
            device,
            checksum: 0,
        }
        .sealed(&range_bytes, packed);
        if kind != FrameKind::Table {
            let entry = TableEntry {
                offset: self.offset,
                checksum: header.checksum,
                size: (FrameHeader::SIZE + header.rest()) as u32,
                unpacked,
                ranges: header.ranges,
                kind: header.kind,
                reserved: [0; 3],
            };
            self.list(&entry, &range_bytes)?;
        }
        self.number += 1;
        self.put(&header.to_bytes())?;
        self.put(&range_bytes)?;
        self.put(packed)
    }

    fn list(&mut self, entry: &TableEntry, ranges: &[u8]) -> Result<()> {
        if self.table.len() + TableEntry::SIZE + ranges.len() > FRAME_SIZE as usize {
            self.close_table()?;
        }
        self.table.extend_from_slice(&entry.to_bytes());
        self.table.extend_from_slice(ranges);
        Ok(())
    }

    fn close_table(&mut self) -> Result<()> {
        let table = std::mem::take(&mut self.table);
        let length = table.len() as u32;
        let (packed, compression) = pack(table, self.level).map_err(write_error)?;
        self.tables.push((packed, compression, length));
        Ok(())
    }

    /// Writes the table and the end mark. Returns the bytes of the archive.
    fn finish(mut self) -> Result<u64> {
        self.close_table()?;
        let (table, frames) = (self.offset, self.number);
        let tables = std::mem::take(&mut self.tables);
        let table_frames = tables.len() as u64;
        for (packed, compression, length) in tables {
            self.frame(FrameKind::Table, 0, &[], &packed, compression, length)?;
        }
        let size = self.offset + ArchiveEnd::SIZE as u64;
        let end =
            ArchiveEnd { magic: END_MAGIC, id: self.id, table, frames, table_frames, size, checksum: 0 };
        self.put(&end.sealed().to_bytes())?;
        self.out.flush().map_err(write_error)?;
        Ok(self.offset)
    }
}

fn write_error(source: std::io::Error) -> Error {
    Error::Host { path: PathBuf::from("the archive"), source }
}
