//! The names at the receiver while a stream is applied.
//!
//! Owns [`Names`]: it knows every name that the receiver has at this point of the stream, and emits
//! the commands that change one. [`super::moves`] decides which names change.
//!
//! An inode without one of its final names has a name *aside*: `o<inode>-<generation>-<n>` in the
//! root. New inodes begin there, and so do inodes whose first name another inode gets.
//!
//! Kernel counterparts: `gen_unique_name`, `get_cur_path`, `orphanize_inode` (`fs/btrfs/send.c`).

use super::id::Id;
use super::stream::StreamWriter;
use super::symlink::symlink_target;
use super::waiting::Waiting;
use papilio_engine::btree::Tree;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::items::dir::{self, EntryTarget};
use papilio_engine::items::inode;
use papilio_format::InodeNumber;
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::send_stream::Command;
use std::collections::{HashMap, HashSet};

/// Most names in a path. A longer path means a loop.
pub(super) const DEPTH_LIMIT: usize = 4096;

/// A name: its directory and its last component.
pub(super) type Place = (Id, Vec<u8>);

/// The fate of an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    /// The inode in the parent, if the stream removes it.
    pub(super) removed: Option<InodeItem>,
    /// Whether the stream creates it.
    pub(super) created: bool,
}

/// The names at the receiver.
pub(super) struct Names<'a> {
    old: Option<&'a Tree>,
    new: &'a Tree,
    /// The inodes that the stream creates or removes.
    fates: HashMap<u64, Fate>,
    /// The inode whose turn it is. Those before it have their final names, except for directories
    /// that wait.
    pub(super) turn: u64,
    /// The created inodes that exist before their turn.
    early: HashSet<u64>,
    /// Names of inodes that were touched and do not have their final names yet.
    names: HashMap<Id, Vec<Place>>,
    /// The names aside that inodes have.
    asides: HashMap<Id, Place>,
    /// Names that were given or taken away.
    entries: HashMap<Place, Option<Id>>,
    /// Paths of directories, until one moves.
    paths: HashMap<Id, Vec<u8>>,
    /// Created directories whose paths may be part of another path that is known.
    inhabited: HashSet<Id>,
    /// Entries left in directories that go, from the first question on.
    left: HashMap<Id, usize>,
    /// Directories that wait until another one has moved.
    pub(super) waiting: Waiting,
    /// Whether a name in the root was given or taken away in passing.
    pub(super) passed_root: bool,
}

impl<'a> Names<'a> {
    pub(super) fn new(old: Option<&'a Tree>, new: &'a Tree, fates: HashMap<u64, Fate>) -> Self {
        Self {
            old,
            new,
            fates,
            turn: 0,
            early: HashSet::new(),
            names: HashMap::new(),
            asides: HashMap::new(),
            entries: HashMap::new(),
            paths: HashMap::new(),
            inhabited: HashSet::new(),
            left: HashMap::new(),
            waiting: Waiting::default(),
            passed_root: false,
        }
    }

    /// Returns the parent's tree, unless the stream is a full one.
    pub(super) fn old(&self) -> Option<&'a Tree> {
        self.old
    }

    /// Returns the tree that is sent.
    pub(super) fn new_tree(&self) -> &'a Tree {
        self.new
    }

    /// Whether the stream creates any inode.
    pub(super) fn creates_any(&self) -> bool {
        self.fates.values().any(|fate| fate.created)
    }

    /// Returns what becomes of an inode, unless it lasts.
    pub(super) fn fate(&self, number: u64) -> Option<Fate> {
        self.fates.get(&number).copied()
    }

    /// Returns the inode that the parent has under `number`.
    pub(super) fn old_id(&self, number: u64) -> Id {
        Id { number, doomed: self.fates.get(&number).is_some_and(|fate| fate.removed.is_some()) }
    }

    pub(super) fn is_created(&self, id: Id) -> bool {
        !id.doomed && self.fates.get(&id.number).is_some_and(|fate| fate.created)
    }

    /// Whether the receiver has the inode at this point. A directory that went does not count.
    pub(super) fn exists(&self, id: Id) -> bool {
        !self.is_created(id) || id.number < self.turn || self.early.contains(&id.number)
    }

    /// Whether an inode has its final names.
    fn is_settled(&self, id: Id) -> bool {
        !id.doomed && id.number < self.turn && !self.waiting.contains(id.number)
    }

    /// Notes that an inode has its final names, unless it waits. The next turn may begin.
    pub(super) fn end_turn(&mut self, number: u64) {
        self.turn = number + 1;
        self.early.remove(&number);
        if !self.waiting.contains(number) {
            self.names.remove(&Id::lasting(number));
        }
    }

    /// Forgets the names of a directory that no longer waits, as its tree has them.
    pub(super) fn settled(&mut self, number: u64) {
        self.names.remove(&Id::lasting(number));
    }

    /// Returns the names of an inode at this point. A name aside is the last one.
    pub(super) fn names_of(&self, id: Id) -> Result<Vec<Place>> {
        if let Some(names) = self.names.get(&id) {
            return Ok(names.clone());
        }
        if self.is_settled(id) {
            return self.targets_of(id);
        }
        if self.is_created(id) { Ok(Vec::new()) } else { self.old_names_of(id) }
    }

    /// Returns the names of an inode in the parent.
    pub(super) fn old_names_of(&self, id: Id) -> Result<Vec<Place>> {
        let mut names = Vec::new();
        if let Some(old) = self.old {
            inode::for_each_name(old, InodeNumber(id.number), |name| {
                names.push((self.old_id(name.parent.0), name.name));
                true
            })?;
        }
        Ok(names)
    }

    /// Returns the names of an inode in the new tree.
    pub(super) fn targets_of(&self, id: Id) -> Result<Vec<Place>> {
        let mut names = Vec::new();
        inode::for_each_name(self.new, InodeNumber(id.number), |name| {
            names.push((Id::lasting(name.parent.0), name.name));
            true
        })?;
        Ok(names)
    }

    /// Returns the name aside that an inode has at this point.
    pub(super) fn aside_of(&self, id: Id) -> Option<Place> {
        self.asides.get(&id).cloned()
    }

    /// Returns the inode that has a name at this point.
    pub(super) fn occupant(&self, place: &Place) -> Result<Option<Id>> {
        if let Some(entry) = self.entries.get(place) {
            return Ok(*entry);
        }
        let Some(old) = self.old.filter(|_| !self.is_created(place.0)) else { return Ok(None) };
        let found = dir::look_up(old, InodeNumber(place.0.number), &place.1)?;
        Ok(match found.map(|found| found.target) {
            Some(EntryTarget::Inode(number)) => Some(self.old_id(number.0)),
            // The entry of a nested subvolume is not sent.
            Some(EntryTarget::Subvolume(_)) | None => None,
        })
    }

    /// Whether a directory that goes has no entries any more.
    pub(super) fn is_empty(&mut self, id: Id) -> Result<bool> {
        if let Some(left) = self.left.get(&id) {
            return Ok(*left == 0);
        }
        let mut left = 0;
        if let Some(old) = self.old {
            let number = InodeNumber(id.number);
            for item in old.range(dir::index_first_key(number, 0)..=dir::index_last_key(number)) {
                for entry in dir::entries_of(old, &item?)? {
                    left += usize::from(self.occupant(&(id, entry.name.to_vec()))?.is_some());
                }
            }
        }
        self.left.insert(id, left);
        Ok(left == 0)
    }

    /// Returns the path of an inode at this point.
    pub(super) fn path_of(&mut self, id: Id) -> Result<Vec<u8>> {
        self.path_within(id, 0)
    }

    fn path_within(&mut self, id: Id, depth: usize) -> Result<Vec<u8>> {
        if id == Id::ROOT {
            return Ok(Vec::new());
        }
        if let Some(path) = self.paths.get(&id) {
            return Ok(path.clone());
        }
        let missing = || missing(id);
        if depth > DEPTH_LIMIT {
            return Err(missing());
        }
        let (parent, name) = self.names_of(id)?.into_iter().next().ok_or_else(missing)?;
        let directory = self.path_within(parent, depth + 1)?;
        self.remember(parent, &directory);
        Ok(join(directory, &name))
    }

    /// Returns the path of a name, whether any inode has it or not.
    pub(super) fn path_at(&mut self, place: &Place) -> Result<Vec<u8>> {
        let directory = self.path_of(place.0)?;
        self.remember(place.0, &directory);
        Ok(join(directory, &place.1))
    }

    fn remember(&mut self, directory: Id, path: &[u8]) {
        if directory != Id::ROOT && !self.paths.contains_key(&directory) {
            self.paths.insert(directory, path.to_vec());
        }
        if self.is_created(directory) {
            self.inhabited.insert(directory);
        }
    }

    fn give(&mut self, id: Id, place: Place) -> Result<()> {
        let mut names = self.names_of(id)?;
        names.push(place.clone());
        self.names.insert(id, names);
        if self.old.is_some() {
            self.entries.insert(place, Some(id));
        }
        Ok(())
    }

    fn take(&mut self, id: Id, place: &Place) -> Result<()> {
        let mut names = self.names_of(id)?;
        names.retain(|name| name != place);
        self.names.insert(id, names);
        if self.asides.get(&id) == Some(place) {
            self.asides.remove(&id);
        }
        if self.old.is_some() {
            self.entries.insert(place.clone(), None);
        }
        if let Some(left) = self.left.get_mut(&place.0) {
            *left -= 1;
        }
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        out: &mut StreamWriter<'_>,
        id: Id,
        from: &Place,
        to: Place,
    ) -> Result<()> {
        let (source, target) = (self.path_at(from)?, self.path_at(&to)?);
        out.put(&Command::Rename { from: source, to: target })?;
        self.passed_root |= from.0 == Id::ROOT || to.0 == Id::ROOT;
        self.paths.remove(&id);
        // A directory that was just created, and a file, are in no other path.
        let alone = self.is_created(id) && !self.inhabited.contains(&id);
        if !alone && self.kind_of(id)? == Some(FileKind::Directory) {
            self.paths.clear();
        }
        self.take(id, from)?;
        self.give(id, to)
    }

    pub(super) fn link(&mut self, out: &mut StreamWriter<'_>, id: Id, from: &Place, to: Place) -> Result<()> {
        let (path, existing) = (self.path_at(&to)?, self.path_at(from)?);
        out.put(&Command::Link { path, existing })?;
        self.give(id, to)
    }

    pub(super) fn unlink(&mut self, out: &mut StreamWriter<'_>, id: Id, place: &Place) -> Result<()> {
        let path = self.path_at(place)?;
        out.put(&Command::Unlink { path })?;
        self.take(id, place)
    }

    /// Removes a directory, which is empty.
    pub(super) fn remove_directory(&mut self, out: &mut StreamWriter<'_>, id: Id) -> Result<()> {
        let place = self.names_of(id)?.into_iter().next().ok_or_else(|| missing(id))?;
        let path = self.path_at(&place)?;
        out.put(&Command::Rmdir { path })?;
        self.paths.remove(&id);
        self.take(id, &place)
    }

    pub(super) fn kind_of(&self, id: Id) -> Result<Option<FileKind>> {
        if id.doomed {
            let fate = self.fates.get(&id.number).and_then(|fate| fate.removed);
            return Ok(fate.and_then(|item| item.kind()));
        }
        Ok(inode::inode(self.new, InodeNumber(id.number))?.and_then(|item| item.kind()))
    }

    /// Gives an inode a name aside in place of `place`.
    pub(super) fn set_aside(&mut self, out: &mut StreamWriter<'_>, id: Id, place: &Place) -> Result<()> {
        let tree = if id.doomed { self.old.unwrap_or(self.new) } else { self.new };
        let item = inode::inode(tree, InodeNumber(id.number))?;
        let aside = self.unused_name(id, item.map_or(0, |item| item.generation.0))?;
        self.rename(out, id, place, aside.clone())?;
        self.asides.insert(id, aside);
        Ok(())
    }

    /// Returns a name in the root that no inode has or gets.
    fn unused_name(&self, id: Id, generation: u64) -> Result<Place> {
        for index in 0u64.. {
            let name = format!("o{}-{generation}-{index}", id.number).into_bytes();
            let aside = (Id::ROOT, name);
            let wanted = dir::look_up(self.new, InodeNumber(Id::ROOT.number), &aside.1)?.is_some();
            if !wanted && self.occupant(&aside)?.is_none() {
                return Ok(aside);
            }
        }
        unreachable!("a directory has fewer than 2^64 names")
    }

    /// Creates an inode under a name aside.
    pub(super) fn create(&mut self, out: &mut StreamWriter<'_>, id: Id) -> Result<()> {
        let item = inode::inode(self.new, InodeNumber(id.number))?.ok_or_else(|| missing(id))?;
        let aside = self.unused_name(id, item.generation.0)?;
        out.put(&self.creation(id, aside.1.clone(), &item)?)?;
        self.passed_root = true;
        self.early.insert(id.number);
        self.give(id, aside.clone())?;
        self.asides.insert(id, aside);
        Ok(())
    }

    fn creation(&self, id: Id, path: Vec<u8>, item: &InodeItem) -> Result<Command> {
        let inode = id.number;
        let (rdev, mode) = (host_device(item), u64::from(item.mode));
        Ok(match item.kind() {
            Some(FileKind::Directory) => Command::Mkdir { path, inode },
            Some(FileKind::Symlink) => {
                Command::Symlink { path, inode, target: symlink_target(self.new, inode)? }
            }
            Some(FileKind::Fifo) => Command::Mkfifo { path, inode, rdev: 0, mode },
            Some(FileKind::Socket) => Command::Mksock { path, inode, rdev: 0, mode },
            Some(FileKind::CharacterDevice | FileKind::BlockDevice) => {
                Command::Mknod { path, inode, rdev, mode }
            }
            Some(FileKind::Regular) | None => Command::Mkfile { path, inode },
        })
    }
}

/// The error of a name or an inode that a tree should have.
pub(super) fn missing(id: Id) -> Error {
    Error::path(format!("inode {}", id.number).as_bytes(), PathError::NotFound)
}

fn join(mut directory: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !directory.is_empty() {
        directory.push(b'/');
    }
    directory.extend_from_slice(name);
    directory
}

/// Packs a device number as `new_encode_dev` does, which is how streams hold it.
fn host_device(item: &InodeItem) -> u64 {
    let (major, minor) = item.device_number();
    u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}
