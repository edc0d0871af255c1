//! A subvolume in memory, with its numbers and its clock.

use super::consistency;
use crate::btree::testing::TestForest;
use crate::btree::{LiveTree, TreeEditor};
use crate::errors::{Error, PathError, Result};
use crate::items::inode_ref_edit::Name;
use crate::items::numbers::SubvolumeNumbers;
use crate::items::{dir, inode};
use crate::namespace::create::{self, NewInode, NewKind, RootInheritance};
use crate::namespace::link::{self, Removed};
use crate::namespace::rename::{self, RenameMode, Renamed};
use papilio_format::items::inode::{InodeFlags, InodeItem, Timespec};
use papilio_format::{InodeNumber, TreeId, objectid};
use std::cell::Cell;

pub(super) const ROOT: InodeNumber = objectid::FIRST_INODE;

pub(super) struct World {
    pub(super) forest: TestForest,
    pub(super) tree: LiveTree,
    pub(super) numbers: SubvolumeNumbers,
    clock: Cell<i64>,
}

pub(super) fn file() -> NewInode<'static> {
    NewInode {
        kind: NewKind::Regular,
        mode: 0o666,
        umask: 0o022,
        uid: 1000,
        gid: 100,
        file_flags: InodeFlags::empty(),
    }
}

pub(super) fn directory() -> NewInode<'static> {
    NewInode { kind: NewKind::Directory, mode: 0o777, ..file() }
}

/// Returns the POSIX reason of a failure.
#[track_caller]
pub(super) fn reason<T: std::fmt::Debug>(result: Result<T>) -> PathError {
    match result {
        Err(Error::Path { kind, .. }) => kind,
        other => panic!("expected a POSIX reason, got {other:?}"),
    }
}

impl World {
    pub(super) fn new(node_size: u32) -> Self {
        Self::over(TestForest::new(node_size))
    }

    pub(super) fn over(forest: TestForest) -> Self {
        let tree = forest.live_tree(TreeId(256));
        let world = Self { forest, tree, numbers: SubvolumeNumbers::default(), clock: Cell::new(1) };
        let new = NewInode { umask: 0, mode: 0o755, ..directory() };
        let created =
            world.edit(|editor, _, now| create::create_root(editor, now, RootInheritance::default(), &new));
        assert_eq!(created.unwrap().inode, ROOT);
        world
    }

    /// The time of the last change, in seconds.
    pub(super) fn clock(&self) -> i64 {
        self.clock.get()
    }

    /// Makes one change, a second after the previous one.
    pub(super) fn edit<R>(
        &self,
        change: impl FnOnce(&mut TreeEditor<'_>, &SubvolumeNumbers, Timespec) -> Result<R>,
    ) -> Result<R> {
        self.clock.set(self.clock.get() + 1);
        let now = Timespec { seconds: self.clock.get(), nanoseconds: 7 };
        change(&mut self.tree.edit(&self.forest.allocator), &self.numbers, now)
    }

    pub(super) fn create(&self, parent: InodeNumber, name: &[u8], new: &NewInode<'_>) -> Result<InodeNumber> {
        self.edit(|editor, numbers, now| create::create(editor, numbers, now, parent, name, new))
            .map(|created| created.inode)
    }

    pub(super) fn file(&self, parent: InodeNumber, name: &[u8]) -> InodeNumber {
        self.create(parent, name, &file()).unwrap()
    }

    pub(super) fn mkdir(&self, parent: InodeNumber, name: &[u8]) -> InodeNumber {
        self.create(parent, name, &directory()).unwrap()
    }

    pub(super) fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<InodeItem> {
        self.edit(|editor, numbers, now| link::link(editor, numbers, now, inode, false, parent, name))
    }

    pub(super) fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<Removed> {
        self.edit(|editor, _, now| link::unlink(editor, now, parent, name))
    }

    pub(super) fn rmdir(&self, parent: InodeNumber, name: &[u8]) -> Result<Removed> {
        self.edit(|editor, _, now| link::rmdir(editor, now, parent, name))
    }

    pub(super) fn rename(
        &self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<Renamed> {
        let name = |(parent, name)| Name { parent, name };
        self.edit(|editor, numbers, now| rename::rename(editor, numbers, now, name(from), name(to), mode))
    }

    pub(super) fn item(&self, number: InodeNumber) -> InodeItem {
        inode::inode(&self.tree.tree(), number).unwrap().expect("the inode exists")
    }

    pub(super) fn look_up(&self, parent: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        match dir::look_up(&self.tree.tree(), parent, name).unwrap()?.target {
            dir::EntryTarget::Inode(number) => Some(number),
            other => panic!("{other:?}"),
        }
    }

    /// Checks the items against each other, and the blocks with the tree checker.
    pub(super) fn check(&self) {
        consistency::check(&self.tree.tree());
        self.forest.write_out(&self.tree);
        self.forest.forest.drop_cache();
    }
}
