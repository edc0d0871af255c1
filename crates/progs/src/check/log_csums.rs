//! Checksums of the data that the log of fsyncs refers to.
//!
//! Owns [`LogCsums`]. A replay takes the checksums of new data from the log; those of data that a
//! commit wrote are in the checksum tree. Data with neither cannot be read after the replay.
//!
//! Kernel counterparts: `log_extent_csums`, `replay_one_extent` (`fs/btrfs/tree-log.c`).

use super::csums::Csums;
use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use super::walker::Visit;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_format::{Geometry, ItemType, Key, TreeId};

/// Data that needs checksums: a part of an extent, and the file that has it.
#[derive(Debug)]
struct Needed {
    tree: TreeId,
    key: Key,
    start: u64,
    end: u64,
}

/// The data and the checksums of the logs.
#[derive(Debug, Default)]
pub(super) struct LogCsums {
    needed: Vec<Needed>,
    /// Ranges with checksums in the logs.
    ranges: Vec<(u64, u64)>,
    /// The inode of the item read last, and whether its data has no checksums.
    inode: Option<(TreeId, u64, bool)>,
}

impl LogCsums {
    /// Reads a leaf of the log of a subvolume; call it with the leaves in order.
    pub(super) fn read_leaf(&mut self, tree: TreeId, visit: &Visit<'_>, geometry: &Geometry) {
        let view = visit.block.view();
        for slot in (0..view.len()).filter(|_| visit.block.level() == 0) {
            let (key, data) = (view.key(slot), view.item(slot));
            match key.item_type {
                ItemType::INODE_ITEM => {
                    let flags = InodeItem::parse(data).map(|inode| inode.flags);
                    let without = flags.is_ok_and(|flags| flags.contains(InodeFlags::NODATASUM));
                    self.inode = Some((tree, key.objectid, without));
                }
                ItemType::EXTENT_CSUM => {
                    if let Ok(item) = CsumItem::parse(&key, data, geometry) {
                        self.ranges.push((item.start().0, item.end().0));
                    }
                }
                // Without the inode's item nothing says whether its data has checksums.
                ItemType::EXTENT_DATA if self.inode == Some((tree, key.objectid, false)) => {
                    self.needed.extend(needed(tree, key, data));
                }
                _ => {}
            }
        }
    }

    /// Reports the data that has checksums neither in the logs nor in the checksum tree.
    pub(super) fn compare(mut self, csums: &Csums, findings: &mut Findings) {
        self.ranges.sort_unstable();
        for Needed { tree, key, start, end } in &self.needed {
            let mut missing = Vec::new();
            for (from, to) in csums.gaps(*start, *end) {
                let mut at = from;
                for &(logged, logged_end) in self.ranges.iter().filter(|range| range.1 > from && range.0 < to)
                {
                    if logged > at {
                        missing.push((at, logged));
                    }
                    at = at.max(logged_end);
                }
                if at < to {
                    missing.push((at, to));
                }
            }
            if missing.is_empty() {
                continue;
            }
            let bytes: u64 = missing.iter().map(|(start, end)| end - start).sum();
            let place = Place { key: Some(*key), ..Place::inode(*tree, key.objectid) };
            let message = format_args!("{bytes} bytes of data in the log of fsyncs have no checksums");
            findings.add(FindingKind::LogCsumMissing, place, message);
            for (start, end) in missing {
                findings.mend(Remedy::AddCsums { start, end });
            }
        }
    }
}

/// Returns the range of a file extent on disk that needs checksums.
fn needed(tree: TreeId, key: Key, data: &[u8]) -> Option<Needed> {
    let extent = FileExtentItem::parse(data).ok()?;
    let FileExtentContent::Regular(part) = extent.content else { return None };
    if part.is_hole() {
        return None;
    }
    let (start, length) = match extent.compression {
        Compression::None => (part.disk_address.0.saturating_add(part.offset), part.length),
        _ => (part.disk_address.0, part.disk_length),
    };
    Some(Needed { tree, key, start, end: start.saturating_add(length) })
}
