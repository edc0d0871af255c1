//! The plan of a conversion: the source, the room for metadata, and the parts that are lost.
//!
//! Owns [`ConvertPlan`] and [`Census`], the sink that counts items and checks that no
//! block has two owners.
//!
//! **Invariant:** a plan without an error means that the walk over the source finds no fault: the
//! conversion reads the same structures again.

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::ext::inode::ROOT_INODE;
use crate::ext::reader::ExtFs;
use crate::ext::used::group_metadata;
use crate::items::{DataRun, ItemSink, SECTOR};
use crate::losses::Losses;
use papilio_format::{Generation, InodeNumber, Key, Uuid};
use std::ops::Range;
use std::time::Duration;

/// Bytes of an item's header.
const ITEM_HEADER: u64 = 25;

/// The plan of a conversion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertPlan {
    /// `ext2`, `ext3` or `ext4`.
    pub variant: &'static str,
    /// The label of the source.
    pub source_label: Vec<u8>,
    /// The UUID of the source.
    pub source_uuid: Uuid,
    /// Bytes of a block of the source.
    pub block_size: u64,
    /// Bytes of the file system.
    pub total_bytes: u64,
    /// Bytes that the source has free.
    pub free_bytes: u64,
    /// Bytes that the source uses: data and metadata.
    pub used_bytes: u64,
    /// Inodes that the source could have, and those that are free.
    pub inodes: (u64, u64),
    /// Inodes that are converted.
    pub converted_inodes: u64,
    /// Bytes of metadata that the conversion is expected to make, one copy of each block.
    pub metadata_bytes: u64,
    /// Bytes that free space sets aside for metadata.
    pub metadata_room: u64,
    /// Copies of each block of metadata.
    pub metadata_copies: u64,
    /// Bytes of the source that are copied elsewhere, because Btrfs needs their places.
    pub moved_bytes: u64,
    /// Properties that cannot be kept.
    pub losses: Losses,
    /// The time that reading all data is expected to take, from samples of the device.
    pub reading_time: Option<Duration>,
}

/// The sink that counts.
pub(crate) struct Census<'a> {
    fs: &'a ExtFs,
    /// Blocks in use that have no owner yet.
    unowned: BlockSet,
    /// Blocks of extended attributes, which inodes share.
    shared: BlockSet,
    pub(crate) inodes: u64,
    /// Bytes of items, with their headers.
    pub(crate) item_bytes: u64,
    /// Data extents.
    pub(crate) extents: u64,
    /// Bytes of content that has no place of its own.
    pub(crate) content_bytes: u64,
    /// Each directory and the one that holds it, by number.
    parents: Vec<(u32, u32)>,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Census<'a> {
    /// Counts the files of a source that uses these blocks.
    pub(crate) fn new(fs: &'a ExtFs, used: BlockSet, progress: &'a mut dyn FnMut(u64)) -> Self {
        let mut unowned = used;
        for run in group_metadata(fs).runs() {
            unowned.remove(run);
        }
        Self {
            fs,
            unowned,
            shared: BlockSet::new(fs.superblock.blocks),
            inodes: 0,
            item_bytes: 0,
            extents: 0,
            content_bytes: 0,
            parents: Vec::new(),
            progress,
        }
    }

    /// Checks that the root leads to every directory, when all are known.
    pub(crate) fn check_tree(&self) -> Result<()> {
        match unreachable_directory(&self.parents) {
            Some(directory) => {
                let reason = "the root directory does not lead to it";
                Err(self.fs.damaged(format!("directory {directory}"), reason))
            }
            None => Ok(()),
        }
    }

    fn own(&mut self, inode: u32, blocks: Range<u64>) -> Result<()> {
        if self.unowned.remove(blocks.clone()) == blocks.end.saturating_sub(blocks.start) {
            return Ok(());
        }
        let first = blocks.start;
        let reason =
            format!("block {first} or one after it counts as free, or belongs to something else, too");
        Err(self.fs.damaged(format!("inode {inode}"), reason))
    }
}

impl ItemSink for Census<'_> {
    fn item(&mut self, _key: Key, data: Vec<u8>) -> Result<()> {
        self.item_bytes += data.len() as u64 + ITEM_HEADER;
        Ok(())
    }

    fn data(&mut self, run: DataRun) -> Result<()> {
        const FILE_EXTENT: u64 = 53;
        let parts = run.length.div_ceil(crate::layout::EXTENT_MAX) + 1;
        self.extents += parts;
        self.item_bytes += parts * (FILE_EXTENT + ITEM_HEADER);
        Ok(())
    }

    fn content(&mut self, inode: InodeNumber, _data: &[u8]) -> Result<()> {
        self.content_bytes += SECTOR;
        self.data(DataRun { inode, offset: 0, place: 0, length: SECTOR })
    }

    fn hole(&mut self, inode: InodeNumber, offset: u64, length: u64) -> Result<()> {
        self.data(DataRun { inode, offset, place: 0, length: length.min(SECTOR) })
    }

    fn metadata(&mut self, inode: u32, block: u64, shared: bool) -> Result<()> {
        let blocks = block..block.saturating_add(1);
        if shared && self.shared.contains(&blocks) {
            return Ok(());
        }
        self.own(inode, blocks.clone())?;
        if shared {
            self.shared.insert(blocks);
        }
        Ok(())
    }

    fn directory(&mut self, directory: u32, parent: u32) -> Result<()> {
        self.parents.push((directory, parent));
        Ok(())
    }

    fn blocks(&mut self, inode: u32, blocks: Range<u64>) -> Result<()> {
        self.own(inode, blocks)
    }

    fn generation(&self) -> Generation {
        Generation(1)
    }

    fn inode_done(&mut self) -> Result<()> {
        self.inodes += 1;
        (self.progress)(self.inodes);
        Ok(())
    }
}

/// Returns a directory from which no way leads up to the root. `parents` is sorted.
fn unreachable_directory(parents: &[(u32, u32)]) -> Option<u32> {
    let find = |directory: u32| parents.binary_search_by_key(&directory, |pair| pair.0).ok();
    let mut known = vec![false; parents.len()];
    let mut path = Vec::new();
    for start in 0..parents.len() {
        let mut at = start;
        path.clear();
        // A way that is longer than the number of directories has a circle.
        while !known[at] && parents[at].0 != ROOT_INODE {
            path.push(at);
            match find(parents[at].1) {
                Some(next) if path.len() <= parents.len() => at = next,
                _ => return Some(parents[start].0),
            }
        }
        known[at] = true;
        path.iter().for_each(|at| known[*at] = true);
    }
    None
}

/// Returns the error of too little free space.
pub(crate) fn no_room(device: &str, need: u64, have: u64) -> ConvertError {
    const MIB: u64 = 1 << 20;
    let reason = format!(
        "metadata needs about {} MiB of free space in runs of 256 KiB or more, and there are {} MiB",
        need.div_ceil(MIB),
        have / MIB
    );
    ConvertError::NoRoom { device: device.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_and_orphans_are_found() {
        assert_eq!(unreachable_directory(&[(2, 2), (11, 2), (12, 11), (13, 14), (14, 12)]), None);
        assert_eq!(unreachable_directory(&[(2, 2), (11, 12), (12, 13), (13, 11)]), Some(11));
        assert_eq!(unreachable_directory(&[(2, 2), (11, 2), (12, 15)]), Some(12));
        assert_eq!(unreachable_directory(&[(2, 2), (11, 11)]), Some(11));
    }
}
