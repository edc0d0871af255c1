//! Decoding the compressed extents of a unit.
//!
//! Owns [`Decoding`]. An extent item does not say whether its data is compressed: the first file
//! extent that refers to it does. Checksums do not tell whether data decodes, as those of a stream
//! that its writer damaged are right.
//!
//! **Invariants**
//! - An extent is decoded once, by the unit that it begins in.
//! - It is decoded from bytes that match their checksums, after mending. One without such bytes has
//!   errors of its own.
//! - An extent whose reference is gone is left out: it is free since, or was written anew. So is
//!   one that only deleted subvolumes have.
//!
//! **Locks**: those of rows, for reads of trees and of extents that a unit does not have as a
//! whole. A reader of a row with parity waits for the unit that has it. So trees are read before
//! the rows of a unit are loaded, or after they are dropped, as the rest of its extents.
//!
//! Kernel counterpart: `btrfs_decompress` (`fs/btrfs/compression.c`).

use super::extents::{BegunExtent, ExtentUser, UnitExtents};
use super::units::Unit;
use crate::btree::TreeBlock;
use crate::data::checksum::{DataChecksums, SectorFault};
use crate::data::{DecompressError, MAX_COMPRESSED, verify_stream};
use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::items::item_error;
use crate::items::trees::OpenTree;
use crate::jobs::inode_paths::owner_paths;
use crate::volume::LoadedRows;
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem, MAX_UNCOMPRESSED};
use papilio_format::{InodeNumber, ItemType, Key, LogicalAddress, NodeExpectation, TreeId, objectid};
use std::sync::Arc;

/// How an extent is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Encoding {
    compression: Compression,
    ram_bytes: u64,
}

/// Decodes extents. One for each worker: it keeps the tree and the leaf of the last extent, which
/// the next one mostly shares.
pub(super) struct Decoding<'a> {
    info: &'a FsInfo,
    tree: Option<Arc<OpenTree>>,
    leaf: Option<Arc<TreeBlock>>,
    bytes: Vec<u8>,
    /// The compressed extents of the unit that are not decoded yet.
    left: Vec<(BegunExtent, Encoding)>,
    /// The addresses of those that do not decode.
    wrong: Vec<(u64, DecompressError)>,
}

impl<'a> Decoding<'a> {
    pub(super) fn new(info: &'a FsInfo) -> Self {
        Self { info, tree: None, leaf: None, bytes: Vec::new(), left: Vec::new(), wrong: Vec::new() }
    }

    /// Finds the compressed extents that begin in a unit.
    pub(super) fn find(&mut self, extents: &UnitExtents) {
        self.left.clear();
        self.wrong.clear();
        // Trees change while the scrub runs.
        self.tree = None;
        for extent in &extents.begun {
            // A tree that cannot be read has errors of its own.
            if let Ok(Some(encoding)) = self.encoding(extent) {
                self.left.push((*extent, encoding));
            }
        }
    }

    /// Decodes those that are in the unit's rows as a whole, which were verified and mended.
    pub(super) fn decode(&mut self, extents: &UnitExtents, rows: &LoadedRows<'_>) {
        let mut bytes = std::mem::take(&mut self.bytes);
        for (extent, encoding) in std::mem::take(&mut self.left) {
            if extent.length > MAX_COMPRESSED {
                let limit = MAX_COMPRESSED;
                let error = DecompressError::TooLong { what: "on disk", length: extent.length, limit };
                self.wrong.push((extent.start, error));
            } else if fill(rows, extents, &extent, &mut bytes) {
                self.verify(&extent, encoding, &bytes, extents);
            } else {
                self.left.push((extent, encoding));
            }
        }
        self.bytes = bytes;
    }

    /// Reads and decodes the others. Calls `report` with a line about each extent that does not
    /// decode, unless no file has it. The caller has dropped the rows; the extents are pinned.
    pub(super) fn finish(&mut self, unit: &Unit, extents: &UnitExtents, mut report: impl FnMut(String)) {
        let mut bytes = std::mem::take(&mut self.bytes);
        for (extent, encoding) in std::mem::take(&mut self.left) {
            if self.read(unit, &extent, &mut bytes) {
                self.verify(&extent, encoding, &bytes, extents);
            }
        }
        self.bytes = bytes;
        for (start, error) in self.wrong.drain(..) {
            if let Some(files) = owner_paths(&self.info.trees, LogicalAddress(start)) {
                report(format!("logical address {start}: {error}; files: {files}"));
            }
        }
    }

    /// Decodes the bytes of an extent.
    fn verify(&mut self, extent: &BegunExtent, encoding: Encoding, bytes: &[u8], extents: &UnitExtents) {
        let Encoding { compression, ram_bytes } = encoding;
        if let Err(error) = verify_stream(compression, bytes, ram_bytes, extents.geometry().sector_size) {
            self.wrong.push((extent.start, error));
        }
    }

    /// Returns how an extent is encoded; `None` if it is not compressed, or not used any more.
    fn encoding(&mut self, extent: &BegunExtent) -> Result<Option<Encoding>> {
        match extent.user {
            None => Ok(None),
            Some(ExtentUser::File { tree, inode, offset }) => self.of_file(extent, tree, inode, offset),
            Some(ExtentUser::Leaf(leaf)) => self.of_leaf(extent, leaf),
        }
    }

    /// Looks the extent up in the file that its reference names. `offset` is that of its first
    /// byte, also where the file does not use it.
    fn of_file(
        &mut self,
        extent: &BegunExtent,
        id: TreeId,
        inode: InodeNumber,
        offset: u64,
    ) -> Result<Option<Encoding>> {
        let open = match self.tree.take().filter(|open| open.tree.id() == id) {
            Some(open) => open,
            None => match self.info.trees.find(id)? {
                Some(open) => open,
                None => return Ok(None),
            },
        };
        // A first part that was cut off may begin before the file does.
        let before = offset > i64::MAX as u64;
        let last = offset.wrapping_add(extent.length.max(MAX_UNCOMPRESSED));
        let (first, last) = (if before { 0 } else { offset }, if before { last } else { last.max(offset) });
        let key = |offset| Key::new(inode.0, ItemType::EXTENT_DATA, offset);
        let mut found = None;
        for item in open.tree.range(key(first)..=key(last)) {
            let item = item?;
            let parsed =
                FileExtentItem::parse(item.data()).map_err(|reason| item_error(&open.tree, &item, reason))?;
            if refers_to(&parsed, extent.start) {
                found = encoding_of(&parsed);
                break;
            }
        }
        self.tree = Some(open);
        Ok(found)
    }

    /// Looks the extent up in a leaf that several subvolumes share.
    fn of_leaf(&mut self, extent: &BegunExtent, address: LogicalAddress) -> Result<Option<Encoding>> {
        let leaf = match self.leaf.take().filter(|leaf| leaf.address() == address) {
            Some(leaf) => leaf,
            None => {
                let expected = NodeExpectation { level: Some(0), ..NodeExpectation::at(address) };
                self.info.trees.forest().block(objectid::FS_TREE, &expected)?
            }
        };
        let view = leaf.view();
        let items = (0..view.len()).filter(|slot| view.key(*slot).item_type == ItemType::EXTENT_DATA);
        let mut parsed = items.filter_map(|slot| FileExtentItem::parse(view.item(slot)).ok());
        let found = parsed.find(|item| refers_to(item, extent.start)).and_then(|item| encoding_of(&item));
        self.leaf = Some(leaf);
        Ok(found)
    }

    /// Reads an extent that is not in the rows of its unit as a whole. Returns false if no copy
    /// matches its checksums.
    fn read(&self, unit: &Unit, extent: &BegunExtent, bytes: &mut Vec<u8>) -> bool {
        let (volume, start) = (self.info.volume(), LogicalAddress(extent.start));
        let Ok(sums) = self.info.trees.find(objectid::CSUM_TREE) else { return false };
        bytes.resize(extent.length as usize, 0);
        (0..unit.chunk.copies()).any(|copy| {
            if volume.read_copy(start, bytes, copy).is_err() {
                return false;
            }
            let Some(sums) = &sums else { return true };
            let fault = DataChecksums::new(&sums.tree, volume.geometry()).first_fault(start, bytes);
            matches!(fault, Ok(None | Some((_, SectorFault::Missing))))
        })
    }
}

/// Copies an extent from the rows of its unit. Returns false if it is not there as a whole, or has
/// a sector that does not match its checksum.
fn fill(rows: &LoadedRows<'_>, extents: &UnitExtents, extent: &BegunExtent, bytes: &mut Vec<u8>) -> bool {
    bytes.clear();
    let end = extent.start + extent.length;
    if end > extents.range().end {
        return false;
    }
    let (chunk, geometry) = (rows.chunk(), extents.geometry());
    let sector = geometry.sector_size as usize;
    let is_good = |bytes: &[u8], start: u64| {
        let mut sectors = bytes.chunks_exact(sector).zip((start..).step_by(sector));
        sectors.all(|(bytes, at)| extents.sum(at).is_none_or(|sum| geometry.checksum_type.verify(bytes, sum)))
    };
    let mut at = extent.start;
    while at < end {
        let inside = (at - chunk.start().0) % STRIPE_LENGTH;
        let length = (end - at).min(STRIPE_LENGTH - inside);
        for element in chunk.elements(LogicalAddress(at), length as usize) {
            let start = extent.start + bytes.len() as u64;
            let places = rows.places(&element);
            let mut present = places.iter().filter(|place| {
                rows.slot(place).is_some() && !rows.has_failed(place) && !rows.is_stale(place)
            });
            match present.find(|place| is_good(rows.bytes(place), start)) {
                Some(place) => bytes.extend_from_slice(rows.bytes(place)),
                None => return false,
            }
        }
        at += length;
    }
    bytes.len() as u64 == extent.length
}

/// Whether a file extent uses the data extent at an address.
fn refers_to(item: &FileExtentItem<'_>, address: u64) -> bool {
    matches!(item.content, FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)
        if part.disk_address.0 == address)
}

fn encoding_of(item: &FileExtentItem<'_>) -> Option<Encoding> {
    let encoding = Encoding { compression: item.compression, ram_bytes: item.ram_bytes };
    (item.compression != Compression::None).then_some(encoding)
}
