//! Compressed data: whether it decodes.
//!
//! Owns [`Compressed`], the compressed extents of all trees, and [`Decoder`], which decodes each of
//! them once. Checksums cannot tell: those of a stream that its writer damaged are right.
//!
//! **Invariants**
//! - Memory is bounded: a fixed-size record for each compressed extent, as for each reference, and
//!   the buffers of a decoder.
//! - An extent is decoded from bytes that match their checksums. One without such bytes has a
//!   finding about them.
//!
//! Kernel counterpart: `btrfs_decompress` (`fs/btrfs/compression.c`).

use super::report::{FindingKind, Findings, Place, SUBVOLUME_BEING_DELETED};
use super::walker::Visit;
use papilio_engine::data::{DecompressError, verify_stream};
use papilio_engine::items::trees::Trees;
use papilio_engine::jobs::inode_paths::{inode_text, owner_paths};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::{Geometry, ItemType};

/// The remedy, for messages.
const CURE: &str = "only a rewrite from a good copy cures it";

/// A compressed extent, as a file extent describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CompressedExtent {
    pub(super) start: u64,
    /// Bytes on disk.
    length: u32,
    /// Bytes of data (`ram_bytes`).
    ram_bytes: u32,
    compression: u8,
}

impl CompressedExtent {
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.length))
    }

    /// Bytes on disk; `None` for more than a compressed extent has.
    pub(super) fn length(&self) -> Option<usize> {
        (u64::from(self.length) <= papilio_engine::data::MAX_COMPRESSED).then_some(self.length as usize)
    }

    fn compression(&self) -> Compression {
        Compression::from_raw(self.compression).unwrap_or(Compression::None)
    }

    /// Decodes its bytes, and adds a finding if they do not decode.
    pub(super) fn decode(&self, bytes: &[u8], geometry: &Geometry, findings: &mut Findings) {
        let ram_bytes = u64::from(self.ram_bytes);
        if let Err(error) = verify_stream(self.compression(), bytes, ram_bytes, geometry.sector_size) {
            add(Place::extent(self.start), &error, ram_bytes, findings);
        }
    }

    /// Adds a finding about an extent that is too long to be read.
    pub(super) fn refuse(&self, findings: &mut Findings) {
        let limit = papilio_engine::data::MAX_COMPRESSED;
        let error = DecompressError::TooLong { what: "on disk", length: self.length.into(), limit };
        add(Place::extent(self.start), &error, self.ram_bytes.into(), findings);
    }
}

fn add(place: Place, error: &DecompressError, ram_bytes: u64, findings: &mut Findings) {
    let message = format_args!("{error}: {ram_bytes} bytes of data cannot be read; {CURE}");
    findings.add(FindingKind::DataUndecodable, place, message);
}

/// The compressed extents of all trees.
#[derive(Debug, Default)]
pub(super) struct Compressed {
    extents: Vec<CompressedExtent>,
}

impl Compressed {
    /// Collects the compressed extents of a leaf, and decodes its inline ones; call it once for
    /// each leaf.
    pub(super) fn read_leaf(&mut self, visit: &Visit<'_>, geometry: &Geometry, findings: &mut Findings) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let Ok(item) = FileExtentItem::parse(view.item(slot)) else { continue };
            if item.compression == Compression::None {
                continue;
            }
            match item.content {
                FileExtentContent::Inline(bytes) => {
                    let (ram_bytes, sector) = (item.ram_bytes, geometry.sector_size);
                    if let Err(error) = verify_stream(item.compression, bytes, ram_bytes, sector) {
                        let place = Place { key: Some(key), ..Place::inode(visit.tree, key.objectid) };
                        add(place, &error, ram_bytes, findings);
                    }
                }
                FileExtentContent::Regular(part) if !part.is_hole() => {
                    let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
                    let found = CompressedExtent {
                        start: part.disk_address.0,
                        length: narrow(part.disk_length),
                        ram_bytes: narrow(item.ram_bytes),
                        compression: item.compression as u8,
                    };
                    // The parts of an extent mostly follow one another.
                    if self.extents.last() != Some(&found) {
                        self.extents.push(found);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the extents by address, each once.
    pub(super) fn into_sorted(mut self) -> Vec<CompressedExtent> {
        self.extents.sort_unstable();
        self.extents.dedup();
        self.extents
    }
}

/// Names the files in the findings about compressed data. While subvolumes are being deleted, drops
/// those about data that no file has.
pub(super) fn name_files(trees: &Trees, findings: &mut Findings) {
    let deleting = findings.notes.iter().any(|note| note.code == SUBVOLUME_BEING_DELETED);
    findings.retain(FindingKind::DataUndecodable, |finding| {
        let place = &finding.place;
        let files = match (place.address, place.tree, place.inode) {
            (Some(address), _, _) => owner_paths(trees, address),
            (None, Some(tree), Some(inode)) => Some(inode_text(trees, tree, inode)),
            _ => return true,
        };
        finding.message.push_str("; files: ");
        finding.message.push_str(files.as_deref().unwrap_or("none"));
        files.is_some() || !deleting
    });
}
