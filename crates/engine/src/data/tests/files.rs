//! Files in memory for tests of changes: trees, an allocator with reference counts, and a model of
//! each file's content.

use crate::btree::testing::TestForest;
use crate::btree::{LiveTree, NodeAllocator, TreeBlock};
use crate::data::clone::{CloneRange, CloneSource};
use crate::data::data_context::DataContext;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::prealloc::{preallocate_rewrite, preallocate_step};
use crate::data::progress::Progress;
use crate::data::punch_hole::{Hole, punch_hole_step, zero_edge};
use crate::data::rewrite::SectorRewrite;
use crate::data::space::{DataAllocator, DataExtent, DataReference, DataSpace};
use crate::data::stored_extents::StoredExtents;
use crate::data::truncate::PreparedTruncate;
use crate::data::write::PreparedWrite;
use crate::data::write_rules::{WriteOptions, WriteRules};
use crate::data::{FileData, ReadContext};
use crate::errors::{Error, Result};
use crate::transaction::csum_items::remove_sums;
use crate::volume::testing::{chunk_item, superblock};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::file_extent::{Compression, FileExtentContent};
use papilio_format::items::inode::{InodeFlags, InodeItem, Timespec, inode_key};
use papilio_format::{FileOffset, Generation, InodeNumber, Key, LogicalAddress, TreeId, objectid};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) const SECTOR: u64 = 4096;
/// The first address of data; tree blocks are before.
const DATA_START: u64 = 2 << 30;

/// An allocator of data space, which uses each range once and counts references.
pub(super) struct TestSpace {
    forest: Arc<TestForest>,
    state: Mutex<SpaceState>,
}

pub(super) struct SpaceState {
    next: u64,
    /// The extents allocated and not released: address to length.
    pub(super) allocated: BTreeMap<u64, u64>,
    pub(super) references: BTreeMap<DataReference, u64>,
    /// The most bytes of one allocation.
    pub(super) largest: u64,
    /// The bytes that are left to allocate.
    pub(super) left: u64,
    pub(super) features: IncompatFeatures,
    seconds: i64,
}

impl SpaceState {
    fn is_referenced(&self, address: u64) -> bool {
        self.references.keys().any(|reference| reference.address.0 == address)
    }
}

impl NodeAllocator for TestSpace {
    fn generation(&self) -> Generation {
        self.forest.allocator.generation()
    }

    fn stamp(&self) -> u64 {
        self.forest.allocator.stamp()
    }

    fn allocate(&self, tree: &LiveTree, level: u8, first_key: &Key) -> Result<LogicalAddress> {
        self.forest.allocator.allocate(tree, level, first_key)
    }

    fn free(&self, tree: &LiveTree, block: &TreeBlock) -> Result<()> {
        self.forest.allocator.free(tree, block)
    }

    fn copied(&self, tree: &LiveTree, old: &TreeBlock, new: &TreeBlock) -> Result<()> {
        self.forest.allocator.copied(tree, old, new)
    }
}

impl DataAllocator for TestSpace {
    fn allocate_data(&self, min: u64, want: u64) -> Result<DataExtent> {
        assert!(0 < min && min <= want && min.is_multiple_of(SECTOR) && want.is_multiple_of(SECTOR));
        let mut state = self.state.lock();
        let length = want.min(state.largest).max(min);
        if length > state.left {
            return Err(Error::NoSpace { what: "data" });
        }
        state.left -= length;
        let address = state.next;
        state.next += length;
        state.allocated.insert(address, length);
        Ok(DataExtent { address: LogicalAddress(address), length })
    }

    fn release_data(&self, extent: DataExtent) {
        let mut state = self.state.lock();
        assert!(!state.is_referenced(extent.address.0), "released with references");
        assert_eq!(
            state.allocated.remove(&extent.address.0),
            Some(extent.length),
            "released as it was given"
        );
        state.left += extent.length;
    }
}

impl DataSpace for TestSpace {
    fn now(&self) -> Timespec {
        let mut state = self.state.lock();
        state.seconds += 1;
        Timespec { seconds: state.seconds, nanoseconds: 7 }
    }

    fn add_data_ref(&self, reference: &DataReference, new: bool) -> Result<()> {
        let mut state = self.state.lock();
        let extent_length = state.allocated.get(&reference.address.0);
        assert_eq!(extent_length, Some(&reference.length), "a reference to an allocated extent");
        assert_eq!(state.is_referenced(reference.address.0), !new, "the first reference is the new one");
        *state.references.entry(*reference).or_default() += 1;
        Ok(())
    }

    fn drop_data_ref(&self, reference: &DataReference) -> Result<()> {
        let mut state = self.state.lock();
        let count = state.references.get_mut(reference).unwrap_or_else(|| panic!("{reference:?} is there"));
        *count -= 1;
        if *count == 0 {
            state.references.remove(reference);
        }
        Ok(())
    }

    fn may_extend_data(&self, reference: &DataReference, bytes: u64) -> bool {
        let state = self.state.lock();
        let end = reference.address.0 + reference.length;
        let alone = state
            .references
            .iter()
            .all(|(other, count)| other.address != reference.address || other == reference && *count == 1);
        alone
            && state.allocated.get(&reference.address.0) == Some(&reference.length)
            && state.allocated.get(&end) == Some(&bytes)
            && !state.is_referenced(end)
    }

    fn extend_data(&self, reference: &DataReference, bytes: u64) {
        assert!(self.may_extend_data(reference, bytes));
        let mut state = self.state.lock();
        state.allocated.remove(&(reference.address.0 + reference.length));
        state.allocated.insert(reference.address.0, reference.length + bytes);
        let count = state.references.remove(reference).expect("it has this reference");
        state.references.insert(DataReference { length: reference.length + bytes, ..*reference }, count);
    }

    fn require_features(&self, features: IncompatFeatures) -> Result<()> {
        self.state.lock().features |= features;
        Ok(())
    }
}

/// The contexts of both phases of a change.
pub(super) struct Phases<'a> {
    pub(super) data: DataContext<'a>,
    pub(super) trees: WriteContext<'a>,
}

impl Phases<'_> {
    pub(super) fn write(&self, file: &mut FileEdit<'_>, offset: u64, bytes: &[u8]) -> Result<()> {
        PreparedWrite::new(&self.data, file, FileOffset(offset), bytes)?.publish(&self.trees, file)
    }

    /// Prepares a change of size and makes its first step.
    pub(super) fn truncate(&self, file: &mut FileEdit<'_>, size: u64) -> Result<Progress> {
        PreparedTruncate::new(&self.data, file, size)?.step(&self.trees, file)
    }

    /// As [`Phases::truncate`], dropping at most `limit` extents.
    pub(super) fn shorten(&self, file: &mut FileEdit<'_>, size: u64, limit: usize) -> Result<Progress> {
        PreparedTruncate::new(&self.data, file, size)?.limited_step(&self.trees, file, limit)
    }

    pub(super) fn punch(&self, file: &mut FileEdit<'_>, offset: u64, length: u64) -> Result<()> {
        let hole = Hole::new(&self.data.rules, file.inode, file.item.size, offset, length)?;
        if let Some(mut sectors) = hole.sectors {
            let mut rewrite = SectorRewrite::prepare(&self.data, file, Some(&sectors), None)?;
            while let (Progress::More, reached) = punch_hole_step(&self.trees, file, &sectors, &mut rewrite)?
            {
                sectors.start = reached;
            }
        }
        for edge in &hole.edges {
            zero_edge(&self.data, file, edge)?.publish(&self.trees, file)?;
        }
        Ok(())
    }

    pub(super) fn preallocate(
        &self,
        file: &mut FileEdit<'_>,
        offset: u64,
        length: u64,
        keep_size: bool,
    ) -> Result<Progress> {
        let offset = FileOffset(offset);
        let mut rewrite = preallocate_rewrite(&self.data, file, offset, length)?;
        preallocate_step(&self.trees, file, offset, length, keep_size, &mut rewrite)
    }

    /// Makes one step of a clone, of at most `limit` extents.
    pub(super) fn share(
        &self,
        range: &mut CloneRange,
        source: &CloneSource<'_>,
        file: &mut FileEdit<'_>,
        limit: usize,
    ) -> Result<Progress> {
        let mut prepared = range.prepare(&self.data, source, file)?;
        range.limited_step(&self.trees, source, file, &mut prepared, limit)
    }
}

/// A file and what it should hold.
#[derive(Clone)]
pub(super) struct TestFile {
    pub(super) tree: usize,
    pub(super) inode: InodeNumber,
    pub(super) item: InodeItem,
    pub(super) bytes: Vec<u8>,
}

/// Some files in two subvolumes.
pub(super) struct Files {
    pub(super) forest: Arc<TestForest>,
    pub(super) space: TestSpace,
    pub(super) trees: Vec<LiveTree>,
    pub(super) checksums: LiveTree,
    pub(super) options: WriteOptions,
    pub(super) files: Vec<TestFile>,
}

impl Files {
    pub(super) fn new(node_size: u32, no_holes: bool, options: WriteOptions) -> Self {
        let chunk = chunk_item(RaidProfile::Single, 1, 4 << 30);
        let mut raw = superblock(1, 1, &chunk);
        (raw.node_size, raw.leaf_size) = (node_size, node_size);
        raw.total_bytes = (4 << 30) + (16 << 20);
        raw.dev_item.total_bytes = raw.total_bytes;
        raw.incompat_flags = IncompatFeatures::MIXED_BACKREF
            | IncompatFeatures::BIG_METADATA
            | IncompatFeatures::SKINNY_METADATA
            | IncompatFeatures::EXTENDED_IREF;
        raw.incompat_flags.set(IncompatFeatures::NO_HOLES, no_holes);
        let forest = Arc::new(TestForest::of(raw));
        let state = SpaceState {
            next: DATA_START,
            allocated: BTreeMap::new(),
            references: BTreeMap::new(),
            largest: u64::MAX,
            left: 1 << 40,
            features: IncompatFeatures::empty(),
            seconds: 1_000,
        };
        Self {
            trees: [objectid::FS_TREE, TreeId(256)].map(|id| forest.live_tree(id)).into(),
            checksums: forest.live_tree(objectid::CSUM_TREE),
            space: TestSpace { forest: Arc::clone(&forest), state: Mutex::new(state) },
            forest,
            options,
            files: Vec::new(),
        }
    }

    /// Creates a file in a tree and returns its index.
    pub(super) fn create(&mut self, tree: usize, flags: InodeFlags) -> usize {
        let inode = InodeNumber(257 + self.files.len() as u64);
        let mut item = InodeItem::parse(&[0; InodeItem::SIZE]).unwrap();
        (item.mode, item.nlink, item.flags) = (0o100_644, 1, flags);
        (item.generation, item.transid) = (Generation(10), Generation(10));
        self.trees[tree].edit(&self.space).insert(inode_key(inode), &item.to_bytes()).unwrap();
        self.files.push(TestFile { tree, inode, item, bytes: Vec::new() });
        self.files.len() - 1
    }

    pub(super) fn state(&self) -> papilio_locks::MutexGuard<'_, SpaceState> {
        self.space.state.lock()
    }

    /// Changes a file with the code under test.
    pub(super) fn edit<R>(
        &mut self,
        index: usize,
        change: impl FnOnce(&Phases<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        self.edit_from(index, index, |phases, file, _| change(phases, file))
    }

    /// Changes a file with the code under test, which reads another file or the same one.
    pub(super) fn edit_from<R>(
        &mut self,
        index: usize,
        source: usize,
        change: impl FnOnce(&Phases<'_>, &mut FileEdit<'_>, &CloneSource<'_>) -> Result<R>,
    ) -> Result<R> {
        let (from, file) = (&self.files[source], &self.files[index]);
        let source = CloneSource { tree: &self.trees[from.tree], inode: from.inode, item: from.item };
        let (tree, inode) = (&self.trees[file.tree], file.inode);
        let mut edit = FileEdit { tree, inode, item: file.item, property: None, touched: None };
        let result = change(&self.phases(), &mut edit, &source);
        self.files[index].item = edit.item;
        self.free_unreferenced();
        result
    }

    fn phases(&self) -> Phases<'_> {
        let rules = WriteRules { geometry: self.forest.volume.geometry(), options: &self.options };
        let volume = &self.forest.volume;
        Phases {
            data: DataContext { allocator: &self.space, volume, checksum_tree: &self.checksums, rules },
            trees: WriteContext { space: &self.space, checksum_tree: &self.checksums, rules },
        }
    }

    /// Frees extents that lost their last reference, as a commit does. Their bytes are overwritten,
    /// so that a later read of them is noticed.
    fn free_unreferenced(&mut self) {
        let mut state = self.space.state.lock();
        let used: BTreeSet<u64> = state.references.keys().map(|reference| reference.address.0).collect();
        let free: Vec<(u64, u64)> = state
            .allocated
            .iter()
            .filter(|(address, _)| !used.contains(address))
            .map(|(&address, &length)| (address, length))
            .collect();
        state.allocated.retain(|address, _| used.contains(address));
        drop(state);
        let ranges: Vec<_> =
            free.iter().map(|&(address, length)| (LogicalAddress(address), length)).collect();
        remove_sums(&mut self.checksums.edit(&self.space), &ranges).unwrap();
        for (address, length) in free {
            let junk = vec![0xdd; length as usize];
            self.forest.volume.write(LogicalAddress(address), &junk).unwrap();
        }
    }

    /// Reads the whole file.
    pub(super) fn read(&self, index: usize) -> Result<Vec<u8>> {
        let file = &self.files[index];
        let reading = ReadContext::new(Arc::clone(&self.forest.volume), Some(self.checksums.tree()), true);
        let tree = self.trees[file.tree].tree();
        let (inode, flags, size) = (file.inode, file.item.flags, file.item.size);
        let mut bytes = vec![0xee; size as usize];
        let read = reading.read(
            &FileData {
                tree: (&tree).into(),
                inode,
                flags,
                size,
                written: None,
                extent_cache: None,
                ordered: None,
            },
            FileOffset(0),
            &mut bytes,
        )?;
        assert_eq!(read as u64, size);
        Ok(bytes)
    }

    /// Returns the file's extents: start, end, and kind (h, i, r or p, upper case if compressed).
    pub(super) fn map(&self, index: usize) -> Vec<(u64, u64, char)> {
        let file = &self.files[index];
        let tree = self.trees[file.tree].tree();
        StoredExtents::new(&tree, file.inode, SECTOR as u32, 0, u64::MAX)
            .map(|stored| {
                let stored = stored.unwrap();
                let extent = stored.extent();
                let kind = match extent.content {
                    FileExtentContent::Inline(_) => 'i',
                    FileExtentContent::Regular(part) if part.is_hole() => 'h',
                    FileExtentContent::Regular(_) => 'r',
                    FileExtentContent::Prealloc(_) => 'p',
                };
                let packed = extent.compression != Compression::None;
                (stored.start, stored.end, if packed { kind.to_ascii_uppercase() } else { kind })
            })
            .collect()
    }

    /// Compares one file with its model.
    pub(super) fn check_content(&self, index: usize) {
        let found = self.read(index).unwrap_or_else(|error| panic!("file {index}: {error}"));
        let wanted = &self.files[index].bytes;
        assert_eq!(found.len(), wanted.len(), "size of file {index}");
        if let Some(at) = (0..found.len()).find(|&at| found[at] != wanted[at]) {
            let map = self.map(index);
            panic!("file {index} differs at {at}: {} is not {}; {map:?}", found[at], wanted[at]);
        }
    }

    /// Compares all files with their models, and all counters with the trees.
    pub(super) fn check(&self) {
        let mut references = BTreeMap::new();
        let mut checksummed = BTreeSet::new();
        for index in 0..self.files.len() {
            self.check_content(index);
            self.check_extents(index, &mut references, &mut checksummed);
        }
        let state = self.space.state.lock();
        assert_eq!(references, state.references, "references in the trees differ from the counts");
        let mut found = BTreeSet::new();
        let mut last = 0;
        for item in self.checksums.tree().items() {
            let item = item.unwrap();
            let checksums = CsumItem::parse(&item.key, item.data(), &self.forest.volume.geometry()).unwrap();
            assert!(checksums.start().0 >= last && checksums.sectors() > 0, "checksums ascend");
            last = checksums.end().0;
            found.extend((checksums.start().0..last).step_by(SECTOR as usize));
        }
        assert_eq!(found, checksummed, "exactly the sectors of written extents have checksums");
    }

    fn check_extents(
        &self,
        index: usize,
        references: &mut BTreeMap<DataReference, u64>,
        checksummed: &mut BTreeSet<u64>,
    ) {
        let file = &self.files[index];
        let tree = self.trees[file.tree].tree();
        let stored_item = tree.get(&inode_key(file.inode)).unwrap().unwrap();
        assert_eq!(
            InodeItem::parse(stored_item.data()),
            Ok(file.item),
            "the inode item differs from the last change"
        );
        let no_holes = self.forest.volume.geometry().incompat.contains(IncompatFeatures::NO_HOLES);
        let (mut end, mut nbytes) = (0, 0);
        for stored in StoredExtents::new(&tree, file.inode, SECTOR as u32, 0, u64::MAX) {
            let stored = stored.unwrap();
            assert!(stored.start >= end, "extents do not overlap: {:?}", self.map(index));
            let gap = !no_holes && stored.start > end && end < file.item.size;
            assert!(!gap, "a gap at {end}: {:?}", self.map(index));
            end = stored.end;
            let extent = stored.extent();
            let (part, written) = match extent.content {
                FileExtentContent::Inline(data) => {
                    nbytes += extent.ram_bytes;
                    assert_eq!((stored.start, extent.ram_bytes), (0, file.item.size), "inline is the file");
                    assert!(data.len() <= self.options.max_inline as usize);
                    continue;
                }
                FileExtentContent::Regular(part) if part.is_hole() => continue,
                FileExtentContent::Regular(part) => (part, true),
                FileExtentContent::Prealloc(part) => (part, false),
            };
            nbytes += part.length;
            assert!(part.offset + part.length <= extent.ram_bytes);
            if written {
                assert!(stored.end <= file.item.size.next_multiple_of(SECTOR), "data after the end");
                if !file.item.flags.contains(InodeFlags::NODATASUM) {
                    let end = part.disk_address.0 + part.disk_length;
                    checksummed.extend((part.disk_address.0..end).step_by(SECTOR as usize));
                }
            }
            let reference = DataReference {
                address: part.disk_address,
                length: part.disk_length,
                tree: tree.id(),
                inode: file.inode,
                offset: FileOffset(stored.start.wrapping_sub(part.offset)),
            };
            *references.entry(reference).or_default() += 1;
        }
        assert!(no_holes || end >= file.item.size, "a gap at the end: {:?}", self.map(index));
        assert_eq!(file.item.nbytes, nbytes, "nbytes of {:?}", self.map(index));
    }

    /// Writes all trees to the device and reads them back: each block passes its checks.
    pub(super) fn write_out(&self) {
        for tree in self.trees.iter().chain([&self.checksums]) {
            self.forest.write_out(tree);
        }
    }
}

/// Returns bytes that compress either well or not at all.
pub(super) fn bytes(random: &mut fastrand::Rng, length: usize) -> Vec<u8> {
    if random.bool() {
        let mut bytes = vec![0; length];
        random.fill(&mut bytes);
        return bytes;
    }
    let word = random.u32(..).to_le_bytes();
    (0..length).map(|at| if at % 7 == 0 { 0 } else { word[at % 4] }).collect()
}
