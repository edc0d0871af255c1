//! The expected state of a file system after any operations, in memory: [`Model`].
//!
//! Owns subvolumes, their inodes and names, and the open files. It is as simple as possible and
//! shares only the names of errors with the code under test. It follows the kernel's rules for
//! refusals and their reasons.
//!
//! **Invariants:** an inode exists while it has a name or is open. A deleted subvolume exists while
//! a file of it is open.
//!
//! [`content`] holds bytes, [`names`] the rules for directories, [`data`] those for files,
//! [`limits`] those for quotas.

mod content;
mod data;
mod limits;
mod names;
mod quotas;

pub use content::Content;
pub use quotas::{Limits, Quotas};

use papilio::{FileKind, PathError, QuotaError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The reason an operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A POSIX reason.
    Path(PathError),
    /// An invalid argument.
    Invalid,
    /// The state of quotas.
    Quota(QuotaError),
    /// An operation inside the stub that a snapshot leaves of a subvolume. It is refused; the
    /// kernel's reason varies.
    Stub,
}

impl From<PathError> for Refusal {
    fn from(kind: PathError) -> Self {
        Refusal::Path(kind)
    }
}

/// The model's answer to an operation.
pub type Verdict<T = ()> = Result<T, Refusal>;

/// The identity of an inode: its subvolume and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The subvolume's number.
    pub subvolume: u64,
    /// The inode's number.
    pub node: u64,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kind and content.
    pub kind: NodeKind,
    /// The low twelve bits of the mode.
    pub mode: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Whether the inode was created without a name and may still get its first one.
    pub linkable: bool,
    /// Extended attributes, except those managed by the file system (`btrfs.`).
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Whether data is overwritten in place; such a file's data has no checksums.
    pub nodatacow: bool,
}

/// The kind of an inode, with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File(Content),
    /// A directory, with its entries.
    Directory(BTreeMap<Vec<u8>, Entry>),
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
    /// Anything without content, and its device number.
    Special(FileKind, u32, u32),
}

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An inode of the same subvolume.
    Node(u64),
    /// The root directory of another subvolume.
    Subvolume(u64),
    /// The stub of a subvolume that a snapshot left out: an empty directory.
    Stub,
}

impl Node {
    /// Creates an empty directory owned by root, with one name.
    pub fn empty_directory(mode: u32) -> Self {
        Self {
            kind: NodeKind::Directory(BTreeMap::new()),
            mode,
            uid: 0,
            gid: 0,
            nlink: 1,
            linkable: false,
            xattrs: BTreeMap::new(),
            nodatacow: false,
        }
    }

    /// Returns the kind of file.
    pub fn file_kind(&self) -> FileKind {
        match &self.kind {
            NodeKind::File(_) => FileKind::Regular,
            NodeKind::Directory(_) => FileKind::Directory,
            NodeKind::Symlink(_) => FileKind::Symlink,
            NodeKind::Special(kind, ..) => *kind,
        }
    }

    /// Returns the size that `stat` shows; a directory counts the bytes of each name twice.
    pub fn size(&self) -> u64 {
        match &self.kind {
            NodeKind::File(content) => content.size(),
            NodeKind::Directory(entries) => entries.keys().map(|name| 2 * name.len() as u64).sum(),
            NodeKind::Symlink(target) => target.len() as u64,
            NodeKind::Special(..) => 0,
        }
    }

    /// Returns a directory's entries.
    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Entry>> {
        match &self.kind {
            NodeKind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns a file's bytes.
    pub fn content(&self) -> Option<&Content> {
        match &self.kind {
            NodeKind::File(content) => Some(content),
            _ => None,
        }
    }
}

/// A subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subvolume {
    nodes: BTreeMap<u64, Arc<Node>>,
    read_only: bool,
    /// It has no name any more.
    deleted: bool,
    limits: Limits,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct OpenSlot {
    place: Place,
    /// Its subvolume was writable when it was opened, or when it was written.
    writes: bool,
}

/// Inode number of each subvolume's root directory.
pub const ROOT: u64 = 0;

/// A file system in memory.
#[derive(Clone, Debug)]
pub struct Model {
    subvolumes: BTreeMap<u64, Subvolume>,
    next: u64,
    open: BTreeMap<u8, OpenSlot>,
    sector: u64,
    quotas: Option<Quotas>,
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// Creates an empty root directory, as `mkfs` does.
    pub fn new() -> Self {
        let subvolumes = BTreeMap::from([(0, Subvolume::new(0o755))]);
        Self { subvolumes, next: 1, open: BTreeMap::new(), sector: 4096, quotas: None }
    }

    /// Returns the bytes of a sector, at whose boundaries ranges are cloned: 4096, unless set.
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// Sets the bytes of a sector, as the file system has them.
    pub fn set_sector(&mut self, bytes: u64) {
        self.sector = bytes;
    }

    /// Returns the inode at `place`.
    ///
    /// # Panics
    /// If there is none: places come from the model itself.
    pub fn node(&self, place: Place) -> &Node {
        &self.subvolumes[&place.subvolume].nodes[&place.node]
    }

    /// Returns the inode at `place` if it exists now.
    pub fn get(&self, place: Place) -> Option<&Node> {
        self.subvolumes.get(&place.subvolume)?.nodes.get(&place.node).map(|node| &**node)
    }

    /// Returns a path of a place, if one leads there from the root through directories.
    pub fn path_of(&self, place: Place) -> Option<Vec<u8>> {
        let mut pending = vec![(Vec::new(), Self::root())];
        while let Some((path, here)) = pending.pop() {
            if here == place {
                return Some(path);
            }
            for (name, entry) in self.node(here).entries().into_iter().flatten() {
                if let Some(target) = self.target(here, *entry) {
                    pending.push(([&path[..], b"/", name].concat(), target));
                }
            }
        }
        None
    }

    /// Returns all inodes of the first subvolume.
    pub fn nodes(&self) -> impl Iterator<Item = (Place, &Node)> {
        self.subvolumes[&0].nodes.iter().map(|(&node, found)| (Place { subvolume: 0, node }, &**found))
    }

    fn node_mut(&mut self, place: Place) -> &mut Node {
        let subvolume = self.subvolumes.get_mut(&place.subvolume).expect("the subvolume exists");
        Arc::make_mut(subvolume.nodes.get_mut(&place.node).expect("the inode exists"))
    }

    /// Returns the root of all paths.
    pub const fn root() -> Place {
        Place { subvolume: 0, node: ROOT }
    }

    /// Returns whether a subvolume is read-only.
    pub fn is_read_only(&self, subvolume: u64) -> bool {
        self.subvolumes[&subvolume].read_only
    }

    /// Returns whether a subvolume was deleted, and exists for its open files only.
    pub fn is_deleted(&self, subvolume: u64) -> bool {
        self.subvolumes[&subvolume].deleted
    }

    /// Makes the subvolume at `path` read-only or writable. The programs that have its files open
    /// then write them.
    ///
    /// # Errors
    /// As for a path; also if it is no subvolume.
    pub fn set_read_only(&mut self, path: &[u8], read_only: bool) -> Verdict {
        let place = self.resolve(path, false)?;
        if place.node != ROOT {
            return Err(PathError::NoSubvolume.into());
        }
        self.subvolumes.get_mut(&place.subvolume).expect("a path leads there").read_only = read_only;
        if !read_only {
            let open = self.open.values_mut().filter(|open| open.place.subvolume == place.subvolume);
            open.for_each(|open| open.writes = true);
        }
        Ok(())
    }

    fn check_changeable(&self, place: Place) -> Verdict {
        if self.is_read_only(place.subvolume) { Err(PathError::ReadOnly.into()) } else { Ok(()) }
    }

    /// Returns the number of inodes in all subvolumes.
    pub fn len(&self) -> usize {
        self.subvolumes.values().map(|subvolume| subvolume.nodes.len()).sum()
    }

    /// Returns whether only the root directory exists.
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn add_node(&mut self, subvolume: u64, node: Node) -> Place {
        let number = self.number();
        let nodes = &mut self.subvolumes.get_mut(&subvolume).expect("the subvolume exists").nodes;
        nodes.insert(number, Arc::new(node));
        Place { subvolume, node: number }
    }

    /// Returns the target of an entry of `directory`; `None` for a stub.
    pub fn target(&self, directory: Place, entry: Entry) -> Option<Place> {
        match entry {
            Entry::Node(node) => Some(Place { subvolume: directory.subvolume, node }),
            Entry::Subvolume(subvolume) => Some(Place { subvolume, node: ROOT }),
            Entry::Stub => None,
        }
    }

    /// Resolves a path to an inode. Symbolic links are followed, in the last component only with
    /// `follow`.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Verdict<Place> {
        let split = |path: &[u8]| -> Vec<Vec<u8>> {
            path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
        };
        let mut pending: VecDeque<Vec<u8>> = split(path).into();
        let mut stack = vec![Self::root()];
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            let here = *stack.last().expect("the root is never popped");
            let Some(entries) = self.node(here).entries() else {
                return Err(PathError::NotADirectory.into());
            };
            if name == b".." {
                stack.truncate((stack.len() - 1).max(1));
                continue;
            }
            if name.len() > 255 {
                return Err(PathError::NameTooLong.into());
            }
            let entry = *entries.get(&name).ok_or(PathError::NotFound)?;
            let found = self.target(here, entry).ok_or(Refusal::Stub)?;
            match &self.node(found).kind {
                NodeKind::Symlink(target) if follow || !pending.is_empty() => {
                    links += 1;
                    if links > 40 {
                        return Err(PathError::SymlinkLoop.into());
                    }
                    if target.starts_with(b"/") {
                        stack.truncate(1);
                    }
                    for name in split(target).into_iter().rev() {
                        pending.push_front(name);
                    }
                }
                _ => stack.push(found),
            }
        }
        Ok(stack.pop().expect("the root is never popped"))
    }

    /// Resolves the directory that holds the last component of `path`; returns it and that
    /// component.
    fn parent<'p>(&self, path: &'p [u8]) -> Verdict<(Place, &'p [u8])> {
        let slash = path.iter().rposition(|byte| *byte == b'/').expect("paths must start with a slash");
        let (directory, name) = (&path[..slash], &path[slash + 1..]);
        if name.is_empty() || name == b"." || name == b".." {
            return Err(PathError::InvalidName.into());
        }
        let parent = self.resolve(directory, true)?;
        if self.node(parent).entries().is_none() {
            return Err(PathError::NotADirectory.into());
        }
        Ok((parent, name))
    }

    fn entries_mut(&mut self, directory: Place) -> &mut BTreeMap<Vec<u8>, Entry> {
        match &mut self.node_mut(directory).kind {
            NodeKind::Directory(entries) => entries,
            _ => panic!("{directory:?} must be a directory"),
        }
    }

    /// Opens a regular file in slot `slot`, which must be free.
    ///
    /// # Errors
    /// As for a path; also if the target is not a regular file.
    pub fn open(&mut self, slot: u8, path: &[u8]) -> Verdict {
        let place = self.resolve(path, true)?;
        match self.node(place).kind {
            NodeKind::File(_) => {}
            NodeKind::Directory(_) => return Err(PathError::IsADirectory.into()),
            _ => return Err(PathError::NotAFile.into()),
        }
        self.insert_open(slot, place);
        Ok(())
    }

    fn insert_open(&mut self, slot: u8, place: Place) {
        let writes = !self.is_read_only(place.subvolume);
        self.open.insert(slot, OpenSlot { place, writes });
    }

    /// Closes a file and deletes it if it has no name.
    pub fn close(&mut self, slot: u8) {
        if let Some(OpenSlot { place, .. }) = self.open.remove(&slot) {
            self.delete_if_unused(place);
            if self.is_deleted(place.subvolume) && !self.has_open(place.subvolume) {
                self.subvolumes.remove(&place.subvolume);
            }
        }
    }

    /// Closes all files, as closing the file system does.
    pub fn close_all(&mut self) {
        for slot in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(slot);
        }
    }

    /// Returns the open files.
    pub fn slots(&self) -> impl Iterator<Item = (u8, Place)> + '_ {
        self.open.iter().map(|(slot, open)| (*slot, open.place))
    }

    fn has_open(&self, subvolume: u64) -> bool {
        self.open.values().any(|open| open.place.subvolume == subvolume)
    }

    /// Deletes an inode without names and open files.
    fn delete_if_unused(&mut self, place: Place) {
        let Some(subvolume) = self.subvolumes.get_mut(&place.subvolume) else { return };
        let unnamed = subvolume.nodes.get(&place.node).is_some_and(|node| node.nlink == 0);
        if unnamed && !self.open.values().any(|open| open.place == place) {
            subvolume.nodes.remove(&place.node);
        }
    }
}

impl Subvolume {
    fn new(mode: u32) -> Self {
        let root = Node::empty_directory(mode);
        let nodes = BTreeMap::from([(ROOT, Arc::new(root))]);
        Self { nodes, read_only: false, deleted: false, limits: Limits::default() }
    }
}
