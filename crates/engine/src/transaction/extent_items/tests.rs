//! Reference changes of extents beside a model, and contradictions of the extent tree.

use super::*;
use crate::btree::LiveTree;
use crate::btree::testing::TestForest;
use crate::transaction::extent_refs::ExtentRefs;
use papilio_format::{FileOffset, InodeNumber, objectid};
use std::collections::HashMap;

const ADDRESS: LogicalAddress = LogicalAddress(1 << 30);
const LENGTH: u64 = 1 << 20;
const NODE: u64 = 4096;
const LEAF_LEVEL: RefKind = RefKind::TreeBlock { level: 0 };

/// An extent tree, and the counts that it should have.
struct World {
    forest: TestForest,
    tree: LiveTree,
    geometry: Geometry,
    counts: BTreeMap<Reference, u32>,
}

impl World {
    fn new() -> Self {
        let forest = TestForest::new(NODE as u32);
        let tree = forest.live_tree(objectid::EXTENT_TREE);
        let geometry = forest.volume.geometry();
        Self { forest, tree, geometry, counts: BTreeMap::new() }
    }

    /// Applies a head, and compares everything that the tree says about the extent.
    fn apply(&mut self, head: &Head) -> Applied {
        let tree = self.tree.tree();
        let applied = ExtentItems::new(&tree, &self.geometry).apply(ADDRESS, head).unwrap();
        let mut changes = applied.changes.clone();
        changes.sort_by_key(Change::key);
        self.tree.edit(&self.forest.allocator).apply(&changes).unwrap();
        for (reference, change) in head.changes.iter() {
            let count = self.counts.entry(*reference).or_default();
            *count = count.checked_add_signed(i32::try_from(*change).unwrap()).unwrap();
        }
        self.counts.retain(|_, count| *count > 0);
        self.compare(head.kind);
        assert_eq!(applied.removed, self.counts.is_empty());
        applied
    }

    fn compare(&self, kind: RefKind) {
        let tree = self.tree.tree();
        let info = extent_info(&tree, ADDRESS, LENGTH, kind).unwrap();
        let found = ExtentRefs::find(&tree, ADDRESS, NODE).unwrap();
        let (Some(info), Some(found)) = (info, found) else {
            assert!(self.counts.is_empty());
            assert_eq!(tree.items().count(), 0, "no reference is left");
            return;
        };
        assert_eq!(found.refs.iter().copied().collect::<BTreeMap<_, _>>(), self.counts);
        assert_eq!(found.refs.len(), self.counts.len(), "each reference is there once");
        assert_eq!(info.header.refs, self.counts.values().map(|count| u64::from(*count)).sum::<u64>());
        let all = info.references(&tree).unwrap();
        let counted = all.iter().filter_map(|found| Some((Reference::of(found)?, found.count())));
        assert_eq!(counted.collect::<BTreeMap<_, _>>(), self.counts);
        // Inline as much as the kernel has inline.
        let item = tree.get(&info.key).unwrap().unwrap();
        assert!(item.data().len() <= inline_limit(), "{} bytes", item.data().len());
        for (reference, count) in &self.counts {
            let inline = info.inline_count(reference);
            assert!(inline == 0 || inline == u64::from(*count));
        }
    }

    fn inline(&self) -> usize {
        extent_info(&self.tree.tree(), ADDRESS, LENGTH, RefKind::Data).unwrap().unwrap().inline.len()
    }

    /// Returns the error of a head that contradicts the tree.
    fn refused(&self, head: &Head) -> String {
        let tree = self.tree.tree();
        ExtentItems::new(&tree, &self.geometry).apply(ADDRESS, head).unwrap_err().to_string()
    }
}

/// `BTRFS_MAX_EXTENT_ITEM_SIZE`, for these nodes.
fn inline_limit() -> usize {
    (NODE as usize - NodeHeader::SIZE) / 16 - ItemHeader::SIZE
}

fn data(inode: u64, offset: u64) -> Reference {
    Reference::Data { root: objectid::FS_TREE, inode: InodeNumber(inode), offset: FileOffset(offset) }
}

fn head(kind: RefKind, new: bool, changes: &[(Reference, i64)]) -> Head {
    let mut head = Head::new(LENGTH, kind);
    (head.new, head.generation) = (new, Generation(10));
    for (reference, change) in changes {
        head.changes.add(*reference, *change);
    }
    head
}

/// References of one inode whose items have the same key.
fn colliding() -> [Reference; 2] {
    let mut random = fastrand::Rng::with_seed(3);
    let mut known: HashMap<Key, Reference> = HashMap::new();
    let pair = (0..10_000_000).find_map(|_| {
        let reference = data(300, random.u64(..1 << 40) * 4096);
        let (key, _) = reference.counted(1).encode_keyed(ADDRESS);
        let before = known.insert(key, reference).filter(|other| *other != reference);
        before.map(|other| [other, reference])
    });
    pair.expect("some of 10,000,000 hashes of 32 bits collide")
}

#[test]
fn references_match_a_model() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut references: Vec<_> = (0..20).map(|number| data(257 + number, number * 4096)).collect();
    references.extend((0..10).map(|number| Reference::SharedData(LogicalAddress(number << 20))));
    references.extend(colliding());
    for simple in [false, true] {
        let mut world = World::new();
        let mut first = head(RefKind::Data, true, &[(references[0], 2)]);
        first.owner = simple.then_some(objectid::FS_TREE);
        let applied = world.apply(&first);
        assert_eq!((applied.owner, applied.generation), (first.owner, Generation(10)));
        let (mut most_inline, mut keyed) = (0, 0);
        for round in 0..600 {
            // Grows and shrinks in turn, so that references move between the item and their own.
            let grows = round / 100 % 2 == 0;
            let mut changes = Vec::new();
            for _ in 0..random.usize(1..6) {
                let reference = references[random.usize(..references.len())];
                let count = i64::from(world.counts.get(&reference).copied().unwrap_or_default());
                let most = if grows { 3 } else { 0 };
                let known = changes.iter().any(|(other, _)| *other == reference);
                match random.i64(-count..=most) {
                    change if change != 0 && !known => changes.push((reference, change)),
                    _ => {}
                }
            }
            let left: i64 = world.counts.values().map(|count| i64::from(*count)).sum();
            let sum: i64 = changes.iter().map(|(_, change)| change).sum();
            if changes.is_empty() || left + sum == 0 {
                continue;
            }
            let applied = world.apply(&head(RefKind::Data, false, &changes));
            assert_eq!(applied.owner, first.owner, "the item keeps the tree that it is charged to");
            most_inline = most_inline.max(world.inline());
            keyed = keyed.max(world.tree.tree().items().count() - 1);
        }
        assert!(most_inline > 3 && keyed > 5, "{most_inline} inline, {keyed} keyed");
        let last: Vec<_> =
            world.counts.iter().map(|(reference, count)| (*reference, -i64::from(*count))).collect();
        assert!(world.apply(&head(RefKind::Data, false, &last)).removed);
    }
}

#[test]
fn references_of_colliding_keys_have_items_of_their_own() {
    let mut world = World::new();
    let pair = colliding();
    // As many references as fit into the item, so that more have items of their own.
    let fill: Vec<_> = (0..30).map(|number| (data(400 + number, 0), 1)).collect();
    world.apply(&head(RefKind::Data, true, &fill));
    let inline = world.inline();
    assert!((5..10).contains(&inline), "{inline}");
    world.apply(&head(RefKind::Data, false, &[(pair[0], 1), (pair[1], 2)]));
    let (key, _) = pair[0].counted(1).encode_keyed(ADDRESS);
    let second = Key { offset: key.offset + 1, ..key };
    assert!(world.tree.tree().get(&second).unwrap().is_some());
    world.apply(&head(RefKind::Data, false, &[(pair[1], 3)]));
    // The first key is free now, and the second still names its reference.
    world.apply(&head(RefKind::Data, false, &[(pair[0], -1)]));
    world.apply(&head(RefKind::Data, false, &[(pair[1], -1)]));
    world.apply(&head(RefKind::Data, false, &[(pair[1], 1)]));
    // Another reference takes the free key, and leaves it in the same head.
    world.apply(&head(RefKind::Data, false, &[(pair[0], 4)]));
    world.apply(&head(RefKind::Data, false, &[(pair[0], -4), (pair[1], 1)]));
    world.apply(&head(RefKind::Data, false, &[(pair[1], -1)]));
    world.apply(&head(RefKind::Data, false, &[(pair[0], 4), (pair[1], -1)]));
    world.apply(&head(RefKind::Data, false, &[(pair[0], 1), (pair[1], 1)]));
    world.apply(&head(RefKind::Data, false, &[(pair[0], -1)]));
    world.apply(&head(RefKind::Data, false, &[(pair[0], -4), (pair[1], -5)]));
    assert_eq!(world.inline(), inline);
    // No other item follows the first.
    let mut alone = World::new();
    alone.apply(&head(RefKind::Data, true, &fill[..inline]));
    for reference in pair {
        alone.apply(&head(RefKind::Data, false, &[(reference, 1)]));
    }
    assert!(alone.tree.tree().get(&second).unwrap().is_some());
}

#[test]
fn tree_blocks_have_their_level_in_the_key_or_in_the_item() {
    for skinny in [true, false] {
        let mut world = World::new();
        world.geometry.incompat.set(IncompatFeatures::SKINNY_METADATA, skinny);
        let mut new = Head::new(LENGTH, RefKind::TreeBlock { level: 2 });
        (new.new, new.generation, new.full_backref) = (true, Generation(10), true);
        new.first_key = Key::new(256, ItemType::INODE_ITEM, 5);
        new.changes.add(Reference::Tree(objectid::FS_TREE), 1);
        let tree = world.tree.tree();
        let applied = ExtentItems::new(&tree, &world.geometry).apply(ADDRESS, &new).unwrap();
        let [Change::Put { key, data }] = &applied.changes[..] else { panic!("{applied:?}") };
        let parsed = ExtentItem::parse(key.item_type, data).unwrap();
        assert!(parsed.header.flags.contains(ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF));
        if skinny {
            assert_eq!(*key, Key::new(ADDRESS.0, ItemType::METADATA_ITEM, 2));
            assert_eq!(parsed.tree_block, None);
        } else {
            assert_eq!(*key, Key::new(ADDRESS.0, ItemType::EXTENT_ITEM, LENGTH));
            assert_eq!(parsed.tree_block, Some(TreeBlockInfo { first_key: new.first_key, level: 2 }));
        }
        world.tree.edit(&world.forest.allocator).apply(&applied.changes).unwrap();
        let info = extent_info(&world.tree.tree(), ADDRESS, LENGTH, new.kind).unwrap().unwrap();
        assert_eq!(info.first_key(), (!skinny).then_some(new.first_key));
    }
}

#[test]
fn contradictions_are_errors() {
    let mut world = World::new();
    let (one, two) = (data(257, 0), data(258, 0));
    let plain = |changes: &[(Reference, i64)]| head(RefKind::Data, false, changes);
    let missing = world.refused(&plain(&[(one, 1)]));
    assert!(missing.contains("an extent that is in use"), "{missing}");
    world.apply(&head(RefKind::Data, true, &[(one, 2), (two, 1)]));
    for (changes, reason) in [
        (vec![(one, -4)], "fewer references than are being dropped"),
        (vec![(one, -3)], "fewer than are being dropped"),
        (vec![(data(259, 0), -1)], "fewer than are being dropped"),
        // As many as there are in all, of one reference too few and of the other too many.
        (vec![(one, -2), (two, 1), (data(259, 0), -2)], "fewer than are being dropped"),
    ] {
        let error = world.refused(&plain(&changes));
        assert!(error.contains(reason), "{changes:?}: {error}");
    }
    // A count that lacks references which the item has.
    let tree = world.tree.tree();
    let mut info = extent_info(&tree, ADDRESS, LENGTH, RefKind::Data).unwrap().unwrap();
    info.header.refs = 2;
    let data = ExtentItem::encode(&info.header, None, &info.inline);
    world.tree.edit(&world.forest.allocator).apply(&[Change::Put { key: info.key, data }]).unwrap();
    let error = world.refused(&plain(&[(one, -2)]));
    assert!(error.contains("references are left"), "{error}");
}

#[test]
fn a_parent_refers_to_a_tree_block_once() {
    let mut world = World::new();
    let (tree, parent) =
        (Reference::Tree(objectid::FS_TREE), Reference::SharedBlock(LogicalAddress(1 << 20)));
    let refused = |world: &World, changes: &[(Reference, i64)], new| {
        let error = world.refused(&head(LEAF_LEVEL, new, changes));
        assert!(error.contains("a second reference of the same parent"), "{error}");
    };
    refused(&world, &[(tree, 2)], true);
    let mut new = head(LEAF_LEVEL, true, &[(tree, 1)]);
    new.length = NODE;
    world.apply(&new);
    refused(&world, &[(tree, 1)], false);
    world.apply(&head(LEAF_LEVEL, false, &[(parent, 1)]));
    refused(&world, &[(parent, 1)], false);
    refused(&world, &[(Reference::SharedBlock(LogicalAddress(2 << 20)), 2)], false);
    world.apply(&head(LEAF_LEVEL, false, &[(tree, -1)]));
    // A new flag needs no new reference.
    let mut full = head(LEAF_LEVEL, false, &[]);
    full.full_backref = true;
    world.apply(&full);
    let info = extent_info(&world.tree.tree(), ADDRESS, NODE, LEAF_LEVEL).unwrap().unwrap();
    assert!(info.header.flags.contains(ExtentFlags::FULL_BACKREF));
    // Nothing to change.
    let nothing = world.apply(&head(LEAF_LEVEL, false, &[]));
    assert!(nothing.changes.is_empty());
}
