//! The names at the receiver while a stream is applied.
//!
//! Owns [`Names`]: it knows every name that the receiver has at this point of the stream, and emits
//! the commands that lead from the parent's names to the new ones.
//!
//! **Method.** Each inode is brought to its final names in turn. A name that another inode still
//! has is freed first: that inode gets the name `o<inode>-<generation>-<n>` in the root until its
//! turn comes. A directory that would move below itself frees the first directory on the way that
//! has to move as well. Directories that go are removed at the end, the deepest first. An inode
//! that would inherit attributes from its directory is created in the root, and moved.
//!
//! Kernel counterpart: `process_recorded_refs` (`fs/btrfs/send.c`), whose order of commands differs
//! where it delays moves.

use super::stream::StreamWriter;
use super::symlink::symlink_target;
use crate::btree::Tree;
use crate::errors::{Error, PathError, Result};
use crate::items::dir::{self, EntryTarget};
use crate::items::{inode, xattr};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::send_stream::Command;
use papilio_format::{InodeNumber, objectid};
use std::collections::{HashMap, HashSet};

/// Most names in a path. A longer path means a loop.
const DEPTH_LIMIT: usize = 4096;

/// An inode at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) number: u64,
    /// Whether this is an inode of the parent that the new tree lacks; its number may be in use
    /// again.
    pub(super) doomed: bool,
}

impl Id {
    pub(super) const ROOT: Self = Self::lasting(objectid::FIRST_INODE.0);

    pub(super) const fn lasting(number: u64) -> Self {
        Self { number, doomed: false }
    }
}

/// A name: its directory and its last component.
type Place = (Id, Vec<u8>);

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
    /// The created inodes that exist by now.
    existing: HashSet<u64>,
    /// Names of inodes that were touched.
    names: HashMap<Id, Vec<Place>>,
    /// Names that were given or taken away.
    entries: HashMap<Place, Option<Id>>,
    /// Paths of directories, until one moves.
    paths: HashMap<Id, Vec<u8>>,
    /// Whether new entries of a directory of the parent inherit attributes.
    bequeathing: HashMap<u64, bool>,
}

/// Whether inodes inherit an attribute from their directory, in this or another form.
pub(super) fn is_inherited(name: &[u8]) -> bool {
    matches!(name, b"btrfs.compression" | b"system.posix_acl_default")
}

impl<'a> Names<'a> {
    pub(super) fn new(old: Option<&'a Tree>, new: &'a Tree, fates: HashMap<u64, Fate>) -> Self {
        Self {
            old,
            new,
            fates,
            existing: HashSet::new(),
            names: HashMap::new(),
            entries: HashMap::new(),
            paths: HashMap::new(),
            bequeathing: HashMap::new(),
        }
    }

    /// Whether the stream creates any inode.
    pub(super) fn creates_any(&self) -> bool {
        self.fates.values().any(|fate| fate.created)
    }

    /// Whether inodes that the stream creates in a directory inherit attributes. Those of the root
    /// are taken away meanwhile, and new directories have none yet.
    fn bequeaths(&mut self, directory: Id) -> Result<bool> {
        let Some(old) = self.old.filter(|_| directory != Id::ROOT && !self.is_created(directory)) else {
            return Ok(false);
        };
        if let Some(known) = self.bequeathing.get(&directory.number) {
            return Ok(*known);
        }
        let attributes = xattr::list(old, InodeNumber(directory.number))?;
        let bequeaths = attributes.iter().any(|attribute| is_inherited(&attribute.name));
        self.bequeathing.insert(directory.number, bequeaths);
        Ok(bequeaths)
    }

    /// Returns what becomes of an inode, unless it lasts.
    pub(super) fn fate(&self, number: u64) -> Option<Fate> {
        self.fates.get(&number).copied()
    }

    /// Returns the inode that the parent has under `number`.
    fn old_id(&self, number: u64) -> Id {
        Id { number, doomed: self.fates.get(&number).is_some_and(|fate| fate.removed.is_some()) }
    }

    fn is_created(&self, id: Id) -> bool {
        !id.doomed && self.fates.get(&id.number).is_some_and(|fate| fate.created)
    }

    /// Whether the receiver has the inode at this point.
    fn exists(&self, id: Id) -> bool {
        !self.is_created(id) || self.existing.contains(&id.number)
    }

    /// Returns the names of an inode at this point.
    fn names_of(&mut self, id: Id) -> Result<Vec<Place>> {
        if let Some(names) = self.names.get(&id) {
            return Ok(names.clone());
        }
        let mut names = Vec::new();
        if let (Some(old), false) = (self.old, self.is_created(id)) {
            inode::for_each_name(old, InodeNumber(id.number), |name| {
                names.push((name.parent.0, name.name));
                true
            })?;
        }
        let names: Vec<Place> = names.into_iter().map(|(parent, name)| (self.old_id(parent), name)).collect();
        Ok(names)
    }

    /// Returns the names of an inode in the new tree.
    fn targets_of(&self, id: Id) -> Result<Vec<Place>> {
        let mut names = Vec::new();
        inode::for_each_name(self.new, InodeNumber(id.number), |name| {
            names.push((Id::lasting(name.parent.0), name.name));
            true
        })?;
        Ok(names)
    }

    /// Returns the inode that has a name at this point.
    fn occupant(&self, place: &Place) -> Result<Option<Id>> {
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
        let missing = || Error::path(format!("inode {}", id.number).as_bytes(), PathError::NotFound);
        if depth > DEPTH_LIMIT {
            return Err(missing());
        }
        let (parent, name) = self.names_of(id)?.into_iter().next().ok_or_else(missing)?;
        let directory = self.path_within(parent, depth + 1)?;
        self.paths.insert(parent, directory.clone());
        Ok(join(directory, &name))
    }

    fn path_at(&mut self, place: &Place) -> Result<Vec<u8>> {
        let directory = self.path_of(place.0)?;
        self.paths.insert(place.0, directory.clone());
        Ok(join(directory, &place.1))
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
        if self.old.is_some() {
            self.entries.insert(place.clone(), None);
        }
        Ok(())
    }

    fn rename(&mut self, out: &mut StreamWriter<'_>, id: Id, from: &Place, to: Place) -> Result<()> {
        let (source, target) = (self.path_at(from)?, self.path_at(&to)?);
        out.put(&Command::Rename { from: source, to: target })?;
        self.paths.clear();
        self.take(id, from)?;
        self.give(id, to)
    }

    fn unlink(&mut self, out: &mut StreamWriter<'_>, id: Id, place: &Place) -> Result<()> {
        let path = self.path_at(place)?;
        out.put(&Command::Unlink { path })?;
        self.take(id, place)
    }

    fn kind_of(&self, id: Id) -> Result<Option<FileKind>> {
        if id.doomed {
            let fate = self.fates.get(&id.number).and_then(|fate| fate.removed);
            return Ok(fate.and_then(|item| item.kind()));
        }
        Ok(inode::inode(self.new, InodeNumber(id.number))?.and_then(|item| item.kind()))
    }

    /// Frees a name that is about to be given.
    fn free(&mut self, out: &mut StreamWriter<'_>, place: &Place) -> Result<()> {
        let Some(occupant) = self.occupant(place)? else { return Ok(()) };
        let is_directory = self.kind_of(occupant)? == Some(FileKind::Directory);
        if !is_directory && (occupant.doomed || self.names_of(occupant)?.len() > 1) {
            return self.unlink(out, occupant, place);
        }
        self.set_aside(out, occupant, place)
    }

    /// Gives an inode an unused name in the root in place of `place`.
    fn set_aside(&mut self, out: &mut StreamWriter<'_>, id: Id, place: &Place) -> Result<()> {
        let tree = if id.doomed { self.old.unwrap_or(self.new) } else { self.new };
        let item = inode::inode(tree, InodeNumber(id.number))?;
        let aside = self.unused_name(id, item.map_or(0, |item| item.generation.0))?;
        self.rename(out, id, place, aside)
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

    /// Creates an inode and those of its directories that do not exist yet.
    pub(super) fn create(&mut self, out: &mut StreamWriter<'_>, id: Id) -> Result<()> {
        self.create_within(out, id, 0)
    }

    fn create_within(&mut self, out: &mut StreamWriter<'_>, id: Id, depth: usize) -> Result<()> {
        let missing = || Error::path(format!("inode {}", id.number).as_bytes(), PathError::NotFound);
        if self.exists(id) {
            return Ok(());
        }
        if depth > DEPTH_LIMIT {
            return Err(missing());
        }
        let item = inode::inode(self.new, InodeNumber(id.number))?.ok_or_else(missing)?;
        let targets = self.targets_of(id)?;
        for (index, place) in targets.into_iter().enumerate() {
            self.create_within(out, place.0, depth + 1)?;
            self.free(out, &place)?;
            let path = self.path_at(&place)?;
            if index > 0 {
                let existing = self.path_of(id)?;
                out.put(&Command::Link { path, existing })?;
            } else if self.bequeaths(place.0)? {
                let aside = self.unused_name(id, item.generation.0)?;
                out.put(&self.creation(id, aside.1.clone(), &item)?)?;
                self.existing.insert(id.number);
                self.give(id, aside.clone())?;
                self.rename(out, id, &aside, place)?;
                continue;
            } else {
                out.put(&self.creation(id, path, &item)?)?;
                self.existing.insert(id.number);
            }
            self.give(id, place)?;
        }
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

    /// Brings an inode that lasts to its final names.
    pub(super) fn settle(&mut self, out: &mut StreamWriter<'_>, id: Id) -> Result<()> {
        let targets = self.targets_of(id)?;
        let current = self.names_of(id)?;
        let missing: Vec<Place> = targets.iter().filter(|place| !current.contains(place)).cloned().collect();
        let is_directory = self.kind_of(id)? == Some(FileKind::Directory);
        for place in missing {
            self.create(out, place.0)?;
            if is_directory {
                self.leave_room(out, id, place.0)?;
            }
            self.free(out, &place)?;
            let current = self.names_of(id)?;
            if let Some(from) = current.iter().find(|name| !targets.contains(name)) {
                self.rename(out, id, &from.clone(), place)?;
            } else {
                let (path, existing) = (self.path_at(&place)?, self.path_of(id)?);
                out.put(&Command::Link { path, existing })?;
                self.give(id, place)?;
            }
        }
        for place in self.names_of(id)? {
            if !targets.contains(&place) {
                self.unlink(out, id, &place)?;
            }
        }
        Ok(())
    }

    /// Makes sure that `directory` is not below `id`.
    fn leave_room(&mut self, out: &mut StreamWriter<'_>, id: Id, directory: Id) -> Result<()> {
        'again: loop {
            let mut chain = Vec::new();
            let mut at = directory;
            while at != Id::ROOT && at != id && chain.len() < DEPTH_LIMIT {
                let Some(place) = self.names_of(at)?.into_iter().next() else { return Ok(()) };
                chain.push((at, place.clone()));
                at = place.0;
            }
            if at != id {
                return Ok(());
            }
            for (blocking, place) in chain {
                if !self.targets_of(blocking)?.contains(&place) {
                    self.set_aside(out, blocking, &place)?;
                    continue 'again;
                }
            }
            return Err(Error::path(format!("inode {}", id.number).as_bytes(), PathError::IntoItself));
        }
    }

    /// Removes the names of an inode that goes, unless it is a directory.
    pub(super) fn remove(&mut self, out: &mut StreamWriter<'_>, id: Id) -> Result<()> {
        for place in self.names_of(id)? {
            self.unlink(out, id, &place)?;
        }
        Ok(())
    }

    /// Removes the directories that go, which are empty by now.
    pub(super) fn remove_directories(&mut self, out: &mut StreamWriter<'_>, ids: &[Id]) -> Result<()> {
        let mut paths = Vec::with_capacity(ids.len());
        for id in ids {
            paths.push(self.path_of(*id)?);
        }
        paths.sort_by_key(|path| std::cmp::Reverse(path.iter().filter(|byte| **byte == b'/').count()));
        for path in paths {
            out.put(&Command::Rmdir { path })?;
        }
        Ok(())
    }
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
