//! The root tree: the trees of the file system, and the references between subvolumes.
//!
//! Owns [`Roots`].
//!
//! **Rules**
//! - A subvolume's directory entry, the ROOT_REF of its parent and its own ROOT_BACKREF agree.
//! - The count in a root item is the number of these references.
//! - A deleted subvolume has an orphan item.
//!
//! Kernel counterparts: `btrfs_add_root_ref` (`fs/btrfs/root-tree.c`), `btrfs_find_orphan_roots`.

use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use super::walker::{DropProgress, Visit, Walk};
use papilio_engine::btree::RootPointer;
use papilio_engine::items::sound_items::is_mistyped_root;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::free_space_cache::FreeSpaceHeader;
use papilio_format::items::root::RootItem;
use papilio_format::items::root_ref::{RootRef, root_backref_key, root_ref_key};
use papilio_format::items::uuid_tree::{UuidItem, uuid_key, uuid_of_key};
use papilio_format::{Geometry, ItemType, Key, Superblock, TreeId, Uuid, objectid};
use std::collections::{BTreeMap, BTreeSet};

/// One tree of the root tree.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) id: TreeId,
    pub(crate) key: Key,
    pub(crate) item: RootItem,
}

impl Root {
    /// Returns how to walk the tree.
    pub(super) fn walk(&self) -> Walk {
        let item = &self.item;
        let drop = DropProgress { level: item.drop_level, key: item.drop_progress };
        Walk {
            tree: self.id,
            item: self.key,
            root: RootPointer { address: item.address, level: item.level, generation: Some(item.generation) },
            drop: (drop.key.objectid != 0 && item.refs == 0).then_some(drop),
            shared: objectid::is_fs_tree(self.id),
        }
    }

    fn place(&self) -> Place {
        Place::item(objectid::ROOT_TREE, self.key)
    }
}

/// A reference between subvolumes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SubvolumeReference {
    directory: u64,
    sequence: u64,
    name: Box<[u8]>,
}

/// A directory entry of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SubvolumeEntry {
    pub(super) child: u64,
    pub(super) directory: u64,
    /// 0 for an entry by name.
    pub(super) index: u64,
    pub(super) name: Box<[u8]>,
}

/// The content of the root tree and the UUID tree.
#[derive(Debug, Default)]
pub(super) struct Roots {
    pub(super) roots: Vec<Root>,
    /// By (parent, child).
    refs: BTreeMap<(u64, u64), SubvolumeReference>,
    backrefs: BTreeMap<(u64, u64), SubvolumeReference>,
    orphans: BTreeSet<u64>,
    default_subvolume: Option<u64>,
    pub(super) caches: Vec<(Key, FreeSpaceHeader)>,
    uuids: BTreeSet<(ItemType, Uuid, u64)>,
    /// Items that can only be root items, with a wrong bit in the type of their key.
    mistyped: Vec<(Key, Vec<u8>)>,
}

impl Roots {
    /// Reads a leaf of the root tree.
    pub(super) fn read_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let (key, data) = (view.key(slot), view.item(slot));
            match key.item_type {
                ItemType::ROOT_ITEM => {
                    let root = RootItem::parse(data).ok();
                    self.roots.extend(root.map(|item| Root { id: TreeId(key.objectid), key, item }));
                }
                ItemType::ROOT_REF => {
                    self.refs.extend(reference(data).map(|found| ((key.objectid, key.offset), found)));
                }
                ItemType::ROOT_BACKREF => {
                    self.backrefs.extend(reference(data).map(|found| ((key.offset, key.objectid), found)));
                }
                ItemType::ORPHAN_ITEM => _ = self.orphans.insert(key.offset),
                ItemType::DIR_ITEM if key.objectid == objectid::ROOT_TREE_DIR => {
                    let mut entries = DirEntries::parse(data).into_iter().flatten();
                    let found = entries.find(|entry| entry.name == b"default");
                    self.default_subvolume = found.map(|entry| entry.location.objectid);
                }
                _ if key.objectid == objectid::FREE_SPACE && key.item_type.0 == 0 => {
                    self.caches.extend(FreeSpaceHeader::parse(data).ok().map(|header| (key, header)));
                }
                _ if is_mistyped_root(&key, data) => self.mistyped.push((key, data.to_vec())),
                _ => {}
            }
        }
    }

    /// Reads a leaf of the UUID tree.
    pub(super) fn read_uuid_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if matches!(key.item_type, ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL)
                && let Ok(item) = UuidItem::parse(view.item(slot))
            {
                let uuid = uuid_of_key(&key);
                self.uuids.extend(item.subvolumes().map(|id| (key.item_type, uuid, id.0)));
            }
        }
    }

    /// Returns the current root of a tree.
    pub(super) fn find(&self, id: TreeId) -> Option<&Root> {
        // The roots are in the order of their keys; the last one of a tree is current.
        let after = self.roots.partition_point(|root| root.id <= id);
        self.roots.get(after.checked_sub(1)?).filter(|root| root.id == id)
    }

    /// Uses the items that can only be root items, with a wrong bit in the type of their key, as
    /// those of trees that have no other.
    pub(super) fn adopt_mistyped(&mut self, findings: &mut Findings) {
        for (key, data) in std::mem::take(&mut self.mistyped) {
            let id = TreeId(key.objectid);
            let Some(item) = RootItem::parse(&data).ok().filter(|_| self.find(id).is_none()) else {
                continue;
            };
            let right = Key::new(key.objectid, ItemType::ROOT_ITEM, key.offset);
            let message = format_args!("a root item, but one bit of its key's type is wrong");
            findings.add(FindingKind::ItemInvalid, Place::item(objectid::ROOT_TREE, key), message);
            findings.mend(Remedy::remove(objectid::ROOT_TREE, key));
            findings.mend(Remedy::put(objectid::ROOT_TREE, right, data));
            let at = self.roots.partition_point(|root| root.key < right);
            self.roots.insert(at, Root { id, key: right, item });
        }
    }

    /// Finds missing trees that the features of the file system require.
    pub(super) fn check_required(&self, geometry: &Geometry, findings: &mut Findings) {
        use objectid::{BLOCK_GROUP_TREE, CSUM_TREE, DEV_TREE, EXTENT_TREE, FREE_SPACE_TREE, FS_TREE};
        let mut required = vec![EXTENT_TREE, DEV_TREE, FS_TREE, CSUM_TREE];
        if geometry.compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE_VALID) {
            required.push(FREE_SPACE_TREE);
        }
        if geometry.compat_ro.contains(CompatRoFeatures::BLOCK_GROUP_TREE) {
            required.push(BLOCK_GROUP_TREE);
        }
        if geometry.incompat.contains(IncompatFeatures::RAID_STRIPE_TREE) {
            required.push(objectid::RAID_STRIPE_TREE);
        }
        for id in required.into_iter().filter(|id| self.find(*id).is_none()) {
            let key = Key::new(id.0, ItemType::ROOT_ITEM, 0);
            let message = format_args!("the tree does not exist");
            findings.add(FindingKind::RootMissing, Place::item(objectid::ROOT_TREE, key), message);
            findings.mend(Remedy::AddTree(id));
        }
    }

    /// Compares references of parents and children, and checks counts, orphans and the default
    /// subvolume.
    pub(super) fn check_references(&self, findings: &mut Findings) {
        for (&(parent, child), found) in &self.refs {
            let place = Place::item(objectid::ROOT_TREE, root_ref_key(TreeId(parent), TreeId(child)));
            let name = found.name.escape_ascii();
            match self.backrefs.get(&(parent, child)) {
                None => {
                    let message = format_args!("\"{name}\": subvolume {child} has no reference back");
                    findings.add(FindingKind::RootBackrefMissing, place.clone(), message);
                    let (from, to) = ref_keys(parent, child);
                    findings.mend(Remedy::RootRef { from, to });
                }
                Some(back) if back != found => {
                    let message = format_args!("\"{name}\": the reference back of subvolume {child} differs");
                    findings.add(FindingKind::RootRefDiffers, place.clone(), message);
                }
                Some(_) => {}
            }
            for id in [parent, child].into_iter().filter(|id| self.find(TreeId(*id)).is_none()) {
                let message = format_args!("\"{name}\": subvolume {id} does not exist");
                findings.add(FindingKind::RootMissing, place.clone(), message);
            }
        }
        for (&(parent, child), found) in &self.backrefs {
            if !self.refs.contains_key(&(parent, child)) {
                let place = Place::item(objectid::ROOT_TREE, root_backref_key(TreeId(child), TreeId(parent)));
                let name = found.name.escape_ascii();
                let message = format_args!("\"{name}\": the parent {parent} has no reference to it");
                findings.add(FindingKind::RootRefMissing, place, message);
                let (to, from) = ref_keys(parent, child);
                findings.mend(Remedy::RootRef { from, to });
            }
        }
        let mut counts = BTreeMap::<u64, u64>::new();
        for (_, child) in self.backrefs.keys() {
            *counts.entry(*child).or_default() += 1;
        }
        for root in self.roots.iter().filter(|root| objectid::is_subvolume(root.id)) {
            self.check_count(root, counts.get(&root.id.0).copied().unwrap_or_default(), findings);
        }
        for id in self.orphans.iter().filter(|id| self.find(TreeId(**id)).is_none()) {
            let key = papilio_format::items::orphan::orphan_key(*id);
            let message = format_args!("an orphan item of a subvolume that does not exist");
            findings.add(FindingKind::OrphanStale, Place::item(objectid::ROOT_TREE, key), message);
            findings.mend(Remedy::remove(objectid::ROOT_TREE, key));
        }
        if let Some(id) = self.default_subvolume
            && self.find(TreeId(id)).is_none_or(|root| root.item.refs == 0)
        {
            let message = format_args!("the default subvolume {id} does not exist");
            findings.add(FindingKind::DefaultSubvolume, Place::tree(objectid::ROOT_TREE), message);
            findings.mend(Remedy::DefaultSubvolume);
        }
    }

    fn check_count(&self, root: &Root, count: u64, findings: &mut Findings) {
        let refs = u64::from(root.item.refs);
        let expected = if root.id == objectid::FS_TREE { 1 } else { count };
        if refs != expected {
            let message = format_args!("the root item counts {refs} references, there are {expected}");
            findings.add(FindingKind::RootRefCount, root.place(), message);
            if let (Ok(refs), true) = (u32::try_from(expected), expected > 0) {
                findings.mend(Remedy::RootCount { item: root.key, refs });
            }
        }
        if refs == 0 && expected == 0 && !self.orphans.contains(&root.id.0) {
            let key = papilio_format::items::orphan::orphan_key(root.id.0);
            findings.mend(Remedy::put(objectid::ROOT_TREE, key, Vec::new()));
        }
        if refs == 0 && !self.orphans.contains(&root.id.0) {
            let message = format_args!("deleted, but not listed as an orphan");
            findings.add(FindingKind::RootOrphanMissing, root.place(), message);
        }
    }

    /// Compares the references of one subvolume to its children with its directory entries. An
    /// entry without a reference is not a fault: a snapshot has such entries for nested subvolumes.
    pub(super) fn check_entries(
        &self,
        parent: TreeId,
        entries: &mut [SubvolumeEntry],
        findings: &mut Findings,
    ) {
        entries.sort_unstable();
        for (&(_, child), found) in self.refs.range((parent.0, 0)..=(parent.0, u64::MAX)) {
            let has = |index: u64| {
                let SubvolumeReference { directory, name, .. } = found.clone();
                entries.binary_search(&SubvolumeEntry { child, directory, index, name }).is_ok()
            };
            let back = self.backrefs.get(&(parent.0, child)).filter(|back| *back != found);
            if let Some(back) = back.filter(|back| !has(found.sequence) && has(back.sequence)) {
                // The directory agrees with the subvolume's side.
                debug_assert_ne!(back.sequence, found.sequence);
                let (to, from) = ref_keys(parent.0, child);
                findings.mend(Remedy::RootRef { from, to });
            }
            for (index, what) in [(0, "name"), (found.sequence, "index")] {
                if !has(index) {
                    let key = root_ref_key(parent, TreeId(child));
                    let (name, directory) = (found.name.escape_ascii(), found.directory);
                    findings.add(
                        FindingKind::RootRefEntry,
                        Place::item(objectid::ROOT_TREE, key),
                        format_args!("directory {directory} has no entry by {what} for \"{name}\""),
                    );
                    let (parent, child) = (parent, TreeId(child));
                    findings.mend(Remedy::HangSubvolume { parent, child });
                }
            }
        }
    }

    /// Returns the item that a UUID should have.
    fn uuid_item(
        &self,
        expected: &BTreeSet<(ItemType, Uuid, u64)>,
        item_type: ItemType,
        uuid: Uuid,
    ) -> Remedy {
        let of_uuid = expected.range((item_type, uuid, 0)..=(item_type, uuid, u64::MAX));
        let live = |id: &u64| self.find(TreeId(*id)).is_some_and(|root| root.item.refs > 0);
        let ids: Vec<TreeId> = of_uuid.map(|(_, _, id)| *id).filter(live).map(TreeId).collect();
        let key = uuid_key(uuid, item_type);
        match ids.is_empty() {
            true => Remedy::remove(objectid::UUID_TREE, key),
            false => Remedy::put(objectid::UUID_TREE, key, UuidItem::encode(&ids)),
        }
    }

    /// Compares the UUIDs of subvolumes with the UUID tree.
    pub(super) fn check_uuids(&self, superblock: &Superblock, findings: &mut Findings) {
        if superblock.raw.uuid_tree_generation != superblock.raw.generation.0 {
            return findings
                .note("uuid-tree-stale", "the UUID tree is out of date and will be rebuilt: not checked");
        }
        let mut expected = BTreeSet::new();
        for root in self.roots.iter().filter(|root| objectid::is_subvolume(root.id)) {
            let uuids = [
                (ItemType::UUID_SUBVOL, root.item.uuid),
                (ItemType::UUID_RECEIVED_SUBVOL, root.item.received_uuid),
            ];
            let known = uuids.into_iter().filter(|(_, uuid)| !uuid.is_nil());
            expected.extend(known.map(|(item_type, uuid)| (item_type, uuid, root.id.0)));
        }
        let place = |item_type, uuid| Place::item(objectid::UUID_TREE, uuid_key(uuid, item_type));
        for &(item_type, uuid, id) in expected.difference(&self.uuids) {
            // A subvolume that is being deleted has left the UUID tree already.
            if self.find(TreeId(id)).is_some_and(|root| root.item.refs > 0) {
                let message = format_args!("UUID {uuid} of subvolume {id} is missing");
                findings.add(FindingKind::UuidTree, place(item_type, uuid), message);
                findings.mend(self.uuid_item(&expected, item_type, uuid));
            }
        }
        for &(item_type, uuid, id) in self.uuids.difference(&expected) {
            let message = format_args!("subvolume {id} has no UUID {uuid}");
            findings.add(FindingKind::UuidTree, place(item_type, uuid), message);
            findings.mend(self.uuid_item(&expected, item_type, uuid));
        }
    }
}

/// Returns the keys of the parent's reference to a subvolume, and of the subvolume's to its parent.
fn ref_keys(parent: u64, child: u64) -> (Key, Key) {
    let (parent, child) = (TreeId(parent), TreeId(child));
    (root_ref_key(parent, child), root_backref_key(child, parent))
}

fn reference(data: &[u8]) -> Option<SubvolumeReference> {
    let found = RootRef::parse(data).ok()?;
    Some(SubvolumeReference {
        directory: found.directory.0,
        sequence: found.sequence,
        name: found.name.into(),
    })
}
