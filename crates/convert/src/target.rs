//! The new file system, while it is filled.
//!
//! Owns [`Target`], which makes batches of items, references and checksums a part of the running
//! transaction, and [`TreeSink`], the [`ItemSink`] over it.
//!
//! **Invariants**
//! - A file extent and its reference to data become part of one transaction.
//! - Items are inserted in the order of their keys, so that blocks fill one after the other.
//!
//! **Locks**, in a batch: the subvolume's writer, then the checksum tree's.

use crate::block_set::BlockSet;
use crate::error::Result;
use crate::items::{DataRun, ItemSink, SECTOR, extent_key};
use crate::places::PlaceMap;
use papilio_engine::btree::{Change, LiveTree};
use papilio_engine::data::csum_edit::{ChecksumRuns, insert_checksums};
use papilio_engine::transaction::{DataReference, Transactions};
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::{FileOffset, Generation, Geometry, InodeNumber, Key, LogicalAddress, TreeId, objectid};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of items in a batch.
const BATCH_BYTES: usize = 256 << 10;
const ITEM_HEADER: usize = 25;

/// Changes that are made together.
#[derive(Default)]
pub(crate) struct Batch {
    /// In the order of their keys.
    changes: Vec<Change>,
    /// References to data, and whether each is the first of its extent.
    references: Vec<(DataReference, bool)>,
    bytes: usize,
}

impl Batch {
    pub(crate) fn put(&mut self, key: Key, data: Vec<u8>) {
        self.bytes += data.len() + ITEM_HEADER;
        self.changes.push(Change::Put { key, data });
    }

    pub(crate) fn refer(&mut self, reference: DataReference, is_first: bool) {
        self.references.push((reference, is_first));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES
    }
}

/// The new file system, while it is filled.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) geometry: Geometry,
    pub(crate) checksums: bool,
    pub(crate) no_holes: bool,
}

impl Target {
    /// Makes a batch for a tree part of the running transaction.
    ///
    /// # Errors
    /// No space; a device that fails.
    pub(crate) fn apply(&self, tree: &LiveTree, batch: &Batch) -> Result<()> {
        if batch.changes.is_empty() {
            return Ok(());
        }
        let blocks = 8 + batch.bytes.div_ceil(self.geometry.node_size as usize) as u64;
        self.transactions.change(blocks, |handle| {
            tree.edit(handle).apply(&batch.changes)?;
            let mut references = batch.references.iter();
            references.try_for_each(|(reference, is_first)| handle.add_data_ref(reference, *is_first))
        })?;
        Ok(())
    }

    /// Inserts checksums of data, `bytes` in all.
    ///
    /// # Errors
    /// As [`Target::apply`].
    pub(crate) fn add_checksums(&self, sums: &ChecksumRuns, bytes: u64) -> Result<()> {
        if sums.is_empty() {
            return Ok(());
        }
        let tree = self.transactions.live().get(objectid::CSUM_TREE)?;
        let blocks = 8 + sums.size_of(bytes as usize).div_ceil(self.geometry.node_size as usize) as u64;
        self.transactions.change(blocks, |handle| insert_checksums(&mut tree.edit(handle), sums.clone()))?;
        Ok(())
    }

    /// Computes the checksums of whole sectors.
    pub(crate) fn sums_of(&self, bytes: &[u8]) -> Vec<u8> {
        let kind = self.geometry.checksum_type;
        let mut sums = Vec::with_capacity(bytes.len() / SECTOR as usize * kind.size());
        for sector in bytes.chunks_exact(SECTOR as usize) {
            sums.extend_from_slice(kind.compute(sector).as_bytes());
        }
        sums
    }

    /// Writes data to new places. Returns start and length of each part.
    ///
    /// # Errors
    /// As [`Target::apply`].
    pub(crate) fn write_data(&self, bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
        let mut parts = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let want = rest.len() as u64;
            let transactions = &self.transactions;
            let range = transactions.retry_after_commits(|| transactions.allocate_data(SECTOR, want))?;
            let (part, later) = rest.split_at(range.length as usize);
            transactions.volume().write(range.start, part)?;
            parts.push((range.start.0, range.length));
            rest = later;
        }
        Ok(parts)
    }
}

/// Encodes a file extent that refers to a part of an extent on disk.
pub(crate) fn extent_item(generation: Generation, part: ExtentPart, whole: u64) -> Vec<u8> {
    let item = FileExtentItem {
        generation,
        ram_bytes: whole,
        compression: Compression::None,
        other_encoding: 0,
        content: FileExtentContent::Regular(part),
    };
    item.to_bytes()
}

/// Encodes a hole.
pub(crate) fn hole_item(generation: Generation, length: u64) -> Vec<u8> {
    let part = ExtentPart { disk_address: LogicalAddress(0), disk_length: 0, offset: 0, length };
    extent_item(generation, part, length)
}

/// Puts the items of files into a subvolume.
pub(crate) struct TreeSink<'a> {
    target: &'a Target,
    tree: Arc<LiveTree>,
    id: TreeId,
    places: &'a PlaceMap,
    batch: Batch,
    generation: Generation,
    /// The sectors in which extents begin that several files refer to, once they are made.
    made: BlockSet,
    done: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> TreeSink<'a> {
    /// Fills the top-level subvolume of `target`, on a device of `total` bytes.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(crate) fn new(
        target: &'a Target,
        places: &'a PlaceMap,
        total: u64,
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Self> {
        let id = objectid::FS_TREE;
        let tree = target.transactions.live().get(id)?;
        let generation = target.transactions.generation();
        let made = BlockSet::new(total.div_ceil(SECTOR));
        Ok(Self { target, tree, id, places, batch: Batch::default(), generation, made, done: 0, progress })
    }

    /// Makes the rest part of the running transaction.
    ///
    /// # Errors
    /// As [`Target::apply`].
    pub(crate) fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.target.apply(&self.tree, &batch)?;
        self.generation = self.target.transactions.generation();
        Ok(())
    }

    fn extent(&mut self, inode: InodeNumber, offset: u64, logical: u64, length: u64) {
        let address = LogicalAddress(logical);
        let part = ExtentPart { disk_address: address, disk_length: length, offset: 0, length };
        self.part(inode, offset, part, true);
    }

    /// Puts a file extent that refers to a part of an extent on disk.
    fn part(&mut self, inode: InodeNumber, offset: u64, part: ExtentPart, is_first: bool) {
        let ExtentPart { disk_address: address, disk_length: length, offset: into, .. } = part;
        self.batch.put(extent_key(inode, offset), extent_item(self.generation, part, length));
        let offset = FileOffset(offset.wrapping_sub(into));
        self.batch.refer(DataReference { address, length, tree: self.id, inode, offset }, is_first);
    }

    /// Puts file extents that refer to a part of what several files share.
    fn shared(&mut self, run: &DataRun, whole: &Range<u64>) -> Result<()> {
        let run_end = run.place + run.length;
        for extent in self.places.parts(whole.start, whole.end - whole.start) {
            let extent = extent?;
            let (start, end) = (run.place.max(extent.place), run_end.min(extent.place + extent.length));
            if start >= end {
                continue;
            }
            let part = ExtentPart {
                disk_address: LogicalAddress(extent.logical),
                disk_length: extent.length,
                offset: start - extent.place,
                length: end - start,
            };
            let sector = extent.logical / SECTOR;
            let is_first = self.made.insert(sector..sector + 1) == 0;
            self.part(run.inode, run.offset + (start - run.place), part, is_first);
            if self.batch.is_full() {
                self.flush()?;
            }
        }
        Ok(())
    }
}

impl ItemSink for TreeSink<'_> {
    fn item(&mut self, key: Key, data: Vec<u8>) -> Result<()> {
        self.batch.put(key, data);
        if self.batch.is_full() { self.flush() } else { Ok(()) }
    }

    fn data(&mut self, run: DataRun) -> Result<()> {
        if let Some(whole) = &run.shared {
            return self.shared(&run, whole);
        }
        for part in self.places.parts(run.place, run.length) {
            let part = part?;
            self.extent(run.inode, run.offset + (part.place - run.place), part.logical, part.length);
            if self.batch.is_full() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn content(&mut self, inode: InodeNumber, data: &[u8]) -> Result<()> {
        let mut sector = vec![0; SECTOR as usize];
        sector[..data.len()].copy_from_slice(data);
        for (logical, length) in self.target.write_data(&sector)? {
            self.extent(inode, 0, logical, length);
            if self.target.checksums {
                let mut sums = ChecksumRuns::new(&self.target.geometry);
                sums.add(LogicalAddress(logical), &self.target.sums_of(&sector));
                self.target.add_checksums(&sums, length)?;
            }
        }
        Ok(())
    }

    fn hole(&mut self, inode: InodeNumber, offset: u64, length: u64) -> Result<()> {
        if !self.target.no_holes {
            self.batch.put(extent_key(inode, offset), hole_item(self.generation, length));
        }
        Ok(())
    }

    fn metadata(&mut self, _inode: u64, _blocks: Range<u64>, _shared: bool) -> Result<()> {
        Ok(())
    }

    fn directory(&mut self, _directory: u64, _parent: u64) -> Result<()> {
        Ok(())
    }

    fn blocks(&mut self, _inode: u64, _blocks: Range<u64>, _may_share: bool) -> Result<()> {
        Ok(())
    }

    fn generation(&self) -> Generation {
        self.generation
    }

    fn inode_done(&mut self) -> Result<()> {
        self.done += 1;
        (self.progress)(self.done);
        Ok(())
    }
}
