//! Loading block groups and their free space when a file system is opened for writing.
//!
//! Owns [`load`]. It cross-checks everything:
//! - each chunk has a block group with its length and flags;
//! - used and free bytes add up to the length;
//! - superblock locations are not in use.
//!
//! **Locks**: only [`Space`]'s.
//!
//! Kernel counterparts: `btrfs_read_block_groups`, `check_chunk_block_group_mappings`,
//! `load_extent_tree_free`, `exclude_super_stripes` (`fs/btrfs/block-group.c`),
//! `load_free_space_tree` (`fs/btrfs/free-space-tree.c`).

use super::free_space_items::{info_key, read_info, read_ranges};
use super::range_set::RangeSet;
use super::superblock_exclusions::superblock_exclusions;
use super::{LogicalRange, NewBlockGroup, Space};
use crate::btree::Tree;
use crate::errors::{Error, Result};
use crate::volume::Chunk;
use crate::volume::chunk_map::ChunkMap;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio_format::{Corrupt, Geometry, ItemType, Key};

/// The trees that record space.
#[derive(Clone, Copy, Debug)]
pub struct SpaceTrees<'a> {
    /// The extent tree.
    pub extent: &'a Tree,
    /// The block-group tree, if the file system has one; otherwise the extent tree holds the items.
    pub block_group: Option<&'a Tree>,
    /// The free-space tree, if there is one and FREE_SPACE_TREE_VALID is set. Without it the extent
    /// tree is walked: ranges without an extent item are free. The v1 cache is not read; the kernel
    /// ignores it too unless the superblock's `cache_generation` equals its generation
    /// (`btrfs_read_block_groups`).
    pub free_space: Option<&'a Tree>,
}

/// Reads the block group of every chunk and its free space. `devices` is the number of devices on
/// which chunks can be created.
///
/// # Errors
/// Fails on an unreadable block; [`Error::MissingItem`] for a chunk without a block group or a
/// block group without free-space items; [`Error::Item`] if two sources contradict each other.
pub fn load(trees: SpaceTrees<'_>, chunks: &ChunkMap, geometry: &Geometry, devices: usize) -> Result<Space> {
    let space = Space::new(geometry, devices);
    for chunk in chunks.iter() {
        let group = read_block_group(trees, chunk, geometry)?;
        let free = match trees.free_space {
            Some(tree) => read_free_space(tree, group.range, geometry)?,
            None => free_between_extents(trees.extent, group.range, geometry)?,
        };
        let wrong = |value, why| Err(group_error(trees, group.range, "used", value, why));
        if free.bytes() + group.used != group.range.length {
            return wrong(group.used, "used and free bytes do not add up to the block group's length");
        }
        let exclusions = superblock_exclusions(chunk);
        for range in &exclusions {
            let inside = range.start.0.max(group.range.start.0)..range.end.0.min(group.range.end().0);
            if inside.start < inside.end && free.holder(&inside).is_none() {
                return wrong(inside.start, "an extent overlaps a superblock copy");
            }
        }
        space.add_block_group(&group, free.iter(), &exclusions);
    }
    Ok(space)
}

fn holder<'a>(trees: SpaceTrees<'a>) -> &'a Tree {
    trees.block_group.unwrap_or(trees.extent)
}

fn block_group_key(range: LogicalRange) -> Key {
    Key::new(range.start.0, ItemType::BLOCK_GROUP_ITEM, range.length)
}

fn group_error(
    trees: SpaceTrees<'_>,
    range: LogicalRange,
    field: &'static str,
    value: u64,
    why: &'static str,
) -> Error {
    let reason = Corrupt::field("block group", field, value, why);
    Error::Item { tree: holder(trees).id(), key: block_group_key(range), reason }
}

/// Reads the block group of a chunk.
fn read_block_group(trees: SpaceTrees<'_>, chunk: &Chunk, geometry: &Geometry) -> Result<NewBlockGroup> {
    let range = LogicalRange { start: chunk.start(), length: chunk.length() };
    let (tree, key) = (holder(trees), block_group_key(range));
    let Some(item) = tree.get(&key)? else {
        return Err(Error::MissingItem { tree: tree.id(), key, what: "block group of a chunk" });
    };
    let item = BlockGroupItem::parse(item.data())
        .and_then(|item| item.validate(&key, geometry).map(|()| item))
        .map_err(|reason| Error::Item { tree: tree.id(), key, reason })?;
    let wrong = |value, why| Err(group_error(trees, range, "flags", value, why));
    if item.flags != chunk.flags() {
        return wrong(item.flags.bits(), "differ from its chunk's");
    }
    let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    if item.flags.contains(mixed) && !geometry.incompat.contains(IncompatFeatures::MIXED_GROUPS) {
        return wrong(item.flags.bits(), "mixes data and metadata without the superblock's MIXED_GROUPS");
    }
    Ok(NewBlockGroup { range, flags: item.flags, used: item.used, row: chunk.row_bytes() })
}

/// Returns a block group's free ranges according to the free-space tree.
///
/// # Errors
/// Fails on an unreadable block; [`Error::MissingItem`] if there are no items; [`Error::Item`] if
/// items are malformed or contradict each other.
pub fn read_free_space(tree: &Tree, group: LogicalRange, geometry: &Geometry) -> Result<RangeSet> {
    let Some(info) = read_info(tree, group, geometry)? else {
        let what = "free space of a block group";
        return Err(Error::MissingItem { tree: tree.id(), key: info_key(group), what });
    };
    Ok(read_ranges(tree, group, &info, geometry)?.free)
}

/// Returns the ranges of a block group that no extent item covers.
///
/// # Errors
/// Fails on an unreadable block; [`Error::Item`] if extents overlap or extend beyond the block
/// group.
pub fn free_between_extents(
    extent_tree: &Tree,
    group: LogicalRange,
    geometry: &Geometry,
) -> Result<RangeSet> {
    let mut free = RangeSet::default();
    let mut at = group.start.0;
    let first = Key::new(at, ItemType::EXTENT_ITEM, 0);
    for item in extent_tree.range(first..=Key::last_of(group.end().0 - 1)) {
        let key = item?.key;
        let length = match key.item_type {
            ItemType::EXTENT_ITEM => key.offset,
            ItemType::METADATA_ITEM => geometry.node_size.into(),
            _ => continue,
        };
        let end = key.objectid.checked_add(length).filter(|&end| end <= group.end().0);
        let wrong = |why| {
            let reason = Corrupt::field("extent", "address", key.objectid, why);
            Err(Error::Item { tree: extent_tree.id(), key, reason })
        };
        let Some(end) = end else { return wrong("extends beyond its block group") };
        if key.objectid < at {
            return wrong("overlaps the previous extent");
        }
        if at < key.objectid {
            free.insert(at..key.objectid);
        }
        at = end;
    }
    if at < group.end().0 {
        free.insert(at..group.end().0);
    }
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::super::{SpaceKind, SpaceTotals, free_space_tree};
    use super::*;
    use crate::btree::testing::{CHUNK_LENGTH, TestForest};
    use crate::btree::{Change, LiveTree};
    use crate::volume::testing::CHUNK_START;
    use papilio_format::objectid;

    const NODE: u64 = 16384;
    const GROUP: LogicalRange = LogicalRange { start: CHUNK_START, length: CHUNK_LENGTH };

    /// Superblock address in the chunk; logical addresses equal those of its device.
    const SUPERBLOCK: u64 = 64 << 20;

    struct Trees {
        forest: TestForest,
        extent: LiveTree,
        free_space: LiveTree,
    }

    impl Trees {
        /// Creates a system chunk with a tree block at each of `extents`, and `used` in its block
        /// group.
        fn new(extents: &[u64], used: u64) -> Self {
            let forest = TestForest::new(NODE as u32);
            let extent = forest.live_tree(objectid::EXTENT_TREE);
            let free_space = forest.live_tree(objectid::FREE_SPACE_TREE);
            let item = BlockGroupItem { used, chunk_objectid: 256, flags: BlockGroupFlags::SYSTEM };
            let mut items = vec![(block_group_key(GROUP), item.to_bytes().to_vec())];
            // The key holds a tree block's level, and a data extent's length.
            items.extend(extents.iter().map(|&at| (Key::new(at, ItemType::METADATA_ITEM, 0), vec![0; 33])));
            let trees = Self { forest, extent, free_space };
            trees.put(items);
            trees
        }

        fn put(&self, items: Vec<(Key, Vec<u8>)>) {
            let mut changes: Vec<_> =
                items.into_iter().map(|(key, data)| Change::Put { key, data }).collect();
            changes.sort_by_key(Change::key);
            self.extent.edit(&self.forest.allocator).apply(&changes).unwrap();
        }

        /// Builds the free-space tree from the gaps between the extents.
        fn make_free_space(&self) {
            let geometry = self.forest.volume.geometry();
            let free = free_between_extents(&self.extent.tree(), GROUP, &geometry).unwrap();
            let mut editor = self.free_space.edit(&self.forest.allocator);
            free_space_tree::create(&mut editor, GROUP, &free).unwrap();
        }

        fn load(&self, from_tree: bool) -> Result<Space> {
            let (extent, free_space) = (self.extent.tree(), self.free_space.tree());
            let free_space = from_tree.then_some(&free_space);
            let trees = SpaceTrees { extent: &extent, block_group: None, free_space };
            load(trees, &self.forest.volume.chunk_map(), &self.forest.volume.geometry(), 1)
        }
    }

    fn item_error(result: Result<Space>) -> String {
        match result.map(drop) {
            Err(error @ Error::Item { .. }) => error.to_string(),
            other => panic!("{other:?} is not an item error"),
        }
    }

    #[test]
    fn a_full_group_has_no_free_range() {
        let start = CHUNK_START.0;
        let trees = Trees::new(&[start, start + NODE, start + 2 * NODE], 3 * NODE);
        let geometry = trees.forest.volume.geometry();
        let free = |nodes: u64| {
            let group = LogicalRange { start: CHUNK_START, length: nodes * NODE };
            free_between_extents(&trees.extent.tree(), group, &geometry)
        };
        assert!(free(3).unwrap().is_empty());
        assert_eq!(free(4).unwrap().bytes(), NODE);
        // Those of the next group do not count.
        assert!(free(2).unwrap().is_empty());
    }

    #[test]
    fn both_sources_agree() {
        let start = CHUNK_START.0;
        let extents = [start, start + NODE, start + 5 * NODE, SUPERBLOCK - NODE];
        let trees = Trees::new(&extents, 4 * NODE);
        trees.make_free_space();
        for from_tree in [false, true] {
            let space = trees.load(from_tree).unwrap();
            let excluded = 64 << 10;
            let free = CHUNK_LENGTH - 4 * NODE - excluded;
            let expected =
                SpaceTotals { total: CHUNK_LENGTH, used: 4 * NODE, free, ..SpaceTotals::default() };
            assert_eq!(space.totals(SpaceKind::System), expected);
            assert_eq!(space.bytes_used(), 4 * NODE);
            let claim = |start, length| {
                space.claim(LogicalRange { start: papilio_format::LogicalAddress(start), length }).is_ok()
            };
            assert!(!claim(SUPERBLOCK, NODE), "a superblock is there");
            assert!(!claim(start + NODE, NODE), "a tree block is there");
            assert!(claim(SUPERBLOCK + excluded, NODE));
            assert!(claim(start + 2 * NODE, 3 * NODE));
            assert!(space.dirty_groups().is_empty());
        }
    }

    #[test]
    fn block_groups_may_be_in_their_own_tree() {
        let trees = Trees::new(&[CHUNK_START.0], NODE);
        let key = block_group_key(GROUP);
        let item = trees.extent.edit(&trees.forest.allocator).get(&key).unwrap().unwrap().data().to_vec();
        trees.extent.edit(&trees.forest.allocator).remove(key).unwrap();
        let block_groups = trees.forest.live_tree(objectid::BLOCK_GROUP_TREE);
        block_groups.edit(&trees.forest.allocator).insert(key, &item).unwrap();
        let (extent, block_groups) = (trees.extent.tree(), block_groups.tree());
        let (chunks, geometry) = (trees.forest.volume.chunk_map(), trees.forest.volume.geometry());
        let sources = SpaceTrees { extent: &extent, block_group: Some(&block_groups), free_space: None };
        assert_eq!(load(sources, &chunks, &geometry, 1).unwrap().bytes_used(), NODE);
    }

    #[test]
    fn contradictions_are_errors() {
        let start = CHUNK_START.0;
        let load = |extents: &[u64], used, from_tree| Trees::new(extents, used).load(from_tree);
        assert!(item_error(load(&[start], 2 * NODE, false)).contains("do not add up"));
        assert!(item_error(load(&[start, start + 4096], 2 * NODE, false)).contains("overlaps"));
        assert!(item_error(load(&[start + CHUNK_LENGTH - 4096], NODE, false)).contains("extends beyond"));
        assert!(item_error(load(&[SUPERBLOCK - 4096], NODE, false)).contains("overlaps a superblock"));
        assert!(matches!(load(&[start], NODE, true), Err(Error::MissingItem { .. })), "no free-space items");

        let trees = Trees::new(&[start], NODE);
        trees.make_free_space();
        trees.put(vec![(Key::new(start + NODE, ItemType::METADATA_ITEM, 0), vec![0; 33])]);
        assert!(item_error(trees.load(false)).contains("do not add up"));
        trees.load(true).expect("the block group and the free-space tree agree");

        let trees = Trees::new(&[], 0);
        let item = BlockGroupItem { used: 0, chunk_objectid: 256, flags: BlockGroupFlags::DATA };
        trees.put(vec![(block_group_key(GROUP), item.to_bytes().to_vec())]);
        assert!(item_error(trees.load(false)).contains("differ from its chunk's"));
        trees.extent.edit(&trees.forest.allocator).remove(block_group_key(GROUP)).unwrap();
        assert!(matches!(trees.load(false), Err(Error::MissingItem { .. })));
    }
}
