//! The writing half of filling, which turns events into names, data and attributes.
//!
//! Owns [`TreeWriter`].
//!
//! **Invariants**
//! - A directory gets its attributes after its entries: each new entry changes its times and would
//!   inherit its default access control list.
//! - A file gets its times last.
//! - The observer decides about problems of single files. A full or failed file system ends the
//!   work.

use super::event::{ImportEvent, ImportedNode, LinkId, MemberAttributes};
use super::options::{Existing, Populate, PopulateObserver, Populated};
use super::replacing::{Replacing, remove_tree};
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::file::change::NAME_ITEMS;
use papilio_engine::items::xattr_edit::XattrSet;
use papilio_engine::namespace::create::{NewInode, NewKind};
use papilio_engine::namespace::setattr::{SetAttributes, SetTime};
use papilio_format::TreeId;
use papilio_format::items::inode::{FileKind, InodeFlags};
use papilio_fs::{File, Inode};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// The mode of a directory until it is filled.
const EARLY_MODE: u32 = 0o700;

/// Creates files in a directory and below it.
pub(super) struct TreeWriter<'a> {
    populate: &'a Populate,
    observer: &'a mut dyn PopulateObserver,
    /// The entries that may be replaced.
    pub(super) replacing: Replacing,
    /// Whether attributes that are right already are left alone, and others removed.
    pub(super) keeps_equal: bool,
    /// The inodes whose attributes were changed where `keeps_equal`.
    pub(super) settled: u64,
    /// The work done so far.
    pub(super) done: Populated,
    /// The directory to fill.
    top: Inode,
    /// Whether `top` has a default access control list, which new inodes inherit.
    inherits_acl: bool,
    /// The open directories, outermost first.
    stack: Vec<ImportDirectory>,
    /// Depth inside a directory that could not be created; its content is skipped.
    skipped_depth: usize,
    path: Vec<u8>,
    /// Inodes that may get further hard links.
    links: HashMap<LinkId, Inode>,
    /// The file being written; `None` between files, and if the file could not be created.
    file: Option<Writing>,
    /// NODATACOW and NODATASUM of source inodes.
    pub(super) flags_of_links: HashMap<LinkId, InodeFlags>,
    /// The paths that got flags.
    flagged: HashSet<Vec<u8>>,
    /// The subvolumes created, by path.
    pub(super) subvolumes: HashMap<Vec<u8>, TreeId>,
}

struct ImportDirectory {
    inode: Inode,
    attributes: MemberAttributes,
    path_length: usize,
    is_new: bool,
}

struct Writing {
    file: File,
    attributes: MemberAttributes,
    size: u64,
    end: u64,
    path_length: usize,
}

/// A directory or file that now has a name.
pub(super) struct Made {
    pub(super) inode: Inode,
    /// Whether it was created now; otherwise it existed before.
    pub(super) is_new: bool,
}

impl<'a> TreeWriter<'a> {
    /// Creates a writer that fills `top`.
    pub(super) fn new(
        populate: &'a Populate,
        top: &Inode,
        observer: &'a mut dyn PopulateObserver,
    ) -> Result<Self> {
        Ok(Self {
            populate,
            observer,
            replacing: Replacing::default(),
            keeps_equal: false,
            settled: 0,
            done: Populated::default(),
            top: top.clone(),
            inherits_acl: top.xattr(DEFAULT_ACL)?.is_some(),
            stack: Vec::new(),
            skipped_depth: 0,
            path: Vec::new(),
            links: HashMap::new(),
            file: None,
            flags_of_links: HashMap::new(),
            flagged: HashSet::new(),
            subvolumes: HashMap::new(),
        })
    }

    /// Applies an event.
    ///
    /// # Errors
    /// Errors that end the work.
    pub(super) fn take(&mut self, event: ImportEvent) -> Result<()> {
        self.observer.proceed()?;
        if self.skipped_depth > 0 {
            return match event {
                ImportEvent::Enter { .. } => {
                    self.skipped_depth += 1;
                    Ok(())
                }
                ImportEvent::Leave => {
                    self.skipped_depth -= 1;
                    Ok(())
                }
                ImportEvent::Problem(problem) => self.observer.problem(problem),
                _ => Ok(()),
            };
        }
        match event {
            ImportEvent::Enter { name, attributes } => self.enter(&name, attributes),
            ImportEvent::Leave => self.leave(),
            ImportEvent::File { name, attributes, size, link, content, complete } => {
                self.begin_file(&name, attributes, size, link)?;
                if !content.is_empty() {
                    self.data(0, &content)?;
                }
                if complete { self.end_file(None) } else { Ok(()) }
            }
            ImportEvent::Data { offset, bytes } => self.data(offset, &bytes),
            ImportEvent::Clone { offset, length, source } => self.clone_range(offset, length, &source),
            ImportEvent::EndFile { error } => self.end_file(error),
            ImportEvent::Node { name, attributes, node, link } => self.node(&name, attributes, &node, link),
            ImportEvent::Link { name, link } => self.link(&name, link),
            ImportEvent::Problem(problem) => self.observer.problem(problem),
        }
    }

    /// Returns whether the current directory could not be created, so that its content is skipped.
    pub(super) fn is_skipping(&self) -> bool {
        self.skipped_depth > 0
    }

    /// Returns the directory that gets the next entries.
    pub(super) fn parent(&self) -> Inode {
        self.stack.last().map_or_else(|| self.top.clone(), |frame| frame.inode.clone())
    }

    /// Returns the path of an entry of the current directory.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        match self.path.is_empty() {
            true => name.to_vec(),
            false => [&self.path, &b"/"[..], name].concat(),
        }
    }

    /// Goes back to a length of the path that [`TreeWriter::step`] returned.
    pub(super) fn truncate_path(&mut self, length: usize) {
        self.path.truncate(length);
    }

    /// Appends `name` to the path, and returns the path's length before.
    pub(super) fn step(&mut self, name: &[u8]) -> usize {
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

    fn enter(&mut self, name: &[u8], attributes: MemberAttributes) -> Result<()> {
        let path_length = self.step(name);
        let attributes = self.resolve(attributes);
        let made = match name {
            b"" => {
                let top = self.top.clone();
                self.give_flags(&top, b"", None).map(|()| Some(Made { inode: top, is_new: false }))
            }
            name => {
                let path = self.path.clone();
                self.make_directory(&self.parent(), name, &path, &attributes)
            }
        };
        match self.report(made)?.flatten() {
            Some(Made { inode, is_new }) => {
                self.stack.push(ImportDirectory { inode, attributes, path_length, is_new });
            }
            None => {
                self.skipped_depth += 1;
                self.path.truncate(path_length);
            }
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let frame = self.stack.pop().expect("each Leave follows its Enter");
        let finished = self.finish(&frame.inode, &frame.attributes, frame.is_new);
        self.report(finished)?;
        self.path.truncate(frame.path_length);
        Ok(())
    }

    fn begin_file(
        &mut self,
        name: &[u8],
        attributes: MemberAttributes,
        size: u64,
        link: Option<LinkId>,
    ) -> Result<()> {
        let path_length = self.step(name);
        let attributes = self.resolve(attributes);
        let parent = self.parent();
        let path = self.path.clone();
        let made = self.make_file(&parent, name, &path, link, &attributes);
        match self.report(made)?.flatten() {
            Some((inode, file)) => {
                if let Some(link) = link {
                    self.links.insert(link, inode);
                }
                self.file = Some(Writing { file, attributes, size, end: 0, path_length });
            }
            None => {
                self.link_to_kept(&parent, name, link)?;
                self.path.truncate(path_length);
            }
        }
        Ok(())
    }

    /// Lets later hard links refer to the existing inode that was kept.
    fn link_to_kept(&mut self, parent: &Inode, name: &[u8], link: Option<LinkId>) -> Result<()> {
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
        self.written(offset, bytes.len() as u64, written)
    }

    fn clone_range(&mut self, offset: u64, length: u64, source: &OwnedFd) -> Result<()> {
        let Some(writing) = &mut self.file else { return Ok(()) };
        let cloned = writing.file.clone_from_host(source, offset, length, offset);
        self.written(offset, length, cloned.map_err(|error| self.explain_clone(error)))
    }

    /// Says what it takes to share blocks, if the host refused that.
    fn explain_clone(&self, error: Error) -> Error {
        use std::io::ErrorKind::{CrossesDevices, InvalidInput, Unsupported};
        match error {
            Error::Device { device, operation: "clone", source, .. }
                if matches!(source.kind(), CrossesDevices | InvalidInput | Unsupported) =>
            {
                let path = String::from_utf8_lossy(&self.path);
                Error::Invalid(format!(
                    "{path}: {device} cannot share its blocks ({source}): image and source have to be in one file system with reflinks, such as Btrfs or XFS"
                ))
            }
            other => other,
        }
    }

    /// Counts what was written to the current file, or gives the file up.
    fn written(&mut self, offset: u64, length: u64, written: Result<()>) -> Result<()> {
        match written {
            Ok(()) => {
                if let Some(writing) = &mut self.file {
                    writing.end = offset + length;
                }
                self.done.bytes += length;
                self.observer.bytes(length);
                Ok(())
            }
            Err(error) => {
                self.file = None;
                self.report(Err::<(), _>(error)).map(drop)
            }
        }
    }

    fn end_file(&mut self, error: Option<Error>) -> Result<()> {
        let Some(writing) = self.file.take() else { return Ok(()) };
        let finished = self.finish_file(&writing.file, &writing.attributes, writing.size, writing.end);
        self.report(finished)?;
        self.path.truncate(writing.path_length);
        match error {
            Some(error) => self.observer.problem(error),
            None => Ok(()),
        }
    }

    /// Completes a file after its data: sets the size if it ends in a hole, and the attributes.
    pub(super) fn finish_file(
        &mut self,
        file: &File,
        attributes: &MemberAttributes,
        size: u64,
        end: u64,
    ) -> Result<()> {
        if size > end {
            file.set_len(size)?;
        }
        self.finish(file.inode(), attributes, true)
    }

    fn node(
        &mut self,
        name: &[u8],
        attributes: MemberAttributes,
        node: &ImportedNode,
        link: Option<LinkId>,
    ) -> Result<()> {
        let path_length = self.step(name);
        let attributes = self.resolve(attributes);
        let parent = self.parent();
        let made = self.make_node(&parent, name, &attributes, node);
        match (self.report(made)?.flatten(), link) {
            (Some(inode), Some(link)) => drop(self.links.insert(link, inode)),
            (Some(_), None) => {}
            (None, link) => self.link_to_kept(&parent, name, link)?,
        }
        self.path.truncate(path_length);
        Ok(())
    }

    fn link(&mut self, name: &[u8], link: LinkId) -> Result<()> {
        let path_length = self.step(name);
        let made = match self.links.get(&link).cloned() {
            Some(target) => {
                let linked = self.make_link(&self.parent(), name, &target);
                linked.and_then(|()| self.apply_own_line(&target))
            }
            None => {
                let path = String::from_utf8_lossy(&self.path);
                Err(Error::Invalid(format!("{path}: hard link to a file that could not be created")))
            }
        };
        self.report(made)?;
        self.path.truncate(path_length);
        Ok(())
    }

    /// Applies the manifest's own line for a further hard link, if any. The last link wins.
    fn apply_own_line(&self, target: &Inode) -> Result<()> {
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

    /// Creates a directory, which [`TreeWriter::finish`] completes. Returns `None` if an existing
    /// entry is kept.
    pub(super) fn make_directory(
        &mut self,
        parent: &Inode,
        name: &[u8],
        path: &[u8],
        attributes: &MemberAttributes,
    ) -> Result<Option<Made>> {
        let mode = if self.populate.keep_attributes { EARLY_MODE } else { attributes.mode };
        if self.populate.subvolumes.contains_key(path) && !self.subvolumes.contains_key(path) {
            let new = self.new_inode(NewKind::Directory, mode, attributes);
            let inode = parent.create_subvolume(name, &new)?;
            self.give_flags(&inode, path, None)?;
            self.subvolumes.insert(path.to_vec(), inode.tree());
            self.done.entries += 1;
            return Ok(Some(Made { inode, is_new: true }));
        }
        let made = self.make(parent, name, &self.new_inode(NewKind::Directory, mode, attributes))?;
        if let Some(made) = &made {
            self.give_flags(&made.inode, path, None)?;
        }
        Ok(made)
    }

    /// Gives a new inode the flags that are wanted for its path, or for another of its names.
    fn give_flags(&mut self, inode: &Inode, path: &[u8], link: Option<LinkId>) -> Result<()> {
        let by_path = self.populate.inode_flags.get(path);
        let by_link = link.and_then(|link| self.flags_of_links.get(&link));
        let (Some(flags), true) = (by_path.or(by_link), !self.populate.inode_flags.is_empty()) else {
            return Ok(());
        };
        self.flagged.insert(path.to_vec());
        inode.add_data_flags(*flags)
    }

    /// Returns whether the directory at a path is to be a subvolume.
    pub(super) fn makes_subvolume(&self, path: &[u8]) -> bool {
        self.populate.subvolumes.contains_key(path)
    }

    /// Takes an existing subvolume for the one that is wanted at a path, and makes it writable.
    pub(super) fn take_over_subvolume(&mut self, path: Vec<u8>, there: &Inode) -> Result<()> {
        let id = there.tree();
        there
            .file_system()
            .info
            .transactions()?
            .change(NAME_ITEMS, |handle| papilio_engine::subvolume::set_read_only(handle, id, false))?;
        self.subvolumes.insert(path, id);
        Ok(())
    }

    /// Returns the flags that the source's entry at a path, or another of its names, is to get.
    pub(super) fn wanted_flags(&self, path: &[u8], link: Option<LinkId>) -> InodeFlags {
        let by_link = || link.and_then(|link| self.flags_of_links.get(&link));
        let flags = self.populate.inode_flags.get(path).or_else(by_link);
        flags.copied().unwrap_or(InodeFlags::empty())
    }

    /// Notes that the entry at the current path has its flags.
    pub(super) fn note_flags(&mut self, link: Option<LinkId>) {
        if !self.wanted_flags(&self.path, link).is_empty() {
            self.flagged.insert(self.path.clone());
        }
    }

    /// Notes the inode that further names of a source inode refer to.
    pub(super) fn note_link(&mut self, link: LinkId, inode: &Inode) {
        self.links.insert(link, inode.clone());
    }

    /// Returns whether an entry is a name of the inode that further names of a source inode refer
    /// to.
    pub(super) fn is_linked(&self, there: &Inode, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|target| same(target, there))
    }

    /// Checks that every path with flags was found.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that was not.
    pub(super) fn check_inode_flags(&self) -> Result<()> {
        // Of a host directory, the paths were found beforehand.
        let missing = self.populate.inode_flags.keys().find(|path| !self.flagged.contains(*path));
        match missing {
            Some(path) if self.flags_of_links.is_empty() => Err(no_such_path(path)),
            _ => Ok(()),
        }
    }

    /// Creates an empty file. Returns `None` if an existing entry is kept.
    pub(super) fn make_file(
        &mut self,
        parent: &Inode,
        name: &[u8],
        path: &[u8],
        link: Option<LinkId>,
        attributes: &MemberAttributes,
    ) -> Result<Option<(Inode, File)>> {
        let new = self.new_inode(NewKind::Regular, attributes.mode, attributes);
        let Some(made) = self.make(parent, name, &new)? else { return Ok(None) };
        self.give_flags(&made.inode, path, link)?;
        let file = made.inode.open()?;
        if !made.is_new && !file.is_empty() {
            file.set_len(0)?;
        }
        Ok(Some((made.inode, file)))
    }

    /// Creates an inode without content, with all its attributes. Returns `None` if an existing
    /// entry is kept.
    pub(super) fn make_node(
        &mut self,
        parent: &Inode,
        name: &[u8],
        attributes: &MemberAttributes,
        node: &ImportedNode,
    ) -> Result<Option<Inode>> {
        let kind = match node {
            ImportedNode::Symlink(target) => NewKind::Symlink(target),
            ImportedNode::Fifo => NewKind::Fifo,
            ImportedNode::Socket => NewKind::Socket,
            &ImportedNode::Block { major, minor } => NewKind::BlockDevice { major, minor },
            &ImportedNode::Character { major, minor } => NewKind::CharacterDevice { major, minor },
        };
        let new = self.new_inode(kind, attributes.mode, attributes);
        let Some(made) = self.make(parent, name, &new)? else { return Ok(None) };
        self.finish(&made.inode, attributes, true)?;
        Ok(Some(made.inode))
    }

    /// Creates a hard link to `target`, or a copy that shares its data if `target` is in another
    /// subvolume.
    pub(super) fn make_link(&mut self, parent: &Inode, name: &[u8], target: &Inode) -> Result<()> {
        if parent.lookup(name)?.is_some_and(|there| same(&there, target)) {
            return Ok(());
        }
        if target.tree() != parent.tree() {
            return self.make_copy(parent, name, target);
        }
        let linked = match parent.hard_link(target, name) {
            Err(Error::Path { kind: PathError::Exists, .. }) => {
                match self.resolve_existing(parent, name, None)? {
                    Resolved::Kept => return Ok(()),
                    Resolved::Reused(_) | Resolved::Free => parent.hard_link(target, name),
                }
            }
            linked => linked,
        };
        linked?;
        self.done.entries += 1;
        Ok(())
    }

    /// Creates a copy of an inode of another subvolume.
    fn make_copy(&mut self, parent: &Inode, name: &[u8], target: &Inode) -> Result<()> {
        let target = target.file_system().inode_at(target.tree(), target.number())?;
        let metadata = target.metadata();
        let attributes = MemberAttributes {
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
                let path = self.path.clone();
                let made = self.make_file(parent, name, &path, None, &attributes)?;
                let Some((_, file)) = made else { return Ok(()) };
                let source = target.open()?;
                if !source.is_empty() {
                    file.clone_range(&source, 0, 0, 0)?;
                }
                return self.finish_file(&file, &attributes, 0, 0);
            }
            FileKind::Directory => return Err(Error::path(name, PathError::NotPermitted)),
            FileKind::Symlink => ImportedNode::Symlink(target.read_link()?),
            FileKind::Fifo => ImportedNode::Fifo,
            FileKind::Socket => ImportedNode::Socket,
            FileKind::BlockDevice => ImportedNode::Block { major, minor },
            FileKind::CharacterDevice => ImportedNode::Character { major, minor },
        };
        self.make_node(parent, name, &attributes, &node).map(drop)
    }

    fn new_inode<'n>(&self, kind: NewKind<'n>, mode: u32, attributes: &MemberAttributes) -> NewInode<'n> {
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
            match self.resolve_existing(parent, name, Some(new.kind.kind()))? {
                Resolved::Kept => return Ok(None),
                Resolved::Reused(inode) => return Ok(Some(Made { inode: *inode, is_new: false })),
                Resolved::Free => made = parent.create(name, new),
            }
        }
        self.done.entries += 1;
        Ok(Some(Made { inode: made?, is_new: true }))
    }

    /// Treats an existing entry at the name of a new inode of `kind`, or of a link (`None`).
    fn resolve_existing(&self, parent: &Inode, name: &[u8], kind: Option<FileKind>) -> Result<Resolved> {
        let exists = || Error::path(name, PathError::Exists);
        let there = parent.lookup(name)?.ok_or_else(exists)?;
        match (there.file_type(), kind) {
            (FileKind::Directory, Some(FileKind::Directory)) => Ok(Resolved::Reused(Box::new(there))),
            _ if self.populate.existing == Existing::Refuse => Err(exists()),
            _ if self.populate.existing == Existing::Keep => Ok(Resolved::Kept),
            (FileKind::Directory, _) if self.replacing == Replacing::ByLayer => {
                remove_tree(parent, name).map(|()| Resolved::Free)
            }
            (FileKind::Directory, _) if self.replacing == Replacing::ByName => {
                match parent.remove_dir(name) {
                    Err(Error::Path { kind: PathError::NotEmpty, .. }) => {
                        Err(Error::path(name, PathError::IsADirectory))
                    }
                    removed => removed.map(|()| Resolved::Free),
                }
            }
            _ if self.replacing != Replacing::InPlace => parent.remove_file(name).map(|()| Resolved::Free),
            (FileKind::Directory, _) => Err(Error::path(name, PathError::IsADirectory)),
            (_, Some(FileKind::Directory)) => Err(Error::path(name, PathError::NotADirectory)),
            (FileKind::Regular, Some(FileKind::Regular)) => Ok(Resolved::Reused(Box::new(there))),
            _ => parent.remove_file(name).map(|()| Resolved::Free),
        }
    }

    /// Returns the final attributes of the entry at the current path.
    pub(super) fn resolve(&self, attributes: MemberAttributes) -> MemberAttributes {
        self.attributes_at(&self.path, attributes)
    }

    /// Returns the final attributes of the entry at a path.
    pub(super) fn attributes_at(&self, path: &[u8], mut attributes: MemberAttributes) -> MemberAttributes {
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

    /// Sets an inode's attributes, if they are kept.
    pub(super) fn finish(
        &mut self,
        inode: &Inode,
        attributes: &MemberAttributes,
        is_new: bool,
    ) -> Result<()> {
        if self.keeps_equal && !is_new {
            self.settled += u64::from(self.settle(inode, attributes)?);
            return Ok(());
        }
        if !self.populate.keep_attributes {
            return Ok(());
        }
        self.set_attributes(inode, attributes, is_new)
    }

    /// Gives an existing inode its attributes, and removes those that the source lacks. Returns
    /// whether any was different. The time of the last access alone is no difference, since reading
    /// the source may change it.
    pub(super) fn settle(&self, inode: &Inode, attributes: &MemberAttributes) -> Result<bool> {
        // As it is now, after changes of its data or of its entries.
        let inode = inode.file_system().inode_at(inode.tree(), inode.number())?;
        let metadata = inode.metadata();
        let symlink = inode.file_type() == FileKind::Symlink;
        let keeps = self.populate.keep_attributes;
        let mode = if keeps { attributes.mode } else { attributes.mode & !self.populate.umask };
        let is_owned = (metadata.uid(), metadata.gid()) == (attributes.uid, attributes.gid);
        let has_mode = symlink || metadata.permissions() == mode;
        if !keeps {
            if !(is_owned && has_mode) {
                let (uid, gid) = (Some(attributes.uid), Some(attributes.gid));
                let mode = (!symlink).then_some(mode);
                inode.set_attributes(&SetAttributes { mode, uid, gid, ..SetAttributes::default() })?;
            }
            return Ok(!(is_owned && has_mode));
        }
        let there = inode.xattrs()?;
        let wanted = &attributes.xattrs;
        let has_xattrs = there.len() == wanted.len()
            && there
                .iter()
                .all(|old| wanted.iter().any(|new| old.name == new.name && old.value == new.value));
        if !(is_owned && has_mode && has_xattrs) {
            for old in there.iter().filter(|old| wanted.iter().all(|new| new.name != old.name)) {
                remove_xattr(&inode, &old.name)?;
            }
            self.set_attributes(&inode, attributes, false)?;
            return Ok(true);
        }
        let is_of_time = attributes.mtime.is_none_or(|time| time == metadata.mtime());
        if !is_of_time {
            let at = |time: Option<_>| time.map(SetTime::At);
            let (atime, mtime) = (at(attributes.atime), at(attributes.mtime));
            inode.set_attributes(&SetAttributes { atime, mtime, ..SetAttributes::default() })?;
        }
        Ok(!is_of_time)
    }

    /// Sets all attributes of an inode.
    fn set_attributes(&self, inode: &Inode, attributes: &MemberAttributes, is_new: bool) -> Result<()> {
        let symlink = inode.file_type() == FileKind::Symlink;
        if self.inherits_acl || !is_new {
            // A symbolic link has neither, and only directories have a default list.
            if !symlink {
                remove_xattr(inode, ACCESS_ACL)?;
            }
            if inode.file_type() == FileKind::Directory {
                remove_xattr(inode, DEFAULT_ACL)?;
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
        // After the owner, whose change removes capabilities, and after the mode, which an access
        // control list also changes.
        for xattr in &attributes.xattrs {
            inode.set_xattr(&xattr.name, &xattr.value, XattrSet::Any)?;
        }
        Ok(())
    }

    /// Reports a problem of the file at the current path to the observer.
    pub(super) fn report<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let path = std::mem::take(&mut self.path);
                let told = self.report_at(&path, error);
                self.path = path;
                told.map(|()| None)
            }
        }
    }

    /// Reports a problem of the file at a path to the observer.
    pub(super) fn report_at(&mut self, path: &[u8], error: Error) -> Result<()> {
        match error {
            Error::Path { kind, .. } => self.observer.problem(Error::path(path, kind)),
            Error::XattrExceedsNode { name, need, limit, .. } => {
                self.observer.problem(Error::XattrExceedsNode { path: path.to_vec(), name, need, limit })
            }
            problem @ (Error::Host { .. } | Error::Invalid(_)) => self.observer.problem(problem),
            fatal => Err(fatal),
        }
    }

    /// Reports an entry to the observer.
    pub(super) fn report_entry(&mut self, path: &[u8]) {
        self.observer.entry(path);
    }

    /// Asks the observer whether the work goes on.
    pub(super) fn proceed(&mut self) -> Result<()> {
        self.observer.proceed()
    }

    /// Reports bytes to the observer that were compared.
    pub(super) fn tell_bytes(&mut self, count: u64) {
        self.observer.bytes(count);
    }

    /// Reports bytes written to the observer, which may end the work.
    pub(super) fn report_bytes(&mut self, count: u64) -> Result<()> {
        self.done.bytes += count;
        self.observer.bytes(count);
        self.observer.proceed()
    }
}

/// The error for inode flags of a path that the source lacks.
pub(super) fn no_such_path(path: &[u8]) -> Error {
    let path = String::from_utf8_lossy(path);
    Error::Invalid(format!("inode flags of {path}: the source has no such file or directory"))
}

/// The result of treating an existing entry.
enum Resolved {
    /// The name is free now.
    Free,
    /// The existing inode is reused.
    Reused(Box<Inode>),
    /// The existing entry is kept.
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
