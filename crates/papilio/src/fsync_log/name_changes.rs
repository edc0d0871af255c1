//! Names that changed in the running transaction and that its log does not say yet.
//!
//! Owns [`NameChanges`]. A *slot* is a name in a directory, whether anything has it or not. For each slot that may
//! lead elsewhere than the last commit with the log on top of it says, there is a [`Slot`]: the index under which
//! that has an entry there, and which inodes had the slot since. Where there is none, replay brings just
//! what is there now.
//!
//! Invariants: a slot is noted before its change is seen in the tree, by who holds [`NameChanges::changing`]
//! until it is; slots are taken out only by who holds [`NameChanges::entering`] and entered them into the log, and all
//! go with the transaction. Slots of subvolumes stay, as only a commit can say them. Locks: the one on
//! names, shared by who changes them and exclusive for who enters them into the log, before a tree's writer; the
//! table's, inside which only blocks are read. Kernel counterpart: `btrfs_record_unlink_dir`, `btrfs_log_new_name`
//! (`fs/btrfs/tree-log.c`), which keep less and so know less.

use crate::btree::Tree;
use crate::errors::Result;
use crate::items::dir::{self, EntryTarget};
use crate::items::inode::for_each_name;
use papilio_format::{Generation, InodeNumber, TreeId};
use papilio_locks::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;

/// Slots that are kept of one transaction; beyond that names are made durable by commits.
const MAX_SLOTS: usize = 1 << 16;

/// A name in a directory.
pub(super) type SlotKey = (InodeNumber, Box<[u8]>);

/// Names that changed in the running transaction.
#[derive(Debug, Default)]
pub(crate) struct NameChanges {
    changing: RwLock<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    generation: Generation,
    trees: HashMap<TreeId, TreeNames>,
    slots: usize,
    /// They were too many to be kept.
    lost: bool,
}

/// Those of one subvolume.
#[derive(Debug, Default)]
pub(super) struct TreeNames {
    /// By directory and name.
    slots: HashMap<InodeNumber, HashMap<Box<[u8]>, Slot>>,
    /// The slots that an inode had or gets.
    of: HashMap<InodeNumber, Vec<SlotKey>>,
}

/// What is known of a slot.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The index of the entry that a replay of the log as it is would find or leave there.
    pub(super) index: Option<u64>,
    /// Inodes that had it.
    pub(super) held: Vec<InodeNumber>,
    /// It led to a subvolume, or does.
    pub(super) subvolume: bool,
}

impl NameChanges {
    /// To be held while a slot is noted and changed, or an inode without its names is entered into the log.
    pub(crate) fn changing(&self) -> RwLockReadGuard<'_, ()> {
        self.changing.read()
    }

    /// To be held while names are entered into the log.
    pub(crate) fn entering(&self) -> RwLockWriteGuard<'_, ()> {
        self.changing.write()
    }

    fn with<R>(&self, generation: Generation, run: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        if state.generation != generation {
            *state = State { generation, ..State::default() };
        }
        run(&mut state)
    }

    /// What `name` leads to is about to change: to `next`, where that is known. `tree` is the subvolume
    /// as it is.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(crate) fn note(
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
                names.belongs(inode, directory, name);
            }
        });
        Ok(())
    }

    /// Something is about to get `name`, which is free. Says whether it is the first that is noted of it: where
    /// nothing comes of the change, it is to be [taken back](Self::take_back).
    pub(crate) fn note_free(
        &self,
        generation: Generation,
        tree: TreeId,
        directory: InodeNumber,
        name: &[u8],
    ) -> bool {
        self.with(generation, |state| state.slot(tree, directory, name).is_some_and(|(_, fresh)| fresh))
    }

    /// Nothing came of a change that was the first to be noted.
    pub(crate) fn take_back(
        &self,
        generation: Generation,
        tree: TreeId,
        directory: InodeNumber,
        name: &[u8],
    ) {
        self.with(generation, |state| state.remove(tree, directory, name));
    }

    /// A subvolume gets `name`, or loses it: only a commit says that.
    pub(crate) fn note_subvolume(
        &self,
        generation: Generation,
        tree: TreeId,
        directory: InodeNumber,
        name: &[u8],
    ) {
        self.with(generation, |state| {
            if let Some((names, _)) = state.slot(tree, directory, name) {
                names.get_mut(directory, name).subvolume = true;
            }
        });
    }

    /// An inode of this transaction that the log does not have lost its last name, the slot of which is `empty`
    /// now, or something else's: nothing will ever tell of it.
    pub(crate) fn forget(
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

    /// Whether any of the names that an inode had or has may have to be logged with it.
    pub(crate) fn concern(&self, generation: Generation, tree: TreeId, inode: InodeNumber) -> bool {
        self.with(generation, |state| {
            state.lost || state.trees.get(&tree).is_some_and(|names| names.of.contains_key(&inode))
        })
    }

    /// Looks at those of a subvolume; `None` where they are not all known.
    pub(super) fn look<R>(
        &self,
        generation: Generation,
        tree: TreeId,
        run: impl FnOnce(Option<&TreeNames>) -> R,
    ) -> R {
        self.with(generation, |state| {
            if state.lost { run(None) } else { run(Some(&*state.trees.entry(tree).or_default())) }
        })
    }

    /// The log says all of these slots now, and thereby all names of these inodes.
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

impl State {
    /// The names of a subvolume, of which this slot is one; and whether it is new. `None` where there are too many.
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
    /// A slot, if it changed.
    pub(super) fn find(&self, directory: InodeNumber, name: &[u8]) -> Option<&Slot> {
        self.slots.get(&directory)?.get(name)
    }

    fn find_mut(&mut self, directory: InodeNumber, name: &[u8]) -> Option<&mut Slot> {
        self.slots.get_mut(&directory)?.get_mut(name)
    }

    fn get_mut(&mut self, directory: InodeNumber, name: &[u8]) -> &mut Slot {
        self.find_mut(directory, name).expect("it was just noted")
    }

    fn belongs(&mut self, inode: InodeNumber, directory: InodeNumber, name: &[u8]) {
        let of = self.of.entry(inode).or_default();
        if !of.iter().any(|(known, known_name)| *known == directory && **known_name == *name) {
            of.push((directory, name.into()));
        }
    }

    /// The slots that changed of those that an inode had or got.
    pub(super) fn slots_of(&self, inode: InodeNumber) -> impl Iterator<Item = &SlotKey> {
        let known = self.of.get(&inode).into_iter().flatten();
        known.filter(|(directory, name)| self.find(*directory, name).is_some())
    }

    /// The names that changed in a directory.
    pub(super) fn slots_in(&self, directory: InodeNumber) -> impl Iterator<Item = &[u8]> {
        self.slots.get(&directory).into_iter().flat_map(|names| names.keys().map(|name| &**name))
    }
}
