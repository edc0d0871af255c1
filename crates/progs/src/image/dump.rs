//! Writes a dump of a file system.
//!
//! Owns [`ImageDumpOptions`], [`ImageDumped`] and [`dump`]. A cluster's items are read, cleaned and
//! compressed by several threads, and written in order.
//!
//! Kernel counterpart: none; `btrfs-image` of btrfs-progs.

use super::clean::clean;
use super::collect::{CollectReader, CollectedRange, collect};
pub use super::names::NameReplacement;
use super::names::NameReplacements;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::trees::Trees;
use papilio_engine::volume::{Volume, superblock_of};
use papilio_format::LogicalAddress;
use papilio_format::metadump::{
    CLUSTER_ALIGNMENT, CLUSTER_ITEMS, Cluster, ClusterItem, DumpVersion, SUPERBLOCK_ADDRESS,
};
use papilio_format::superblock::superblock_offset;
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use std::io::Write;
use std::path::PathBuf;

/// How a dump is made.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ImageDumpOptions {
    pub(crate) names: NameReplacement,
    pub(crate) level: u8,
    pub(crate) threads: usize,
    pub(crate) walk: bool,
    pub(crate) data: bool,
}

impl ImageDumpOptions {
    /// Returns the default: metadata found by the extent tree, without compression, names kept.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how names are replaced. If they are, values of xattrs become zeros.
    pub fn names(mut self, names: NameReplacement) -> Self {
        self.names = names;
        self
    }

    /// Sets the level of compression by zlib: 1 to 9, or 0 for none.
    pub fn level(mut self, level: u8) -> Self {
        self.level = level.min(9);
        self
    }

    /// Sets the number of threads; 0 for one of each core.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets whether blocks are found by walking all trees, not by the extent tree.
    pub fn walk(mut self, walk: bool) -> Self {
        self.walk = walk;
        self
    }

    /// Sets whether data is dumped, too.
    pub fn data(mut self, data: bool) -> Self {
        self.data = data;
        self
    }
}

/// A dump that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageDumped {
    /// Tree blocks in it.
    pub blocks: u64,
    /// Bytes of data in it, of v1 free-space caches among them.
    pub data_bytes: u64,
    /// Bytes of the dump.
    pub bytes: u64,
    /// Tree blocks of which no copy is good. They are in the dump as they are, or left out where
    /// names are replaced.
    pub damaged: u64,
    /// Bytes of tree blocks and data of which no copy can be read. They are zeros in the dump.
    pub unread_bytes: u64,
    /// NameReplacements for which no other of the same hash exists.
    pub unmatched_names: u64,
}

/// The bytes of a part.
#[derive(Default)]
struct Filled {
    bytes: Vec<u8>,
    damaged: u64,
    /// Bytes that could not be read.
    unread: u64,
}

/// Writes a dump of the last commit. Calls `progress` with the parts done and the number of all.
///
/// # Errors
/// A tree that cannot be read; an address outside all chunks; `out` fails.
pub fn dump(
    trees: &Trees,
    out: &mut dyn Write,
    options: &ImageDumpOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImageDumped> {
    if options.data && (options.walk || options.names != NameReplacement::None) {
        let text = "a dump with data has all names and is made by the extent tree";
        return Err(Error::Invalid(text.to_owned()));
    }
    let version = if options.data { DumpVersion::Data } else { DumpVersion::Metadata };
    let mut parts = collect(trees, options.walk, options.data, version.item_limit())?;
    let superblock = CollectedRange { start: SUPERBLOCK_ADDRESS, length: 0, is_data: false };
    parts.insert(0, superblock);
    let pool = ThreadPoolBuilder::new().num_threads(options.threads).build();
    let pool = pool.map_err(|error| Error::Invalid(format!("no threads for the dump: {error}")))?;
    let filler = Filler {
        volume: trees.forest().volume(),
        names: NameReplacements::new(options.names),
        data: options.data,
        level: options.level,
    };
    let mut dumped = ImageDumped::default();
    let node_size = u64::from(filler.volume.geometry().node_size);
    let (mut done, all) = (0, parts.len() as u64);
    for parts in parts.chunks(CLUSTER_ITEMS) {
        let filled =
            pool.install(|| parts.par_iter().map(|part| filler.fill(part)).collect::<Result<Vec<_>>>());
        let filled = filled?;
        for (part, filled) in parts.iter().zip(&filled) {
            dumped.damaged += filled.damaged;
            dumped.unread_bytes += filled.unread;
            match part.is_data {
                true => dumped.data_bytes += part.length as u64,
                false => dumped.blocks += part.length as u64 / node_size,
            }
        }
        dumped.bytes += write_cluster(out, version, options.level > 0, dumped.bytes, parts, &filled)?;
        done += parts.len() as u64;
        progress(done, all);
    }
    out.flush().map_err(write_error)?;
    dumped.unmatched_names = filler.names.unmatched();
    Ok(dumped)
}

fn write_cluster(
    out: &mut dyn Write,
    version: DumpVersion,
    compressed: bool,
    start: u64,
    parts: &[CollectedRange],
    filled: &[Filled],
) -> Result<u64> {
    let present = || parts.iter().zip(filled).filter(|(_, filled)| !filled.bytes.is_empty());
    let items = present()
        .map(|(part, filled)| ClusterItem { address: part.start, size: filled.bytes.len() as u32 })
        .collect();
    let cluster = Cluster { version, compressed, items };
    out.write_all(&cluster.to_bytes(start)).map_err(write_error)?;
    for (_, filled) in present() {
        out.write_all(&filled.bytes).map_err(write_error)?;
    }
    let length = cluster.item_bytes();
    let whole = length.next_multiple_of(CLUSTER_ALIGNMENT as u64);
    out.write_all(&[0; CLUSTER_ALIGNMENT][..(whole - length) as usize]).map_err(write_error)?;
    Ok(CLUSTER_ALIGNMENT as u64 + whole)
}

fn write_error(source: std::io::Error) -> Error {
    Error::Host { path: PathBuf::from("the dump"), source }
}

/// Makes the bytes of items.
struct Filler<'v> {
    volume: &'v Volume,
    names: NameReplacements,
    data: bool,
    level: u8,
}

impl Filler<'_> {
    fn fill(&self, part: &CollectedRange) -> Result<Filled> {
        let mut filled = if part.length == 0 {
            Filled { bytes: self.superblock(), ..Filled::default() }
        } else if part.is_data {
            self.data(part)?
        } else {
            self.blocks(part)?
        };
        if self.level > 0 && !filled.bytes.is_empty() {
            let buffer = Vec::with_capacity(filled.bytes.len() / 2);
            let mut encoder = ZlibEncoder::new(buffer, Compression::new(self.level.into()));
            let encoded = encoder.write_all(&filled.bytes).and_then(|()| encoder.finish());
            filled.bytes = encoded.map_err(write_error)?;
        }
        Ok(filled)
    }

    /// Returns the superblock of the first device.
    fn superblock(&self) -> Vec<u8> {
        let devices = self.volume.devices();
        let first = devices.iter().find_map(|slot| slot.device.as_ref());
        let own = first.and_then(|device| superblock_of(&**device, 0).ok());
        let superblock = own.as_ref().unwrap_or(self.volume.superblock());
        superblock.to_bytes(superblock_offset(0)).to_vec()
    }

    /// Reads data; where that fails, sector by sector, with zeros for those that cannot be read.
    fn data(&self, part: &CollectedRange) -> Result<Filled> {
        let mut filled = Filled { bytes: vec![0; part.length], ..Filled::default() };
        if self.volume.read(part.start, &mut filled.bytes).is_ok() {
            return Ok(filled);
        }
        let sector = self.volume.geometry().sector_size as usize;
        let addresses = (part.start.0..).step_by(sector).map(LogicalAddress);
        for (bytes, at) in filled.bytes.chunks_mut(sector).zip(addresses) {
            match self.volume.read(at, bytes) {
                Err(Error::Device { .. } | Error::DeviceMissing { .. }) => {
                    bytes.fill(0);
                    filled.unread += bytes.len() as u64;
                }
                read => read?,
            }
        }
        Ok(filled)
    }

    fn blocks(&self, part: &CollectedRange) -> Result<Filled> {
        let geometry = self.volume.geometry();
        let reader = CollectReader { volume: self.volume };
        let mut filled = Filled { bytes: Vec::with_capacity(part.length), ..Filled::default() };
        for offset in (0..part.length as u64).step_by(geometry.node_size as usize) {
            let (mut block, good) = match reader.read(LogicalAddress(part.start.0 + offset)) {
                Err(Error::Device { .. } | Error::DeviceMissing { .. }) => {
                    filled.unread += u64::from(geometry.node_size);
                    filled.bytes.resize(filled.bytes.len() + geometry.node_size as usize, 0);
                    continue;
                }
                read => read?,
            };
            if good {
                clean(&mut block, self.data, &self.names, geometry.checksum_type);
            } else {
                filled.damaged += 1;
                // NameReplacements cannot be found in it, and must not get out.
                if self.names.replaces() {
                    block.fill(0);
                }
            }
            filled.bytes.append(&mut block);
        }
        Ok(filled)
    }
}
