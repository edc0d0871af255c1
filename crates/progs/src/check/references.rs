//! References to extents, found in two ways: in all trees, and as back references in the extent
//! tree.
//!
//! Owns [`References`]: the extents and back references of the extent tree, and the references that
//! the walks of all trees found. They are flat vectors of fixed-size records, sorted and merged at
//! the end. Their memory is about the size of the references on disk.
//!
//! A back reference names the referring block, not a path to it: by address (as parent) if its
//! extent has FULL_BACKREF, otherwise by its owner (as root). Each block therefore counts once,
//! however many snapshots share it.
//!
//! Kernel counterparts: `__btrfs_mod_ref` (`fs/btrfs/extent-tree.c`), `update_ref_for_cow`
//! (`fs/btrfs/ctree.c`).

use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use super::walker::{Seen, Visit};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::back_ref::{BackRef, KeyedRefs};
use papilio_format::items::extent::{ExtentFlags, ExtentHeader, ExtentItem, TreeBlockInfo};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::{
    FileOffset, Generation, Geometry, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// The most back references that a repair writes into an extent item itself.
const MOST_INLINE: usize = 8;
/// The most data extents without an extent item that a check remembers for a repair.
const MOST_UNLISTED: usize = 10_000;

/// One extent of the extent tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub start: u64,
    pub(crate) length: u64,
    refs: u64,
    pub(crate) generation: u64,
    pub(super) flags: ExtentFlags,
    /// Level of a tree block, 0 for data.
    pub(crate) level: u8,
}

impl Extent {
    /// An extent that was found without its item.
    pub(super) fn new(start: u64, length: u64, generation: u64, flags: ExtentFlags, level: u8) -> Self {
        Self { start, length, refs: 0, generation, flags, level }
    }

    pub(crate) fn end(&self) -> u64 {
        // Cannot overflow: the tree checker refuses such an item.
        self.start.saturating_add(self.length)
    }

    pub(crate) fn is_data(&self) -> bool {
        self.flags.contains(ExtentFlags::DATA)
    }
}

/// The referring side of a reference, as a back reference names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    Tree { root: u64 },
    SharedTree { parent: u64 },
    Data { root: u64, inode: u64, offset: u64 },
    SharedData { parent: u64 },
}

impl Holder {
    /// Returns the holder of what a block of the tree `root` points to: the block `parent` where it
    /// has full back references, else the tree.
    pub(super) fn of_child(root: u64, parent: u64, full: bool) -> Self {
        if full { Self::SharedTree { parent } } else { Self::Tree { root } }
    }

    /// As [`Self::of_child`], for the data of a file extent, of which `offset` bytes are skipped.
    pub(super) fn of_data(root: u64, parent: u64, full: bool, key: Key, offset: u64) -> Self {
        match full {
            true => Self::SharedData { parent },
            false => Self::Data { root, inode: key.objectid, offset: key.offset.wrapping_sub(offset) },
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tree { root } => write!(f, "tree {}", objectid::Objectid(root)),
            Self::SharedTree { parent } | Self::SharedData { parent } => write!(f, "block {parent}"),
            Self::Data { root, inode, offset } => {
                let root = objectid::Objectid(root);
                write!(f, "tree {root}, inode {inode}, offset {}", offset as i64)
            }
        }
    }
}

/// References of one holder to one extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    pub(super) extent: u64,
    pub(super) holder: Holder,
    pub(super) count: u64,
}

impl Reference {
    pub(super) fn order(&self) -> (u64, Holder) {
        (self.extent, self.holder)
    }
}

/// The trees that were read completely, so that absent items are missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Complete {
    pub(super) extent_tree: bool,
    /// Whether all trees that refer to extents were.
    pub(super) referrers: bool,
}

impl Complete {
    fn all(self) -> bool {
        self.extent_tree && self.referrers
    }
}

/// All references, from both sides.
#[derive(Debug)]
pub(crate) struct References {
    pub(super) geometry: Geometry,
    pub(crate) extents: Vec<Extent>,
    /// Back references of the extent tree.
    pub(super) stored: Vec<Reference>,
    /// References that the walks of all trees found.
    pub(super) found: Vec<Reference>,
    /// Length and generation of data extents without an extent item, by address.
    pub(super) unlisted: HashMap<u64, (u64, u64)>,
    /// Start and end of data extents as file extents say, where the extent tree says otherwise.
    pub(super) claims: Vec<(u64, u64)>,
    /// The trees that simple quotas charge for data extents, by address.
    owners: HashMap<u64, TreeId>,
    /// The first keys of tree blocks, if their extent items repeat them.
    first_keys: HashMap<u64, Key>,
}

impl References {
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            extents: Vec::new(),
            stored: Vec::new(),
            found: Vec::new(),
            unlisted: HashMap::new(),
            claims: Vec::new(),
            owners: HashMap::new(),
            first_keys: HashMap::new(),
        }
    }

    /// Reads a leaf of the extent tree, whose items were validated with the block.
    pub(super) fn read_extent_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let (key, data) = (view.key(slot), view.item(slot));
            match key.item_type {
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => self.read_extent(&key, data),
                ItemType::TREE_BLOCK_REF
                | ItemType::SHARED_BLOCK_REF
                | ItemType::EXTENT_DATA_REF
                | ItemType::SHARED_DATA_REF => {
                    for reference in KeyedRefs::parse(&key, data).into_iter().flatten() {
                        self.store(key.objectid, &reference);
                    }
                }
                _ => {}
            }
        }
    }

    fn read_extent(&mut self, key: &Key, data: &[u8]) {
        let Ok(item) = ExtentItem::parse(key.item_type, data) else { return };
        let skinny = key.item_type == ItemType::METADATA_ITEM;
        let level = match item.tree_block {
            Some(info) => info.level,
            None if skinny => key.offset as u8,
            None => 0,
        };
        self.extents.push(Extent {
            start: key.objectid,
            length: if skinny { self.geometry.node_size.into() } else { key.offset },
            refs: item.header.refs,
            generation: item.header.generation.0,
            flags: item.header.flags,
            level,
        });
        for reference in item.inline_refs().map_while(Result::ok) {
            self.store(key.objectid, &reference);
        }
    }

    fn store(&mut self, extent: u64, reference: &BackRef) {
        let holder = match *reference {
            // Names the subvolume that simple quotas charge; it is not a reference.
            BackRef::Owner { root } => {
                self.owners.insert(extent, root);
                return;
            }
            BackRef::TreeBlock { root } => Holder::Tree { root: root.0 },
            BackRef::SharedBlock { parent } => Holder::SharedTree { parent: parent.0 },
            BackRef::SharedData { parent, .. } => Holder::SharedData { parent: parent.0 },
            BackRef::Data { root, inode, offset, .. } => {
                Holder::Data { root: root.0, inode: inode.0, offset: offset.0 }
            }
        };
        self.stored.push(Reference { extent, holder, count: reference.count().into() });
    }

    /// Ends the walk of the extent tree: afterwards extents can be looked up.
    pub(super) fn extents_known(&mut self) {
        // Already sorted, unless the tree is damaged.
        self.extents.sort_by_key(|extent| extent.start);
    }

    /// Returns the start of the data extent that contains an address.
    pub(crate) fn data_extent_of(&self, address: u64) -> Option<u64> {
        let index = self.extents.partition_point(|extent| extent.start <= address).checked_sub(1)?;
        let extent = &self.extents[index];
        (extent.is_data() && address < extent.end()).then_some(extent.start)
    }

    /// Returns the extent that starts at an address.
    pub(crate) fn extent_at(&self, start: u64) -> Option<&Extent> {
        let index = self.extents.binary_search_by_key(&start, |extent| extent.start).ok()?;
        Some(&self.extents[index])
    }

    /// Counts the reference of a root item to its root block. That of a relocation tree names the
    /// block itself as parent.
    pub(super) fn count_root(&mut self, tree: TreeId, root: LogicalAddress) {
        let holder = if tree == objectid::TREE_RELOC {
            Holder::SharedTree { parent: root.0 }
        } else {
            Holder::Tree { root: tree.0 }
        };
        self.count(root.0, holder);
    }

    fn count(&mut self, extent: u64, holder: Holder) {
        if let Some(last) = self.found.last_mut()
            && last.order() == (extent, holder)
        {
            last.count += 1;
            return;
        }
        self.found.push(Reference { extent, holder, count: 1 });
    }

    /// Counts the references of a block; call it once for each block.
    pub(super) fn count_block(&mut self, visit: &Visit<'_>, findings: &mut Findings) {
        let block = visit.block;
        let parent = block.address().0;
        let root = block.owner().0;
        // Only file system trees share blocks; they are walked after the extent tree.
        let full = objectid::is_fs_tree(block.owner())
            && self.extent_at(parent).is_some_and(|extent| extent.flags.contains(ExtentFlags::FULL_BACKREF));
        let view = block.view();
        if !self.geometry.incompat.contains(IncompatFeatures::SKINNY_METADATA) {
            self.first_keys.insert(parent, if view.is_empty() { Key::MIN } else { view.key(0) });
        }
        if block.level() > 0 {
            let holder = Holder::of_child(root, parent, full);
            for slot in visit.live.clone() {
                self.count(view.child(slot).address.0, holder);
            }
            return;
        }
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let Ok(item) = FileExtentItem::parse(view.item(slot)) else { continue };
            let (FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)) = item.content else {
                continue;
            };
            if part.is_hole() {
                continue;
            }
            let start = part.disk_address.0;
            let holder = Holder::of_data(root, parent, full, key, part.offset);
            let listed = self.extent_at(start).map(|extent| extent.length);
            let claim = (start, start.saturating_add(part.disk_length));
            if listed != Some(part.disk_length) && self.claims.last() != Some(&claim) {
                self.claims.push(claim);
            }
            if listed.is_none() && self.unlisted.len() < MOST_UNLISTED {
                self.unlisted.insert(start, (part.disk_length, item.generation.0));
            }
            if let Some(length) = listed
                && length != part.disk_length
            {
                mend_length(visit.tree, key, &item, length, findings);
                findings.add(
                    FindingKind::ExtentLength,
                    Place { address: Some(part.disk_address), ..Place::item(visit.tree, key) },
                    format_args!(
                        "the file extent says {} bytes, the extent item {}",
                        part.disk_length, length
                    ),
                );
            }
            self.count(start, holder);
        }
    }

    /// Compares both sides, and each extent with the tree block at its address.
    pub(super) fn compare(
        &mut self,
        seen: &HashMap<LogicalAddress, Seen>,
        complete: Complete,
        findings: &mut Findings,
    ) {
        merge_equal(&mut self.found);
        merge_equal(&mut self.stored);
        self.claims.sort_unstable();
        self.claims.dedup();
        self.check_overlaps(findings);
        let (mut found, mut stored) = (&self.found[..], &self.stored[..]);
        for (index, extent) in self.extents.iter().enumerate() {
            let missing = take_before(&mut found, extent.start);
            report_missing_extents(missing, complete, findings);
            self.mend_missing(missing, seen, complete, findings);
            report_orphans(take_before(&mut stored, extent.start), complete, findings);
            let found = take_at(&mut found, extent.start);
            let stored = take_at(&mut stored, extent.start);
            let faults = findings.total();
            compare_extent(extent, found, stored, complete, findings);
            let block = seen.get(&LogicalAddress(extent.start));
            if let Some(block) = block {
                compare_block(extent, block, findings);
            }
            let longer = self.longer(index);
            if (findings.total() > faults || longer.is_some()) && complete.all() {
                let extent = longer.as_ref().unwrap_or(extent);
                let right = match block.filter(|block| !block.broken && !extent.is_data()) {
                    Some(block) => Extent { level: block.level, generation: block.generation, ..*extent },
                    None => *extent,
                };
                self.mend(&right, found, findings);
            }
        }
        report_missing_extents(found, complete, findings);
        self.mend_missing(found, seen, complete, findings);
        report_orphans(stored, complete, findings);
        // The flag decides which back references are right, so it comes first.
        let wrong = complete.all() && findings.has(FindingKind::BackRefMissing);
        for (extent, flags) in self.wrong_flags(seen).filter(|_| wrong) {
            findings.mend(Remedy::ExtentFlags { extent, flags });
        }
    }

    /// Returns a data extent with the length that all its file extents agree on, if that is longer
    /// and the extent after it leaves the room.
    fn longer(&self, index: usize) -> Option<Extent> {
        let extent = self.extents[index];
        let first = self.claims.partition_point(|claim| claim.0 < extent.start);
        let mut claims = self.claims[first..].iter().take_while(|claim| claim.0 == extent.start);
        let (_, end) = *claims.next()?;
        let next = self.extents.get(index + 1).map_or(u64::MAX, |next| next.start);
        let fits = extent.is_data() && extent.end() < end && end <= next && claims.next().is_none();
        fits.then(|| Extent { length: end - extent.start, ..extent })
    }

    /// Proposes the items of extents that are referred to and have none.
    fn mend_missing(
        &self,
        found: &[Reference],
        seen: &HashMap<LogicalAddress, Seen>,
        complete: Complete,
        findings: &mut Findings,
    ) {
        if !complete.all() {
            return;
        }
        for group in found.chunk_by(|a, b| a.extent == b.extent) {
            let start = group[0].extent;
            let length = self.geometry.node_size.into();
            let blank = Extent::new(start, length, 0, ExtentFlags::TREE_BLOCK, 0);
            if let Some(block) = seen.get(&LogicalAddress(start)).filter(|block| !block.broken) {
                let extent = Extent { generation: block.generation, level: block.level, ..blank };
                self.mend(&extent, group, findings);
            } else if let Some(&(length, generation)) = self.unlisted.get(&start) {
                self.mend(&Extent { length, generation, flags: ExtentFlags::DATA, ..blank }, group, findings);
            }
        }
    }

    /// Proposes all items of an extent, as its references and `extent` say. Without any reference,
    /// none.
    fn mend(&self, extent: &Extent, found: &[Reference], findings: &mut Findings) {
        let first_key = self.first_keys.get(&extent.start).copied();
        let Some(items) = self.encode(extent, found, first_key) else { return };
        let start = extent.start;
        let first = Key::new(start, ItemType::EXTENT_ITEM, 0);
        let last = Key::new(start, ItemType(ItemType::BLOCK_GROUP_ITEM.0 - 1), u64::MAX);
        findings.mend(Remedy::Replace { tree: objectid::EXTENT_TREE, first, last, items });
    }

    /// Encodes all items of an extent; `first_key` is that of a tree block, if it is known. `None`
    /// if the form of the items is not supported.
    pub(super) fn encode(
        &self,
        extent: &Extent,
        found: &[Reference],
        first_key: Option<Key>,
    ) -> Option<Vec<(Key, Vec<u8>)>> {
        let skinny = self.geometry.incompat.contains(IncompatFeatures::SKINNY_METADATA);
        let info = match first_key {
            _ if skinny || extent.is_data() || found.is_empty() => None,
            Some(first_key) => Some(TreeBlockInfo { first_key, level: extent.level }),
            None => return None,
        };
        let mut refs: Vec<BackRef> = Vec::with_capacity(found.len());
        for Reference { holder, count, .. } in found {
            let count = u32::try_from(*count).ok()?;
            refs.push(match *holder {
                Holder::Tree { root } => BackRef::TreeBlock { root: TreeId(root) },
                Holder::SharedTree { parent } => BackRef::SharedBlock { parent: LogicalAddress(parent) },
                Holder::SharedData { parent } => {
                    BackRef::SharedData { parent: LogicalAddress(parent), count }
                }
                Holder::Data { root, inode, offset } => BackRef::Data {
                    root: TreeId(root),
                    inode: InodeNumber(inode),
                    offset: FileOffset(offset),
                    count,
                },
            });
        }
        let start = extent.start;
        let mut items = BTreeMap::new();
        if !refs.is_empty() {
            let owner = self.owners.get(&start).filter(|_| extent.is_data());
            refs.extend(owner.map(|&root| BackRef::Owner { root }));
            let total = refs.iter().map(|reference| u64::from(reference.count())).sum();
            let header =
                ExtentHeader { refs: total, generation: Generation(extent.generation), flags: extent.flags };
            refs.sort_by(BackRef::inline_order);
            let keyed = refs.split_off(refs.len().min(MOST_INLINE));
            let key = match extent.is_data() {
                true => Key::new(start, ItemType::EXTENT_ITEM, extent.length),
                false if info.is_some() => Key::new(start, ItemType::EXTENT_ITEM, extent.length),
                false => Key::new(start, ItemType::METADATA_ITEM, extent.level.into()),
            };
            items.insert(key, ExtentItem::encode(&header, info.as_ref(), &refs));
            for reference in keyed {
                let (mut key, data) = reference.encode_keyed(LogicalAddress(start));
                // Data references whose hashes collide take the next free offsets.
                while items.contains_key(&key) {
                    key.offset = key.offset.wrapping_add(1);
                }
                items.insert(key, data);
            }
        }
        Some(items.into_iter().collect())
    }

    fn check_overlaps(&self, findings: &mut Findings) {
        for pair in self.extents.windows(2) {
            if pair[1].start < pair[0].end() {
                let (start, end) = (pair[0].start, pair[0].end());
                findings.add(
                    FindingKind::ExtentOverlap,
                    Place::extent(pair[1].start),
                    format_args!("the extent at {start} reaches to {end}"),
                );
            }
        }
    }
}

/// Proposes the length of the extent item for a file extent that fits into it.
fn mend_length(tree: TreeId, key: Key, item: &FileExtentItem<'_>, length: u64, findings: &mut Findings) {
    let mut right = *item;
    if let FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) = &mut right.content
        && item.compression == Compression::None
        && part.offset.checked_add(part.length).is_some_and(|end| end <= length)
    {
        part.disk_length = length;
        right.ram_bytes = length;
        findings.mend(Remedy::put(tree, key, right.to_bytes()));
    }
}

/// Sorts references, and merges equal ones by adding their counts.
pub(super) fn merge_equal(references: &mut Vec<Reference>) {
    references.sort_unstable_by_key(Reference::order);
    references.dedup_by(|later, earlier| {
        let same = later.order() == earlier.order();
        if same {
            earlier.count = earlier.count.saturating_add(later.count);
        }
        same
    });
}

/// Splits off the references to extents before `start`.
fn take_before<'a>(rest: &mut &'a [Reference], start: u64) -> &'a [Reference] {
    let count = rest.iter().take_while(|reference| reference.extent < start).count();
    let (before, after) = rest.split_at(count);
    *rest = after;
    before
}

/// Splits off the references to the extent at `start`.
fn take_at<'a>(rest: &mut &'a [Reference], start: u64) -> &'a [Reference] {
    let count = rest.iter().take_while(|reference| reference.extent == start).count();
    let (at, after) = rest.split_at(count);
    *rest = after;
    at
}

fn report_missing_extents(found: &[Reference], complete: Complete, findings: &mut Findings) {
    if !complete.extent_tree {
        return;
    }
    for group in found.chunk_by(|a, b| a.extent == b.extent) {
        let holder = group[0].holder;
        let others = group.len() - 1;
        findings.add(
            FindingKind::ExtentMissing,
            Place::extent(group[0].extent),
            format_args!("no extent item, but {holder} and {others} others refer to it"),
        );
    }
}

fn report_orphans(stored: &[Reference], complete: Complete, findings: &mut Findings) {
    if !complete.extent_tree {
        return;
    }
    for reference in stored {
        if complete.all() {
            let key = |item_type, offset| Key::new(reference.extent, ItemType(item_type), offset);
            findings.mend(Remedy::Replace {
                tree: objectid::EXTENT_TREE,
                first: key(ItemType::EXTENT_ITEM.0, 0),
                last: key(ItemType::BLOCK_GROUP_ITEM.0 - 1, u64::MAX),
                items: Vec::new(),
            });
        }
        findings.add(
            FindingKind::BackRefOrphan,
            Place::extent(reference.extent),
            format_args!("a back reference from {}, but no extent item", reference.holder),
        );
    }
}

fn compare_extent(
    extent: &Extent,
    found: &[Reference],
    stored: &[Reference],
    complete: Complete,
    findings: &mut Findings,
) {
    let place = || Place::extent(extent.start);
    let sum = stored.iter().fold(0u64, |sum, reference| sum.saturating_add(reference.count));
    if sum != extent.refs && (complete.extent_tree || sum > extent.refs) {
        let refs = extent.refs;
        findings.add(
            FindingKind::ExtentRefCount,
            place(),
            format_args!("the extent item counts {refs} references, its back references have {sum}"),
        );
    }
    if found.is_empty() {
        if complete.referrers {
            let what = if extent.is_data() { "data" } else { "tree block" };
            let length = extent.length;
            findings.add(
                FindingKind::ExtentUnreferenced,
                place(),
                format_args!("{what} of {length} bytes without a reference"),
            );
        }
        return;
    }
    let (mut left, mut right) = (found.iter().peekable(), stored.iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(found), Some(stored)) => found.holder.cmp(&stored.holder),
        };
        match order {
            std::cmp::Ordering::Less => {
                let Reference { holder, count, .. } = left.next().expect("it was peeked");
                if complete.extent_tree {
                    findings.add(
                        FindingKind::BackRefMissing,
                        place(),
                        format_args!("{holder} refers to it {count} times without a back reference"),
                    );
                }
            }
            std::cmp::Ordering::Greater => {
                let Reference { holder, count, .. } = right.next().expect("it was peeked");
                if complete.referrers {
                    findings.add(
                        FindingKind::BackRefExtra,
                        place(),
                        format_args!("a back reference to {holder} ({count}), which does not refer to it"),
                    );
                }
            }
            std::cmp::Ordering::Equal => {
                let found = left.next().expect("it was peeked");
                let stored = right.next().expect("it was peeked").count;
                let trusted = if found.count > stored { complete.extent_tree } else { complete.referrers };
                if found.count != stored && trusted {
                    let Reference { holder, count, .. } = found;
                    findings.add(
                        FindingKind::BackRefCount,
                        place(),
                        format_args!("{holder} refers to it {count} times, the back reference says {stored}"),
                    );
                }
            }
        }
    }
}

fn compare_block(extent: &Extent, block: &Seen, findings: &mut Findings) {
    let place = Place::block(block.owner, LogicalAddress(extent.start));
    if extent.is_data() {
        let kind = FindingKind::ExtentContent;
        return findings.add(kind, place, format_args!("a tree block, but the extent item says data"));
    }
    if block.broken {
        return;
    }
    let (level, generation) = (block.level, block.generation);
    if extent.level != level {
        let stored = extent.level;
        findings.add(
            FindingKind::ExtentLevel,
            place.clone(),
            format_args!("the block has level {level}, the extent item says {stored}"),
        );
    }
    if extent.generation != generation {
        let stored = extent.generation;
        findings.add(
            FindingKind::ExtentGeneration,
            place,
            format_args!("the block has generation {generation}, the extent item says {stored}"),
        );
    }
}
