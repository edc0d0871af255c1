//! The v1 free-space caches: hidden files of the root tree.
//!
//! Owns [`SpaceCaches`]. A cache is a hint: readers ignore it if anything about it is wrong. A bad
//! one is therefore a warning, and its content is not compared with the extents.
//!
//! Kernel counterpart: `load_free_space_cache` (`fs/btrfs/free-space-cache.c`).

use super::report::{FindingKind, Findings, Place};
use super::walker::Visit;
use papilio_engine::volume::Volume;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::free_space_cache::{FreeSpaceCache, FreeSpaceHeader};
use papilio_format::items::inode::InodeItem;
use papilio_format::{ItemType, Key, LogicalAddress, objectid};
use std::collections::BTreeMap;

/// Largest file to read, in bytes. Real ones are smaller: a block group's bitmaps and entries are
/// limited to less.
const SIZE_MAX: u64 = 16 << 20;

#[derive(Debug, Default)]
struct CacheFile {
    generation: u64,
    size: u64,
    /// File offset, logical address and length in bytes.
    extents: Vec<(u64, u64, u64)>,
}

/// The files of the root tree.
#[derive(Debug, Default)]
pub(super) struct SpaceCaches {
    files: BTreeMap<u64, CacheFile>,
}

impl SpaceCaches {
    /// Reads a leaf of the root tree.
    pub(super) fn read_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let (key, data) = (view.key(slot), view.item(slot));
            match key.item_type {
                ItemType::INODE_ITEM => {
                    if let Ok(item) = InodeItem::parse(data) {
                        let file = self.files.entry(key.objectid).or_default();
                        (file.generation, file.size) = (item.generation.0, item.size);
                    }
                }
                ItemType::EXTENT_DATA => {
                    let Ok(extent) = FileExtentItem::parse(data) else { continue };
                    if let FileExtentContent::Regular(part) = extent.content
                        && !part.is_hole()
                    {
                        let start = part.disk_address.0.saturating_add(part.offset);
                        let file = self.files.entry(key.objectid).or_default();
                        file.extents.push((key.offset, start, part.length));
                    }
                }
                _ => {}
            }
        }
    }

    /// Checks the content of the caches that a kernel would use.
    pub(super) fn check(&self, volume: &Volume, headers: &[(Key, FreeSpaceHeader)], findings: &mut Findings) {
        let raw = &volume.superblock().raw;
        if headers.is_empty() || raw.cache_generation != raw.generation.0 {
            return;
        }
        let mut checked = 0;
        for (key, header) in headers {
            let Some(file) = self.files.get(&header.location.objectid) else { continue };
            if file.generation != header.generation.0 || file.generation == 0 || file.size == 0 {
                continue;
            }
            checked += 1;
            if let Err(reason) = check_file(volume, header, file) {
                let place = Place::item(objectid::ROOT_TREE, *key);
                findings.add(FindingKind::FreeSpaceCache, place, format_args!("{reason}"));
            }
        }
        findings.note("space-cache-not-checked", format!(
            "v1 free-space cache: only checksums and generations of {checked} files were checked, not their content"
        ));
    }
}

fn check_file(volume: &Volume, header: &FreeSpaceHeader, file: &CacheFile) -> Result<(), String> {
    if file.size > SIZE_MAX {
        return Err(format!("the file has {} bytes, more than any cache", file.size));
    }
    let mut bytes = vec![0; file.size as usize];
    for &(offset, start, length) in &file.extents {
        let end = offset.saturating_add(length).min(file.size);
        if offset < end {
            let buffer = &mut bytes[offset as usize..end as usize];
            volume.read(LogicalAddress(start), buffer).map_err(|error| error.to_string())?;
        }
    }
    let page = volume.geometry().sector_size as usize;
    FreeSpaceCache::parse(header, &bytes, page).map(|_| ()).map_err(|reason| reason.to_string())
}
