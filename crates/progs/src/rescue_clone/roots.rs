//! The subvolumes that a damaged root tree still names.
//!
//! Owns [`SubvolumeRoots`]. The walk goes on behind each block that cannot be read.

use super::loss::CloneLoss;
use papilio_engine::btree::{Cursor, Tree};
use papilio_engine::items::sound_items::is_mistyped_root;
use papilio_engine::items::trees::Trees;
use papilio_format::items::root::{RawRootItem, RootItem};
use papilio_format::items::root_ref::RootRef;
use papilio_format::{ItemType, Key, TreeId, objectid};
use std::collections::BTreeMap;

/// A subvolume whose tree can be read, at least in part.
pub(crate) struct SubvolumeRoot {
    pub(crate) tree: Tree,
    pub(crate) item: RawRootItem,
    /// The offset of the root item's key.
    pub(crate) key_offset: u64,
}

/// The subvolumes and their references in the root tree.
pub(crate) struct SubvolumeRoots {
    pub(crate) subvolumes: BTreeMap<TreeId, SubvolumeRoot>,
    /// For each child its parent and the reference.
    parents: BTreeMap<TreeId, (TreeId, Vec<u8>)>,
    pub(crate) losses: Vec<CloneLoss>,
}

impl SubvolumeRoots {
    /// Reads the root tree.
    pub(crate) fn read(trees: &Trees) -> Self {
        let mut roots = Self { subvolumes: BTreeMap::new(), parents: BTreeMap::new(), losses: Vec::new() };
        let tree = trees.root_tree();
        let mut ids = BTreeMap::from([(objectid::FS_TREE, 0)]);
        for_each_item(
            &tree,
            |key, data| roots.take(&key, data, &mut ids),
            |from, to, error| {
                let to = to.map_or("the last".to_owned(), |key| key.objectid.to_string());
                let reason = format!("subvolumes {} to {to}: {error}", from.objectid);
                Some(CloneLoss::of("", reason))
            },
        )
        .into_iter()
        .for_each(|loss| roots.losses.push(loss));
        for (id, key_offset) in ids {
            match trees.find(id) {
                Ok(Some(open)) => {
                    let item = open.item();
                    if item.refs == 0 {
                        // Deleted, and not cleaned yet.
                        continue;
                    }
                    if let Err(error) = open.tree.root_block() {
                        roots.losses.push(CloneLoss::of(format!("subvolume {id}"), error));
                        // The top level always exists.
                        if id != objectid::FS_TREE {
                            continue;
                        }
                    }
                    let root = SubvolumeRoot { tree: open.tree.clone(), item: item.into_raw(), key_offset };
                    roots.subvolumes.insert(id, root);
                }
                Ok(None) => {
                    roots.losses.push(CloneLoss::of(format!("subvolume {id}"), "it has no root item"));
                }
                Err(error) => roots.losses.push(CloneLoss::of(format!("subvolume {id}"), error)),
            }
        }
        roots
    }

    fn take(&mut self, key: &Key, data: &[u8], ids: &mut BTreeMap<TreeId, u64>) {
        let id = TreeId(key.objectid);
        let is_one = objectid::is_subvolume(id);
        match key.item_type {
            _ if is_one && is_mistyped_root(key, data) => drop(ids.entry(id).or_insert(0)),
            ItemType::ROOT_ITEM if is_one => match RootItem::parse(data) {
                Ok(_) => drop(ids.insert(id, key.offset)),
                Err(reason) => self.losses.push(CloneLoss::of(format!("subvolume {id}"), reason)),
            },
            // Both references say the same; either will do.
            ItemType::ROOT_BACKREF if is_one && RootRef::parse(data).is_ok() => {
                self.parents.insert(id, (TreeId(key.offset), data.to_vec()));
            }
            ItemType::ROOT_REF if is_one && RootRef::parse(data).is_ok() => {
                self.parents.entry(TreeId(key.offset)).or_insert_with(|| (id, data.to_vec()));
            }
            _ => {}
        }
    }

    /// Returns the parent of a subvolume and its entry there.
    pub(crate) fn parent_of(&self, child: TreeId) -> Option<(TreeId, RootRef<'_>)> {
        let (parent, data) = self.parents.get(&child)?;
        Some((*parent, RootRef::parse(data).ok()?))
    }

    /// Returns each child and its parent that the clone gets, with the reference.
    pub(crate) fn references(&self) -> impl Iterator<Item = (TreeId, TreeId, &[u8])> {
        let has = |id: &TreeId| self.subvolumes.contains_key(id);
        self.parents
            .iter()
            .filter(move |(child, (parent, _))| has(child) && has(parent))
            .map(|(child, (parent, data))| (*child, *parent, &data[..]))
    }
}

/// Calls `take` with all items of a tree that can be read. Collects what `lost` makes of each gap:
/// the first key that may be missing, the key behind it, and the error.
fn for_each_item(
    tree: &Tree,
    mut take: impl FnMut(Key, &[u8]),
    mut lost: impl FnMut(Key, Option<Key>, papilio_engine::errors::Error) -> Option<CloneLoss>,
) -> Vec<CloneLoss> {
    let mut losses = Vec::new();
    let mut walk = ItemWalk::new(tree);
    loop {
        match walk.next() {
            Ok(Some((key, data))) => take(key, data),
            Ok(None) => return losses,
            Err(gap) => losses.extend(lost(gap.from, gap.behind, *gap.error)),
        }
    }
}

/// Keys from the first one up to the second one, which is not included; `None` is the end.
pub(crate) type KeyRange = (Key, Option<Key>);

/// A walk over the items of a tree that goes on behind each block that cannot be read.
pub(crate) struct ItemWalk<'a> {
    cursor: Cursor<'a>,
    /// The next key, if the cursor has to be moved there.
    next: Option<Key>,
    /// The first key that may follow.
    expected: Key,
    /// The first key behind the walk.
    end: Option<Key>,
    done: bool,
}

/// Keys whose items cannot be read.
pub(crate) struct Gap {
    pub(crate) from: Key,
    /// The first key behind it; `None` for the rest of the tree.
    pub(crate) behind: Option<Key>,
    pub(crate) error: Box<papilio_engine::errors::Error>,
}

impl<'a> ItemWalk<'a> {
    pub(crate) fn new(tree: &'a Tree) -> Self {
        Self::within(tree, (Key::MIN, None))
    }

    /// Walks over the items with the keys of a range.
    pub(crate) fn within(tree: &'a Tree, (from, end): KeyRange) -> Self {
        Self { cursor: Cursor::new(tree), next: Some(from), expected: from, end, done: false }
    }

    /// Returns the next item, or the next gap.
    pub(crate) fn next(&mut self) -> Result<Option<(Key, &[u8])>, Gap> {
        if self.done {
            return Ok(None);
        }
        let moved = match self.next.take() {
            Some(key) => self.cursor.seek(&key),
            None => self.cursor.step(),
        };
        if let Err(error) = moved {
            let from = self.expected;
            let behind = self.cursor.behind_fault().filter(|key| *key > from);
            match behind {
                Some(key) if self.end.is_none_or(|end| key < end) => {
                    (self.next, self.expected) = (Some(key), key);
                }
                _ => self.done = true,
            }
            return Err(Gap { from, behind, error: Box::new(error) });
        }
        let found = self.cursor.key().filter(|key| self.end.is_none_or(|end| *key < end));
        let (Some(key), Some(data)) = (found, self.cursor.data()) else {
            self.done = true;
            return Ok(None);
        };
        match key.successor() {
            Some(after) => self.expected = after,
            None => self.done = true,
        }
        Ok(Some((key, data)))
    }
}
