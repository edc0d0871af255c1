//! Names that changed in the running transaction and are not in its log yet.
//!
//! Owns [`NameChanges`]. A *slot* is a name in a directory, whether or not it exists. A [`Slot`] is
//! kept for each slot that may differ from the last commit with the log on top. It holds the index
//! of the entry there and the inodes that had the name since. For a slot without a [`Slot`], replay
//! yields just the present state.
//!
//! **Invariants**
//! - A slot is noted before its change appears in the tree. The thread that notes it holds
//!   [`NameChanges::changing`] until then.
//! - Only a thread that holds [`NameChanges::entering`] removes slots, after it entered them into
//!   the log. All slots end with the transaction.
//! - Slots of subvolumes stay, because only a commit can express their change.
//!
//! **Locks**, in this order:
//! - `changing`: shared by threads that change names, exclusive for one that logs names. Taken
//!   before a tree's writer.
//! - `state`, a leaf.
//!
//! Kernel counterpart: `btrfs_record_unlink_dir`, `btrfs_log_new_name` (`fs/btrfs/tree-log.c`),
//! which keep less and so know less.

use crate::btree::Tree;
use crate::errors::Result;
use crate::items::dir::{self, EntryTarget};
use crate::items::inode::for_each_name;
use papilio_format::{Generation, InodeNumber, TreeId};
use papilio_locks::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;

/// Most slots kept of one transaction. Beyond that, only commits make names durable.
const MAX_SLOTS: usize = 1 << 16;

/// A name in a directory.
pub(super) type SlotKey = (InodeNumber, Box<[u8]>);

/// Names that changed in the running transaction.
#[derive(Debug, Default)]
pub struct NameChanges {
    changing: RwLock<()>,
    state: Mutex<NameState>,
}

#[derive(Debug, Default)]
struct NameState {
    generation: Generation,
    trees: HashMap<TreeId, TreeNames>,
    slots: usize,
    /// Whether slots were dropped because there were too many.
    lost: bool,
}

/// The changed names of one subvolume.
#[derive(Debug, Default)]
pub(super) struct TreeNames {
    /// By directory and name.
    slots: HashMap<InodeNumber, HashMap<Box<[u8]>, Slot>>,
    /// The slots that each inode had or gets.
    of: HashMap<InodeNumber, Vec<SlotKey>>,
}

/// The state of a changed name.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The index of the entry that a replay of the present log would find or leave there.
    pub(super) index: Option<u64>,
    /// Inodes that had the name.
    pub(super) held: Vec<InodeNumber>,
    /// Whether the name led to a subvolume, or does now.
    pub(super) subvolume: bool,
}

impl NameChanges {
    /// Taken before a slot is noted and changed, or an inode is logged without its names.
    pub fn changing(&self) -> RwLockReadGuard<'_, ()> {
        self.changing.read()
    }

    /// Taken before names are entered into the log.
    pub(crate) fn entering(&self) -> RwLockWriteGuard<'_, ()> {
        self.changing.write()
    }

    /// Runs `run` with the state of transaction `generation`, which starts empty.
    fn with<R>(&self, generation: Generation, run: impl FnOnce(&mut NameState) -> R) -> R {
        let mut state = self.state.lock();
        if state.generation != generation {
            *state = NameState { generation, ..NameState::default() };
        }
        run(&mut state)
    }

    /// Notes that `name` is about to lead to another inode: to `next`, if that is known. `tree` is
    /// the subvolume before the change.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn note(
        &self,
        generation: Generation,
        tree: &Tree,
        directory: InodeNumber,
        name: &[u8],
        next: Option<InodeNumber>,
    ) -> Result<()> {
        let found = dir::look_up(tree, directory, name)?.map(|found| found.target);
        let (mut index, mut holder) = (None, None);
        if let Some(EntryTarget::Inode(inode)) = found {
            holder = Some(inode);
            for_each_name(tree, inode, |known| {
                let same = known.parent == directory && known.name == name;
                index = same.then_some(known.index);
                !same
            })?;
        }
        self.with(generation, |state| {
            let Some((names, fresh)) = state.slot(tree.id(), directory, name) else { return };
            let slot = names.get_mut(directory, name);
            if fresh {
                slot.index = index;
            }
            slot.subvolume |= matches!(found, Some(EntryTarget::Subvolume(_)));
            if let Some(inode) = holder
                && !slot.held.contains(&inode)
            {
                slot.held.push(inode);
            }
            for inode in holder.into_iter().chain(next) {
                names.list_slot(inode, directory, name);
            }
        });
        Ok(())
    }

    /// Notes that the free name `name` is about to be used. Returns whether this is the first note
    /// of it. If so and the change fails, the caller must [take it back](Self::take_back).
    pub fn note_free(
        &self,
        generation: Generation,
        tree: TreeId,
        directory: InodeNumber,
        name: &[u8],
    ) -> bool {
        self.with(generation, |state| state.slot(tree, directory, name).is_some_and(|(_, fresh)| fresh))
    }

    /// Removes the first note of a name, whose change failed.
    pub fn take_back(&self, generation: Generation, tree: TreeId, directory: InodeNumber, name: &[u8]) {
        self.with(generation, |state| state.remove(tree, directory, name));
    }

    /// Notes that a subvolume gets or loses `name`, which only a commit can express.
    pub fn note_subvolume(&self, generation: Generation, tree: TreeId, directory: InodeNumber, name: &[u8]) {
        self.with(generation, |state| {
            if let Some((names, _)) = state.slot(tree, directory, name) {
                names.get_mut(directory, name).subvolume = true;
            }
        });
    }

    /// Forgets an inode of this transaction that the log does not have and that lost its last name.
    /// `empty` is the slot of that name, free by now or in other use. The slot is removed if
    /// nothing else had it.
    pub fn forget(
        &self,
        generation: Generation,
        tree: TreeId,
        inode: InodeNumber,
        empty: Option<(InodeNumber, &[u8])>,
    ) {
        self.with(generation, |state| {
            let Some(names) = state.trees.get_mut(&tree) else { return };
            for (directory, name) in names.of.remove(&inode).unwrap_or_default() {
                if let Some(slot) = names.find_mut(directory, &name) {
                    slot.held.retain(|held| *held != inode);
                }
            }
            if let Some((directory, name)) = empty
                && names.find_mut(directory, name).is_some_and(|slot| slot.held.is_empty() && !slot.subvolume)
            {
                state.remove(tree, directory, name);
            }
        });
    }

    /// Whether any name that an inode had or has may have to be logged with it.
    pub(crate) fn concern(&self, generation: Generation, tree: TreeId, inode: InodeNumber) -> bool {
        self.with(generation, |state| {
            state.lost || state.trees.get(&tree).is_some_and(|names| names.of.contains_key(&inode))
        })
    }

    /// Runs `run` with the changed names of a subvolume; `None` if they are not all known.
    pub(super) fn with_subvolume<R>(
        &self,
        generation: Generation,
        tree: TreeId,
        run: impl FnOnce(Option<&TreeNames>) -> R,
    ) -> R {
        self.with(generation, |state| {
            if state.lost { run(None) } else { run(Some(&*state.trees.entry(tree).or_default())) }
        })
    }

    /// Removes slots, and the lists of inodes all of whose names the log now has.
    pub(super) fn entered<'a>(
        &self,
        generation: Generation,
        tree: TreeId,
        slots: impl Iterator<Item = &'a SlotKey>,
        inodes: impl Iterator<Item = InodeNumber>,
    ) {
        self.with(generation, |state| {
            for (directory, name) in slots {
                state.remove(tree, *directory, name);
            }
            let Some(names) = state.trees.get_mut(&tree) else { return };
            for inode in inodes {
                names.of.remove(&inode);
            }
        });
    }
}

impl NameState {
    /// Returns the changed names of a subvolume with this slot among them, and whether the slot is
    /// new. `None` if there are too many.
    fn slot(&mut self, tree: TreeId, directory: InodeNumber, name: &[u8]) -> Option<(&mut TreeNames, bool)> {
        if self.lost {
            return None;
        }
        if self.slots >= MAX_SLOTS {
            (self.lost, self.slots) = (true, 0);
            self.trees.clear();
            return None;
        }
        let names = self.trees.entry(tree).or_default();
        let of_directory = names.slots.entry(directory).or_default();
        let fresh = !of_directory.contains_key(name);
        if fresh {
            of_directory.insert(name.into(), Slot::default());
            self.slots += 1;
        }
        Some((names, fresh))
    }

    fn remove(&mut self, tree: TreeId, directory: InodeNumber, name: &[u8]) {
        let Some(names) = self.trees.get_mut(&tree) else { return };
        let Some(of_directory) = names.slots.get_mut(&directory) else { return };
        let Some(_) = of_directory.remove(name) else { return };
        if of_directory.is_empty() {
            names.slots.remove(&directory);
        }
        self.slots -= 1;
    }
}

impl TreeNames {
    /// The slot of a name, if it changed.
    pub(super) fn find(&self, directory: InodeNumber, name: &[u8]) -> Option<&Slot> {
        self.slots.get(&directory)?.get(name)
    }

    fn find_mut(&mut self, directory: InodeNumber, name: &[u8]) -> Option<&mut Slot> {
        self.slots.get_mut(&directory)?.get_mut(name)
    }

    fn get_mut(&mut self, directory: InodeNumber, name: &[u8]) -> &mut Slot {
        self.find_mut(directory, name).expect("the slot was just noted")
    }

    /// Lists a slot among those that an inode had or gets.
    fn list_slot(&mut self, inode: InodeNumber, directory: InodeNumber, name: &[u8]) {
        let of = self.of.entry(inode).or_default();
        if !of.iter().any(|(known, known_name)| *known == directory && **known_name == *name) {
            of.push((directory, name.into()));
        }
    }

    /// The changed slots among those that an inode had or got.
    pub(super) fn slots_of(&self, inode: InodeNumber) -> impl Iterator<Item = &SlotKey> {
        let known = self.of.get(&inode).into_iter().flatten();
        known.filter(|(directory, name)| self.find(*directory, name).is_some())
    }

    /// The changed names in a directory.
    pub(super) fn slots_in(&self, directory: InodeNumber) -> impl Iterator<Item = &[u8]> {
        self.slots.get(&directory).into_iter().flat_map(|names| names.keys().map(|name| &**name))
    }
}

#[cfg(test)]
mod tests;
