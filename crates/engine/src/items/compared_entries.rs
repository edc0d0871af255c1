//! The entries of a damaged directory by index, compared with its entries by name.
//!
//! Owns [`ComparedEntries`]. A listing goes by index alone, so that one lost or changed DIR_INDEX
//! would hide a file. Rescues list what either kind of entry has. Where the two contradict each
//! other, the one that the inode's own reference repeats is right.
//!
//! **Invariants**
//! - Every entry that differs is a fault of the forest.
//! - A range that cannot be read is no contradiction: its error is reported where it is met.
//!
//! Locks: none. Kernel counterpart: none; the kernel lists by DIR_INDEX and looks up by DIR_ITEM.

use crate::btree::{Cursor, Item, Tree};
use crate::items::dir::{EntryTarget, index_first_key, index_last_key};
use crate::items::inode::for_each_name;
use crate::options::rescue::{ItemFault, ItemUse};
use papilio_format::items::dir_item::{DirEntries, FileType};
use papilio_format::{InodeNumber, ItemType, Key};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// An entry that only an item by name has.
#[derive(Clone, Debug)]
pub struct FurtherEntry {
    /// The name in its directory.
    pub name: Vec<u8>,
    /// The kind of inode that the entry states.
    pub file_type: FileType,
    /// The inode or subvolume that it names.
    pub target: EntryTarget,
}

/// The differences between the entries by index and the entries by name.
#[derive(Debug, Default)]
pub struct ComparedEntries {
    /// The indexes whose entries are wrong: an entry by name takes their place.
    pub hidden: HashSet<u64>,
    /// Entries without an index.
    pub further: Vec<FurtherEntry>,
    /// The last index of the directory.
    pub last_index: u64,
}

/// The answer of an inode's references to the question whether an entry is right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Confirmed {
    Yes,
    No,
    /// They cannot be read, or the entry leads to a subvolume.
    Unknown,
}

impl ComparedEntries {
    /// Compares all entries of a directory.
    pub fn of(tree: &Tree, directory: InodeNumber) -> Self {
        let mut compared = Self::default();
        let item_keys = |offset| Key::new(directory.0, ItemType::DIR_ITEM, offset);
        let mut by_name: HashMap<u64, u32> = HashMap::new();
        let items_whole = for_each_entry(tree, item_keys(0), item_keys(u64::MAX), |_, entry| {
            *by_name.entry(identity(&entry.name, entry.target)).or_default() += 1;
        });
        let mut lone = Vec::new();
        let (first, last) = (index_first_key(directory, 0), index_last_key(directory));
        for_each_entry(tree, first, last, |item, entry| {
            compared.last_index = item.key.offset;
            match by_name.get_mut(&identity(&entry.name, entry.target)).filter(|left| **left > 0) {
                Some(left) => *left -= 1,
                None => lone.push((item.clone(), entry)),
            }
        });
        by_name.retain(|_, left| *left > 0);
        if by_name.is_empty() && (lone.is_empty() || !items_whole) {
            return compared;
        }
        let mut unlisted = Vec::new();
        for_each_entry(tree, item_keys(0), item_keys(u64::MAX), |item, entry| {
            if by_name.contains_key(&identity(&entry.name, entry.target)) {
                unlisted.push((item.clone(), entry));
            }
        });
        compared.decide(tree, directory, lone, unlisted, items_whole);
        compared
    }

    /// Decides which of the entries that differ are shown.
    fn decide(
        &mut self,
        tree: &Tree,
        directory: InodeNumber,
        lone: Vec<(Item, FurtherEntry)>,
        unlisted: Vec<(Item, FurtherEntry)>,
        items_whole: bool,
    ) {
        let mut faults = Vec::new();
        let mut fault = |item: &Item, used, reason: String| {
            let (block, key) = (item.leaf_address(), Some(item.key));
            faults.push(ItemFault { tree: tree.id(), block, key, used, reason });
        };
        let used = |confirmed| match confirmed {
            Confirmed::Yes => ItemUse::Replaced,
            _ => ItemUse::Moved,
        };
        let is_confirmed = |entry: &FurtherEntry| confirmed(tree, directory, entry);
        for (item, entry) in &lone {
            let name = entry.name.escape_ascii();
            let is_right = is_confirmed(entry);
            let counterpart = unlisted
                .iter()
                .filter(|(_, other)| other.name == entry.name || other.target == entry.target)
                .map(|(_, other)| is_confirmed(other))
                .find(|other| is_right != Confirmed::Yes && *other != Confirmed::No);
            if let Some(other) = counterpart {
                self.hidden.insert(item.key.offset);
                fault(item, used(other), format!("entry \"{name}\": the entry by name differs"));
            } else if items_whole {
                fault(item, used(is_right), format!("entry \"{name}\" has no entry by name"));
            }
        }
        let listed = |entry: &FurtherEntry, hidden: &HashSet<u64>| {
            lone.iter().any(|(item, other)| {
                (other.name == entry.name || other.target == entry.target)
                    && !hidden.contains(&item.key.offset)
                    && is_confirmed(other) == Confirmed::Yes
            })
        };
        for (item, entry) in &unlisted {
            let name = entry.name.escape_ascii();
            let is_right = is_confirmed(entry);
            if is_right != Confirmed::Yes && listed(entry, &self.hidden) {
                fault(item, ItemUse::Replaced, format!("entry \"{name}\": the entry by index differs"));
                continue;
            }
            fault(item, used(is_right), format!("entry \"{name}\" has no entry by index"));
            self.further.push(entry.clone());
        }
        tree.forest().faults().add(faults);
    }
}

/// Returns the inode or subvolume that an entry by index names, for a name that no entry by name
/// has.
pub(crate) fn look_up_by_index(tree: &Tree, directory: InodeNumber, name: &[u8]) -> Option<EntryTarget> {
    let mut found = None;
    for_each_entry(tree, index_first_key(directory, 0), index_last_key(directory), |_, entry| {
        if entry.name == name && (found.is_none() || confirmed(tree, directory, &entry) == Confirmed::Yes) {
            found = Some(entry.target);
        }
    });
    found
}

/// Whether the reference of an entry's inode contradicts the entry.
pub(crate) fn is_contradicted(tree: &Tree, directory: InodeNumber, name: &[u8], target: EntryTarget) -> bool {
    let entry = FurtherEntry { name: name.to_vec(), file_type: FileType::Regular, target };
    confirmed(tree, directory, &entry) == Confirmed::No
}

/// Says whether the inode of an entry has a reference to it.
fn confirmed(tree: &Tree, directory: InodeNumber, entry: &FurtherEntry) -> Confirmed {
    let EntryTarget::Inode(number) = entry.target else { return Confirmed::Unknown };
    let mut found = false;
    let walked = for_each_name(tree, number, |name| {
        found = name.parent == directory && name.name == entry.name;
        !found
    });
    match (found, walked) {
        (true, _) => Confirmed::Yes,
        (false, Ok(())) => Confirmed::No,
        (false, Err(_)) => Confirmed::Unknown,
    }
}

/// Stands for an entry. Two of one directory are taken for one only if their hashes collide.
fn identity(name: &[u8], target: EntryTarget) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    match target {
        EntryTarget::Inode(number) => (0u8, number.0).hash(&mut hasher),
        EntryTarget::Subvolume(id) => (1u8, id.0).hash(&mut hasher),
    }
    hasher.finish()
}

/// Calls `take` with each entry in a range of keys. Goes on behind what cannot be read. Returns
/// whether everything could be read.
fn for_each_entry(tree: &Tree, first: Key, last: Key, mut take: impl FnMut(&Item, FurtherEntry)) -> bool {
    let mut cursor = Cursor::new(tree);
    let (mut next, mut whole) = (Some(first), true);
    loop {
        let moved = match next.take() {
            Some(key) => cursor.seek(&key),
            None => cursor.step(),
        };
        if moved.is_err() {
            whole = false;
            match cursor.behind_fault().filter(|key| *key <= last) {
                Some(key) => next = Some(key.max(first)),
                None => return whole,
            }
            continue;
        }
        let Some(item) = cursor.item().filter(|item| item.key <= last) else { return whole };
        match DirEntries::parse(item.data()) {
            Ok(entries) => entries.for_each(|entry| {
                let target = EntryTarget::of(&entry.location);
                let (name, file_type) = (entry.name.to_vec(), entry.file_type);
                take(&item, FurtherEntry { name, file_type, target });
            }),
            Err(_) => whole = false,
        }
    }
}
