//! The plan of a conversion: the source, the room for metadata, and the parts that are lost.
//!
//! Owns [`ConvertPlan`] and [`Census`], the sink that counts items and checks that no
//! block has two owners.
//!
//! **Invariant:** a plan without an error means that the walk over the source finds no fault: the
//! conversion reads the same structures again.

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::items::{DataRun, ItemSink, SECTOR};
use crate::losses::Losses;
use crate::shared::References;
use crate::source::Source;
use papilio_format::{Generation, InodeNumber, Key, Uuid};
use std::ops::Range;
use std::time::Duration;

/// Bytes of an item's header.
const ITEM_HEADER: u64 = 25;
/// Bytes of a file extent.
const FILE_EXTENT: u64 = 53;

/// The plan of a conversion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertPlan {
    /// `ext2`, `ext3`, `ext4` or `XFS`.
    pub variant: &'static str,
    /// The subvolume that will keep the source.
    pub saved: &'static str,
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
    /// Whether the journal was replayed, in memory: the new file system is as a mount would show
    /// it, and the way back leads to the bytes before.
    pub replayed: bool,
    /// Properties that cannot be kept.
    pub losses: Losses,
    /// The time that reading all data is expected to take, from samples of the device.
    pub reading_time: Option<Duration>,
}

/// The sink that counts.
pub(crate) struct Census<'a, S> {
    fs: &'a S,
    /// Blocks in use that have no owner yet.
    unowned: BlockSet,
    /// Blocks of extended attributes, which inodes share.
    shared: BlockSet,
    /// References to blocks that files share.
    references: References<'a>,
    pub(crate) inodes: u64,
    /// Bytes of items, with their headers.
    pub(crate) item_bytes: u64,
    /// Data extents.
    pub(crate) extents: u64,
    /// Bytes of data that one file has, in the blocks of the source.
    pub(crate) data_bytes: u64,
    /// Bytes of content that has no place of its own.
    pub(crate) content_bytes: u64,
    /// Whether holes have items.
    has_holes: bool,
    /// Each directory and the one that holds it, by number.
    parents: Vec<(u64, u64)>,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a, S: Source> Census<'a, S> {
    /// Counts the files of a source that uses these blocks.
    ///
    /// # Errors
    /// Blocks with two owners; the errors of reading the structure of the source.
    pub(crate) fn new(
        fs: &'a S,
        used: BlockSet,
        has_holes: bool,
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Self> {
        let mut unowned = used;
        let references = References::new(fs.shared());
        let structure = fs.structure_blocks()?;
        for run in structure.runs().chain(references.runs()) {
            let (start, length) = (run.start, run.end - run.start);
            if unowned.remove(run) != length && fs.profile().accounts_for_all {
                let reason = "it counts as free, or has two owners";
                return Err(fs.profile().damaged(format!("block {start} or one after it"), reason));
            }
        }
        Ok(Self {
            fs,
            unowned,
            references,
            shared: BlockSet::new(fs.profile().blocks),
            inodes: 0,
            item_bytes: 0,
            extents: 0,
            data_bytes: 0,
            content_bytes: 0,
            has_holes,
            parents: Vec::new(),
            progress,
        })
    }

    /// Checks that the root leads to every directory, and that blocks have as many owners as they
    /// should, when all are known.
    pub(crate) fn check_all(&self) -> Result<()> {
        let profile = self.fs.profile();
        if let Some(run) = self.references.first_wrong() {
            let reason = "files refer to it more or less often than its reference count says";
            let place = format!("block {} or one up to {}", run.start, run.end - 1);
            return Err(profile.damaged(place, reason));
        }
        if let Some(run) = self.unowned.runs().next().filter(|_| profile.accounts_for_all) {
            let place = format!("block {}", run.start);
            return Err(profile.damaged(place, "it counts as used, and nothing owns it"));
        }
        match unreachable_directory(&self.parents, profile.root) {
            Some(directory) => {
                let reason = "the root directory does not lead to it";
                Err(profile.damaged(format!("directory {}", self.fs.shown(directory)), reason))
            }
            None => Ok(()),
        }
    }

    fn own(&mut self, inode: u64, blocks: Range<u64>) -> Result<()> {
        if self.unowned.remove(blocks.clone()) == blocks.end.saturating_sub(blocks.start) {
            return Ok(());
        }
        let first = blocks.start;
        let reason =
            format!("block {first} or one after it counts as free, or belongs to something else, too");
        Err(self.fs.profile().damaged(format!("inode {}", self.fs.shown(inode)), reason))
    }
}

impl<S: Source> ItemSink for Census<'_, S> {
    fn item(&mut self, _key: Key, data: Vec<u8>) -> Result<()> {
        self.item_bytes += data.len() as u64 + ITEM_HEADER;
        Ok(())
    }

    fn data(&mut self, run: DataRun) -> Result<()> {
        // Every reference to what files share is split where the extent is. Other runs are split at
        // few places of the device, for which the layout has a reserve.
        let splits = u64::from(run.shared.is_some());
        let parts = run.length.div_ceil(crate::layout::EXTENT_MAX) + splits;
        self.extents += parts;
        self.data_bytes += if run.shared.is_none() { run.length } else { 0 };
        self.item_bytes += parts * (FILE_EXTENT + ITEM_HEADER);
        Ok(())
    }

    fn content(&mut self, _inode: InodeNumber, _data: &[u8]) -> Result<()> {
        self.content_bytes += SECTOR;
        self.extents += 1;
        self.item_bytes += FILE_EXTENT + ITEM_HEADER;
        Ok(())
    }

    fn hole(&mut self, _inode: InodeNumber, _offset: u64, _length: u64) -> Result<()> {
        self.item_bytes += if self.has_holes { FILE_EXTENT + ITEM_HEADER } else { 0 };
        Ok(())
    }

    fn metadata(&mut self, inode: u64, blocks: Range<u64>, shared: bool) -> Result<()> {
        if shared && self.shared.contains(&blocks) {
            return Ok(());
        }
        self.own(inode, blocks.clone())?;
        if shared {
            self.shared.insert(blocks);
        }
        Ok(())
    }

    fn directory(&mut self, directory: u64, parent: u64) -> Result<()> {
        self.parents.push((directory, parent));
        Ok(())
    }

    fn blocks(&mut self, inode: u64, blocks: Range<u64>, may_share: bool) -> Result<()> {
        if !may_share || !self.fs.shared().intersects(&blocks) {
            return self.own(inode, blocks);
        }
        for part in self.fs.shared().parts(blocks) {
            match part.run {
                Some((run, _)) => self.references.add(run, &part.blocks),
                None => self.own(inode, part.blocks)?,
            }
        }
        Ok(())
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
fn unreachable_directory(parents: &[(u64, u64)], root: u64) -> Option<u64> {
    let find = |directory: u64| parents.binary_search_by_key(&directory, |pair| pair.0).ok();
    let mut known = vec![false; parents.len()];
    let mut path = Vec::new();
    for start in 0..parents.len() {
        let mut at = start;
        path.clear();
        // A way that is longer than the number of directories has a circle.
        while !known[at] && parents[at].0 != root {
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
        assert_eq!(unreachable_directory(&[(2, 2), (11, 2), (12, 11), (13, 14), (14, 12)], 2), None);
        assert_eq!(unreachable_directory(&[(2, 2), (11, 12), (12, 13), (13, 11)], 2), Some(11));
        assert_eq!(unreachable_directory(&[(2, 2), (11, 2), (12, 15)], 2), Some(12));
        assert_eq!(unreachable_directory(&[(2, 2), (11, 11)], 2), Some(11));
    }
}
