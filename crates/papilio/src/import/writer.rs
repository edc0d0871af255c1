//! The writing half of filling: events become names, data and attributes.
//!
//! Owns [`TreeWriter`]. Invariants: a directory gets its attributes when everything in it is there, since
//! every name in it changes its times, and its default access control list would be handed on; a file
//! gets its times last. What concerns one file is told to the observer; a file system that is full or
//! failed ends everything.

use super::event::{Attributes, Event, LinkId, Node};
use super::{Existing, Populate, PopulateObserver, Populated};
use crate::errors::{Error, PathError, Result};
use crate::fs::{File, Inode};
use crate::items::xattr_edit::XattrSet;
use crate::namespace::create::{NewInode, NewKind};
use crate::namespace::setattr::{SetAttributes, SetTime};
use papilio_format::TreeId;
use papilio_format::items::inode::{FileKind, InodeFlags};
use std::collections::HashMap;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// What a directory is made with, until it gets its own.
const EARLY_MODE: u32 = 0o700;

/// Writes into one directory and what is below it.
pub(super) struct TreeWriter<'a> {
    populate: &'a Populate,
    observer: &'a mut dyn PopulateObserver,
    /// What was done so far.
    pub(super) done: Populated,
    /// The directory that is filled.
    top: Inode,
    /// It hands an access control list on to what is made in it.
    inherits_acl: bool,
    /// Directories on the way down, each with what its path was before its name.
    stack: Vec<Frame>,
    /// Directories that could not be made, and are left out with all that is in them.
    left_out: usize,
    path: Vec<u8>,
    /// Inodes that may get further names.
    links: HashMap<LinkId, Inode>,
    /// The file that is being written; `None` in between, and where it could not be made.
    file: Option<Writing>,
    /// Subvolumes that were made of directories, by path.
    pub(super) subvolumes: HashMap<Vec<u8>, TreeId>,
}

struct Frame {
    inode: Inode,
    attributes: Attributes,
    path_length: usize,
    is_new: bool,
}

struct Writing {
    file: File,
    attributes: Attributes,
    size: u64,
    end: u64,
    path_length: usize,
}

/// What is at a name now.
pub(super) struct Made {
    pub(super) inode: Inode,
    /// It was made just now, and did not take over one that was there.
    pub(super) is_new: bool,
}

impl<'a> TreeWriter<'a> {
    /// Into `top`.
    pub(super) fn new(
        populate: &'a Populate,
        top: &Inode,
        observer: &'a mut dyn PopulateObserver,
    ) -> Result<Self> {
        Ok(Self {
            populate,
            observer,
            done: Populated::default(),
            top: top.clone(),
            inherits_acl: top.xattr(DEFAULT_ACL)?.is_some(),
            stack: Vec::new(),
            left_out: 0,
            path: Vec::new(),
            links: HashMap::new(),
            file: None,
            subvolumes: HashMap::new(),
        })
    }

    /// Does what the event says.
    ///
    /// # Errors
    /// What ends everything.
    pub(super) fn take(&mut self, event: Event) -> Result<()> {
        if self.left_out > 0 {
            return match event {
                Event::Enter { .. } => {
                    self.left_out += 1;
                    Ok(())
                }
                Event::Leave => {
                    self.left_out -= 1;
                    Ok(())
                }
                Event::Problem(problem) => self.observer.problem(problem),
                _ => Ok(()),
            };
        }
        match event {
            Event::Enter { name, attributes } => self.enter(&name, attributes),
            Event::Leave => self.leave(),
            Event::File { name, attributes, size, link, content, complete } => {
                self.begin_file(&name, attributes, size, link)?;
                if !content.is_empty() {
                    self.data(0, &content)?;
                }
                if complete { self.end_file(None) } else { Ok(()) }
            }
            Event::Data { offset, bytes } => self.data(offset, &bytes),
            Event::EndFile { error } => self.end_file(error),
            Event::Node { name, attributes, node, link } => self.node(&name, attributes, &node, link),
            Event::Link { name, link } => self.link(&name, link),
            Event::Problem(problem) => self.observer.problem(problem),
        }
    }

    fn parent(&self) -> Inode {
        self.stack.last().map_or_else(|| self.top.clone(), |frame| frame.inode.clone())
    }

    /// Goes on to `name` in the innermost directory; returns what to go back to.
    fn step(&mut self, name: &[u8]) -> usize {
        let before = self.path.len();
        if !name.is_empty() {
            if before > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name);
            self.observer.entry(&self.path);
        }
        before
    }

    fn enter(&mut self, name: &[u8], attributes: Attributes) -> Result<()> {
        let path_length = self.step(name);
        let attributes = self.resolve(attributes);
        let made = match name {
            b"" => Ok(Some(Made { inode: self.top.clone(), is_new: false })),
            name => {
                let path = self.path.clone();
                self.make_directory(&self.parent(), name, &path, &attributes)
            }
        };
        match self.tell(made)?.flatten() {
            Some(Made { inode, is_new }) => {
                self.stack.push(Frame { inode, attributes, path_length, is_new });
            }
            None => {
                self.left_out += 1;
                self.path.truncate(path_length);
            }
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let frame = self.stack.pop().expect("directories are left that were entered");
        let finished = self.finish(&frame.inode, &frame.attributes, frame.is_new);
        self.tell(finished)?;
        self.path.truncate(frame.path_length);
        Ok(())
    }

    fn begin_file(
        &mut self,
        name: &[u8],
        attributes: Attributes,
        size: u64,
        link: Option<LinkId>,
    ) -> Result<()> {
        let path_length = self.step(name);
        let attributes = self.resolve(attributes);
        let parent = self.parent();
        let made = self.make_file(&parent, name, &attributes);
        match self.tell(made)?.flatten() {
            Some((inode, file)) => {
                if let Some(link) = link {
                    self.links.insert(link, inode);
                }
                self.file = Some(Writing { file, attributes, size, end: 0, path_length });
            }
            None => {
                self.remember_kept(&parent, name, link)?;
                self.path.truncate(path_length);
            }
        }
        Ok(())
    }

    /// What stays at a name gets the further names of what would have been there.
    fn remember_kept(&mut self, parent: &Inode, name: &[u8], link: Option<LinkId>) -> Result<()> {
        if let Some(link) = link
            && self.populate.existing == Existing::Keep
            && let Some(there) = parent.lookup(name)?
            && there.file_type() != FileKind::Directory
        {
            self.links.insert(link, there);
        }
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(writing) = &mut self.file else { return Ok(()) };
        let written = writing.file.write_all_at(bytes, offset);
        match written {
            Ok(()) => {
                writing.end = offset + bytes.len() as u64;
                self.done.bytes += bytes.len() as u64;
                self.observer.bytes(bytes.len() as u64);
                Ok(())
            }
            Err(error) => {
                self.file = None;
                self.tell(Err::<(), _>(error)).map(drop)
            }
        }
    }

    fn end_file(&mut self, error: Option<Error>) -> Result<()> {
        let Some(writing) = self.file.take() else { return Ok(()) };
        let finished = self.finish_file(&writing.file, &writing.attributes, writing.size, writing.end);
        self.tell(finished)?;
        self.path.truncate(writing.path_length);
        match error {
            Some(error) => self.observer.problem(error),
            None => Ok(()),
        }
    }

    /// The file has all its data: its length, where it ends in a hole, and attributes.
    pub(super) fn finish_file(
        &self,
        file: &File,
        attributes: &Attributes,
        size: u64,
        end: u64,
    ) -> Result<()> {
        if size > end {
            file.set_len(size)?;
        }
        self.finish(file.inode(), attributes, true)
    }

    fn node(&mut self, name: &[u8], attributes: Attributes, node: &Node, link: Option<LinkId>) -> Result<()> {
        let path_length = self.step(name);
        let attributes = self.resolve(attributes);
        let parent = self.parent();
        let made = self.make_node(&parent, name, &attributes, node);
        match (self.tell(made)?.flatten(), link) {
            (Some(inode), Some(link)) => drop(self.links.insert(link, inode)),
            (Some(_), None) => {}
            (None, link) => self.remember_kept(&parent, name, link)?,
        }
        self.path.truncate(path_length);
        Ok(())
    }

    fn link(&mut self, name: &[u8], link: LinkId) -> Result<()> {
        let path_length = self.step(name);
        let made = match self.links.get(&link).cloned() {
            Some(target) => {
                let linked = self.make_link(&self.parent(), name, &target);
                linked.and_then(|()| self.own_line(&target))
            }
            None => {
                let why = "its other name, of the same file, could not be made".to_owned();
                Err(Error::Invalid(format!("{}: {why}", String::from_utf8_lossy(&self.path))))
            }
        };
        self.tell(made)?;
        self.path.truncate(path_length);
        Ok(())
    }

    /// A further name may have a line of its own in the manifest: the later counts.
    fn own_line(&self, target: &Inode) -> Result<()> {
        let manifest = self.populate.manifest.as_deref();
        let Some(entry) = manifest.and_then(|manifest| manifest.own(&self.path)) else { return Ok(()) };
        let mode = entry.mode.unwrap_or_else(|| target.metadata().permissions());
        target.set_attributes(&SetAttributes {
            uid: entry.uid,
            gid: entry.gid,
            mode: (target.file_type() != FileKind::Symlink).then_some(mode),
            ..SetAttributes::default()
        })
    }

    /// A directory named `name`, which [`TreeWriter::finish`] completes. `None` where what is there stays.
    pub(super) fn make_directory(
        &mut self,
        parent: &Inode,
        name: &[u8],
        path: &[u8],
        attributes: &Attributes,
    ) -> Result<Option<Made>> {
        let mode = if self.populate.keep_attributes { EARLY_MODE } else { attributes.mode };
        if self.populate.subvolumes.contains_key(path) {
            let new = self.new_inode(NewKind::Directory, mode, attributes);
            let inode = parent.create_subvolume(name, &new)?;
            self.subvolumes.insert(path.to_vec(), inode.tree());
            self.done.entries += 1;
            return Ok(Some(Made { inode, is_new: true }));
        }
        self.make(parent, name, &self.new_inode(NewKind::Directory, mode, attributes))
    }

    /// An empty file named `name`. `None` where what is there stays.
    pub(super) fn make_file(
        &mut self,
        parent: &Inode,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<Option<(Inode, File)>> {
        let new = self.new_inode(NewKind::Regular, attributes.mode, attributes);
        let Some(made) = self.make(parent, name, &new)? else { return Ok(None) };
        let file = made.inode.open()?;
        if !made.is_new && !file.is_empty() {
            file.set_len(0)?;
        }
        Ok(Some((made.inode, file)))
    }

    /// A file without content named `name`, with all its attributes. `None` where what is there stays.
    pub(super) fn make_node(
        &mut self,
        parent: &Inode,
        name: &[u8],
        attributes: &Attributes,
        node: &Node,
    ) -> Result<Option<Inode>> {
        let kind = match node {
            Node::Symlink(target) => NewKind::Symlink(target),
            Node::Fifo => NewKind::Fifo,
            Node::Socket => NewKind::Socket,
            &Node::Block { major, minor } => NewKind::BlockDevice { major, minor },
            &Node::Character { major, minor } => NewKind::CharacterDevice { major, minor },
        };
        let new = self.new_inode(kind, attributes.mode, attributes);
        let Some(made) = self.make(parent, name, &new)? else { return Ok(None) };
        self.finish(&made.inode, attributes, true)?;
        Ok(Some(made.inode))
    }

    /// One more name of `target`; a copy that shares its data where that lies in another subvolume.
    pub(super) fn make_link(&mut self, parent: &Inode, name: &[u8], target: &Inode) -> Result<()> {
        if parent.lookup(name)?.is_some_and(|there| same(&there, target)) {
            return Ok(());
        }
        if target.tree() != parent.tree() {
            return self.make_copy(parent, name, target);
        }
        let linked = match parent.hard_link(target, name) {
            Err(Error::Path { kind: PathError::Exists, .. }) => match self.make_room(parent, name, None)? {
                Room::Kept => return Ok(()),
                Room::There(_) | Room::Free => parent.hard_link(target, name),
            },
            linked => linked,
        };
        linked?;
        self.done.entries += 1;
        Ok(())
    }

    /// What is linked to from another subvolume, which no link reaches.
    fn make_copy(&mut self, parent: &Inode, name: &[u8], target: &Inode) -> Result<()> {
        let target = target.file_system().inode_at(target.tree(), target.number())?;
        let metadata = target.metadata();
        let attributes = Attributes {
            mode: metadata.permissions(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            atime: Some(metadata.atime()),
            mtime: Some(metadata.mtime()),
            xattrs: target.xattrs()?,
        };
        let (major, minor) = metadata.rdev();
        let node = match target.file_type() {
            FileKind::Regular => {
                let Some((_, file)) = self.make_file(parent, name, &attributes)? else { return Ok(()) };
                let source = target.open()?;
                if !source.is_empty() {
                    file.clone_range(&source, 0, 0, 0)?;
                }
                return self.finish_file(&file, &attributes, 0, 0);
            }
            FileKind::Directory => return Err(Error::path(name, PathError::NotPermitted)),
            FileKind::Symlink => Node::Symlink(target.read_link()?),
            FileKind::Fifo => Node::Fifo,
            FileKind::Socket => Node::Socket,
            FileKind::BlockDevice => Node::Block { major, minor },
            FileKind::CharacterDevice => Node::Character { major, minor },
        };
        self.make_node(parent, name, &attributes, &node).map(drop)
    }

    fn new_inode<'n>(&self, kind: NewKind<'n>, mode: u32, attributes: &Attributes) -> NewInode<'n> {
        NewInode {
            kind,
            mode,
            umask: if self.populate.keep_attributes { 0 } else { self.populate.umask },
            uid: attributes.uid,
            gid: attributes.gid,
            file_flags: InodeFlags::empty(),
        }
    }

    fn make(&mut self, parent: &Inode, name: &[u8], new: &NewInode<'_>) -> Result<Option<Made>> {
        let mut made = parent.create(name, new);
        if let Err(Error::Path { kind: PathError::Exists, .. }) = made {
            match self.make_room(parent, name, Some(new.kind.kind()))? {
                Room::Kept => return Ok(None),
                Room::There(inode) => return Ok(Some(Made { inode: *inode, is_new: false })),
                Room::Free => made = parent.create(name, new),
            }
        }
        self.done.entries += 1;
        Ok(Some(Made { inode: made?, is_new: true }))
    }

    /// Deals with what is at a name where something of `kind` (or a link) shall be.
    fn make_room(&self, parent: &Inode, name: &[u8], kind: Option<FileKind>) -> Result<Room> {
        let exists = || Error::path(name, PathError::Exists);
        let there = parent.lookup(name)?.ok_or_else(exists)?;
        match (there.file_type(), kind) {
            (FileKind::Directory, Some(FileKind::Directory)) => Ok(Room::There(Box::new(there))),
            _ if self.populate.existing == Existing::Refuse => Err(exists()),
            _ if self.populate.existing == Existing::Keep => Ok(Room::Kept),
            (FileKind::Directory, _) => Err(Error::path(name, PathError::IsADirectory)),
            (_, Some(FileKind::Directory)) => Err(Error::path(name, PathError::NotADirectory)),
            (FileKind::Regular, Some(FileKind::Regular)) => Ok(Room::There(Box::new(there))),
            _ => parent.remove_file(name).map(|()| Room::Free),
        }
    }

    /// The attributes that are wanted of the entry that [`TreeWriter::step`] stands at.
    fn resolve(&self, attributes: Attributes) -> Attributes {
        self.attributes_at(&self.path, attributes)
    }

    /// The attributes that are wanted of the entry at a path.
    pub(super) fn attributes_at(&self, path: &[u8], mut attributes: Attributes) -> Attributes {
        let populate = self.populate;
        if !populate.keep_attributes {
            (attributes.uid, attributes.gid) = (0, 0);
            (attributes.atime, attributes.mtime) = (None, None);
            attributes.xattrs.clear();
        }
        if let Some((uid, gid)) = populate.owner {
            (attributes.uid, attributes.gid) = (uid, gid);
        }
        if let Some(entry) = populate.manifest.as_deref().and_then(|manifest| manifest.get(path)) {
            attributes.uid = entry.uid.unwrap_or(attributes.uid);
            attributes.gid = entry.gid.unwrap_or(attributes.gid);
            attributes.mode = entry.mode.unwrap_or(attributes.mode);
        }
        if populate.steady_access_times {
            attributes.atime = attributes.mtime;
        }
        attributes
    }

    /// Gives an inode its attributes, where they are kept.
    pub(super) fn finish(&self, inode: &Inode, attributes: &Attributes, is_new: bool) -> Result<()> {
        if !self.populate.keep_attributes {
            return Ok(());
        }
        let symlink = inode.file_type() == FileKind::Symlink;
        if self.inherits_acl || !is_new {
            for acl in [ACCESS_ACL, DEFAULT_ACL] {
                remove_xattr(inode, acl)?;
            }
        }
        let at = |time: Option<_>| time.map(SetTime::At);
        inode.set_attributes(&SetAttributes {
            mode: (!symlink).then_some(attributes.mode),
            uid: Some(attributes.uid),
            gid: Some(attributes.gid),
            atime: at(attributes.atime),
            mtime: at(attributes.mtime),
            ctime: None,
        })?;
        // After the owner, whose change takes capabilities away, and the mode, which an access control
        // list holds too.
        for xattr in &attributes.xattrs {
            inode.set_xattr(&xattr.name, &xattr.value, XattrSet::Any)?;
        }
        Ok(())
    }

    /// Hands a problem of one file to the observer.
    fn tell<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let path = std::mem::take(&mut self.path);
                let told = self.tell_at(&path, error);
                self.path = path;
                told.map(|()| None)
            }
        }
    }

    /// Hands a problem of the file at a path to the observer.
    pub(super) fn tell_at(&mut self, path: &[u8], error: Error) -> Result<()> {
        match error {
            Error::Path { kind, .. } => self.observer.problem(Error::path(path, kind)),
            problem @ (Error::Host { .. } | Error::Invalid(_)) => self.observer.problem(problem),
            fatal => Err(fatal),
        }
    }

    /// The observer is told of an entry.
    pub(super) fn tell_entry(&mut self, path: &[u8]) {
        self.observer.entry(path);
    }

    /// Bytes of a file were written.
    pub(super) fn tell_bytes(&mut self, count: u64) {
        self.done.bytes += count;
        self.observer.bytes(count);
    }
}

/// What became of a name that was there.
enum Room {
    Free,
    There(Box<Inode>),
    Kept,
}

fn same(a: &Inode, b: &Inode) -> bool {
    (a.tree(), a.number()) == (b.tree(), b.number())
}

fn remove_xattr(inode: &Inode, name: &[u8]) -> Result<()> {
    match inode.remove_xattr(name) {
        Err(Error::Path { kind: PathError::NoAttribute | PathError::NotSupported, .. }) => Ok(()),
        result => result,
    }
}
