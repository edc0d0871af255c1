//! Names that have to be logged together.
//!
//! Owns [`Related`]. The last commit with the log on top has to be a state that could have existed.
//! Logging some slots without others could take the last name from an inode that has another one by
//! now, leave a renamed inode both names, or put a directory below itself. So
//! - a slot brings all inodes that had it, the inode that has it, and its directory's path up to
//!   the root;
//! - an inode brings all of its changed slots;
//! - a directory that is gone brings everything that was in it.
//!
//! Slots that have not changed since they were logged do not count. Where nothing was moved, the
//! result is one file and one name.
//!
//! **Invariant**: the result comes from one version of the tree, and no names change meanwhile.
//!
//! Locks: none; the caller holds those of [`super::name_changes`].
//!
//! Kernel counterparts: `log_new_dir_dentries`, `log_conflicting_inodes`, `btrfs_log_all_parents`,
//! `log_new_ancestors` (`fs/btrfs/tree-log.c`), which find a part of it and commit where that may
//! be too little.

use super::name_changes::{SlotKey, TreeNames};
use crate::btree::Tree;
use crate::errors::Result;
use crate::items::dir::{self, EntryTarget};
use crate::items::inode::{self, for_each_name};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::{Generation, InodeNumber};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Most inodes and slots that are logged at once. Beyond that, a commit is as quick.
const MAX_RELATED: usize = 4096;

/// Inodes and slots that are to be logged together.
#[derive(Debug, Default)]
pub(super) struct Related {
    /// Inodes that still have a name.
    pub(super) inodes: BTreeMap<InodeNumber, InodeItem>,
    /// Inodes without a name by now.
    pub(super) gone: BTreeSet<InodeNumber>,
    pub(super) slots: BTreeSet<SlotKey>,
    /// Entries that a replay must remove, by directory and index.
    pub(super) removed: BTreeSet<(InodeNumber, u64)>,
}

/// A pending step of the search.
enum SearchStep {
    Inode(InodeNumber),
    Slot(SlotKey),
    /// A directory and its ancestors.
    Ancestors(InodeNumber),
}

struct Search<'a> {
    names: &'a TreeNames,
    tree: &'a Tree,
    found: Related,
    climbed: HashSet<InodeNumber>,
    work: Vec<SearchStep>,
    /// If set, directories of this generation bring all changed names in them.
    new: Option<Generation>,
}

impl Related {
    /// Finds everything that has to be logged with `inode`. If it is a directory, that includes all
    /// changed names in it and in new directories below it. `generation` is the running
    /// transaction's. The inner error says why the log cannot express the change.
    pub(super) fn of(
        names: &TreeNames,
        tree: &Tree,
        generation: Generation,
        inode: InodeNumber,
    ) -> Result<Result<Self, &'static str>> {
        let kind = inode::inode(tree, inode)?.and_then(|item| item.kind());
        let new = (kind == Some(FileKind::Directory)).then_some(generation);
        let mut search = Search {
            names,
            tree,
            found: Self::default(),
            climbed: HashSet::new(),
            work: vec![SearchStep::Inode(inode)],
            new,
        };
        if new.is_some() {
            search.all_in(inode);
        }
        while let Some(work) = search.work.pop() {
            let refused = match work {
                SearchStep::Inode(inode) => {
                    search.inode(inode)?;
                    None
                }
                SearchStep::Slot(slot) => search.slot(slot)?,
                SearchStep::Ancestors(directory) => {
                    search.ancestors(directory)?;
                    None
                }
            };
            if let Some(why) = refused {
                return Ok(Err(why));
            }
            let found = &search.found;
            if found.inodes.len() + found.gone.len() + found.slots.len() > MAX_RELATED {
                return Ok(Err("too many names changed with it"));
            }
        }
        Ok(Ok(search.found))
    }
}

impl Search<'_> {
    fn all_in(&mut self, directory: InodeNumber) {
        let slots = self.names.slots_in(directory).map(|name| SearchStep::Slot((directory, name.into())));
        self.work.extend(slots);
    }

    fn inode(&mut self, inode: InodeNumber) -> Result<()> {
        if self.found.inodes.contains_key(&inode) || self.found.gone.contains(&inode) {
            return Ok(());
        }
        self.work.extend(self.names.slots_of(inode).cloned().map(SearchStep::Slot));
        let Some(item) = inode::inode(self.tree, inode)?.filter(|item| item.nlink > 0) else {
            self.found.gone.insert(inode);
            // Names that were in a lost directory go with its own. Other kinds have none.
            self.all_in(inode);
            return Ok(());
        };
        self.found.inodes.insert(inode, item);
        if item.kind() == Some(FileKind::Directory) && self.new == Some(item.generation) {
            self.all_in(inode);
        }
        // An inode created with its first name has no list of slots, so look at its names too.
        let (names, work) = (self.names, &mut self.work);
        for_each_name(self.tree, inode, |name| {
            if names.find(name.parent, &name.name).is_some() {
                work.push(SearchStep::Slot((name.parent, name.name.into())));
            }
            true
        })
    }

    /// Returns why the log cannot express the slot, if so.
    fn slot(&mut self, key: SlotKey) -> Result<Option<&'static str>> {
        if self.found.slots.contains(&key) {
            return Ok(None);
        }
        let (directory, name) = (key.0, &*key.1);
        let Some(slot) = self.names.find(directory, name) else { return Ok(None) };
        if slot.subvolume {
            return Ok(Some("a subvolume was created or removed"));
        }
        self.work.extend(slot.held.iter().map(|inode| SearchStep::Inode(*inode)));
        match dir::look_up(self.tree, directory, name)?.map(|found| found.target) {
            Some(EntryTarget::Inode(inode)) => self.work.push(SearchStep::Inode(inode)),
            Some(EntryTarget::Subvolume(_)) => return Ok(Some("a subvolume was created or removed")),
            None => {}
        }
        self.work.push(SearchStep::Ancestors(directory));
        if let Some(index) = slot.index {
            self.found.removed.insert((directory, index));
        }
        self.found.slots.insert(key);
        Ok(None)
    }

    /// Adds the changed names of a directory and of its ancestors.
    fn ancestors(&mut self, directory: InodeNumber) -> Result<()> {
        let mut next = Some(directory);
        while let Some(directory) = next.take().filter(|directory| self.climbed.insert(*directory)) {
            let alive = inode::inode(self.tree, directory)?.is_some_and(|item| item.nlink > 0);
            if !alive {
                self.work.push(SearchStep::Inode(directory));
                break;
            }
            if let Some(name) = inode::first_name(self.tree, directory)? {
                if self.names.find(name.parent, &name.name).is_some() {
                    self.work.push(SearchStep::Slot((name.parent, name.name.into())));
                }
                next = Some(name.parent);
            }
        }
        Ok(())
    }
}
