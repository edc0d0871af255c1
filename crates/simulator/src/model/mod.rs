//! What a file system must be after any operations, in memory: [`Model`].
//!
//! Owns subvolumes, their inodes and names, and the files that are open. It is as simple as can be, shares
//! no code with what it judges but the names of errors, and follows the kernel's rules for what is refused
//! and why. Invariant: an inode is kept while it has a name or is open.
//!
//! [`content`] holds bytes, [`names`] the rules of directories, [`data`] those of files.

mod content;
mod data;
mod names;

pub use content::Content;

use papilio::{FileKind, PathError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Why an operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A POSIX reason.
    Path(PathError),
    /// An argument that makes no sense.
    Invalid,
    /// Something in what a snapshot leaves of a subvolume: refused, but the kernel has many reasons.
    Stub,
}

impl From<PathError> for Refusal {
    fn from(kind: PathError) -> Self {
        Refusal::Path(kind)
    }
}

/// What the model says of an operation.
pub type Verdict<T = ()> = Result<T, Refusal>;

/// An inode: its subvolume, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The subvolume's number.
    pub subvolume: u64,
    /// The inode's.
    pub node: u64,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is, and what it holds.
    pub kind: NodeKind,
    /// The twelve low bits of its mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub nlink: u32,
    /// Made without a name, and it may get a first one.
    pub linkable: bool,
    /// Attributes, but those that the file system keeps for itself (`btrfs.`).
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Overwritten in place; a file's data has no checksums then.
    pub nodatacow: bool,
}

/// What an inode is.
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

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An inode of the same subvolume.
    Node(u64),
    /// The root directory of another subvolume.
    Subvolume(u64),
    /// A subvolume that a snapshot left out: an empty directory.
    Stub,
}

impl Node {
    /// A directory of root's with nothing in it and one name.
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

    /// The kind of file.
    pub fn file_kind(&self) -> FileKind {
        match &self.kind {
            NodeKind::File(_) => FileKind::Regular,
            NodeKind::Directory(_) => FileKind::Directory,
            NodeKind::Symlink(_) => FileKind::Symlink,
            NodeKind::Special(kind, ..) => *kind,
        }
    }

    /// The size that `stat` shows: a directory counts each name twice.
    pub fn size(&self) -> u64 {
        match &self.kind {
            NodeKind::File(content) => content.size(),
            NodeKind::Directory(entries) => entries.keys().map(|name| 2 * name.len() as u64).sum(),
            NodeKind::Symlink(target) => target.len() as u64,
            NodeKind::Special(..) => 0,
        }
    }

    /// A directory's entries.
    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Entry>> {
        match &self.kind {
            NodeKind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    /// A file's bytes.
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
}

/// Number of each subvolume's root directory.
pub const ROOT: u64 = 0;

/// A file system in memory.
#[derive(Clone, Debug)]
pub struct Model {
    subvolumes: BTreeMap<u64, Subvolume>,
    next: u64,
    open: BTreeMap<u8, Place>,
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// An empty directory of root's, as `mkfs` makes it.
    pub fn new() -> Self {
        let subvolumes = BTreeMap::from([(0, Subvolume::new(0o755))]);
        Self { subvolumes, next: 1, open: BTreeMap::new() }
    }

    /// The inode at a place.
    ///
    /// # Panics
    /// Without one: places come from the model itself.
    pub fn node(&self, place: Place) -> &Node {
        &self.subvolumes[&place.subvolume].nodes[&place.node]
    }

    /// The inode at a place, if there is one by now, and still.
    pub fn get(&self, place: Place) -> Option<&Node> {
        self.subvolumes.get(&place.subvolume)?.nodes.get(&place.node).map(|node| &**node)
    }

    /// All inodes of the first subvolume.
    pub fn nodes(&self) -> impl Iterator<Item = (Place, &Node)> {
        self.subvolumes[&0].nodes.iter().map(|(&node, found)| (Place { subvolume: 0, node }, &**found))
    }

    fn node_mut(&mut self, place: Place) -> &mut Node {
        let subvolume = self.subvolumes.get_mut(&place.subvolume).expect("a place that is there");
        Arc::make_mut(subvolume.nodes.get_mut(&place.node).expect("a place that is there"))
    }

    /// The directory that all paths start from.
    pub const fn root() -> Place {
        Place { subvolume: 0, node: ROOT }
    }

    /// Whether a subvolume is read-only.
    pub fn is_read_only(&self, subvolume: u64) -> bool {
        self.subvolumes[&subvolume].read_only
    }

    fn check_changeable(&self, place: Place) -> Verdict {
        if self.is_read_only(place.subvolume) { Err(PathError::ReadOnly.into()) } else { Ok(()) }
    }

    /// Inodes of all subvolumes.
    pub fn len(&self) -> usize {
        self.subvolumes.values().map(|subvolume| subvolume.nodes.len()).sum()
    }

    /// Whether there is nothing but the root directory.
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn add_node(&mut self, subvolume: u64, node: Node) -> Place {
        let number = self.number();
        let nodes = &mut self.subvolumes.get_mut(&subvolume).expect("a subvolume that is there").nodes;
        nodes.insert(number, Arc::new(node));
        Place { subvolume, node: number }
    }

    /// Where an entry of `directory` leads; `None` for what a snapshot left out.
    pub fn target(&self, directory: Place, entry: Entry) -> Option<Place> {
        match entry {
            Entry::Node(node) => Some(Place { subvolume: directory.subvolume, node }),
            Entry::Subvolume(subvolume) => Some(Place { subvolume, node: ROOT }),
            Entry::Stub => None,
        }
    }

    /// The inode at a path. Symbolic links are followed, in the last component if `follow` says so.
    ///
    /// # Errors
    /// POSIX's reasons.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Verdict<Place> {
        let split = |path: &[u8]| -> Vec<Vec<u8>> {
            path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
        };
        let mut pending: VecDeque<Vec<u8>> = split(path).into();
        let mut stack = vec![Self::root()];
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            let here = *stack.last().expect("the root stays");
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
        Ok(stack.pop().expect("the root stays"))
    }

    /// The directory that `path` names its last component in, and that component.
    fn parent<'p>(&self, path: &'p [u8]) -> Verdict<(Place, &'p [u8])> {
        let slash = path.iter().rposition(|byte| *byte == b'/').expect("paths start with a slash");
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
            _ => panic!("{directory:?} was seen to be a directory"),
        }
    }

    /// Opens a regular file as number `slot`, which must be free.
    ///
    /// # Errors
    /// As for a path; what is no regular file.
    pub fn open(&mut self, slot: u8, path: &[u8]) -> Verdict {
        let place = self.resolve(path, true)?;
        match self.node(place).kind {
            NodeKind::File(_) => {}
            NodeKind::Directory(_) => return Err(PathError::IsADirectory.into()),
            _ => return Err(PathError::NotAFile.into()),
        }
        self.open.insert(slot, place);
        Ok(())
    }

    /// Closes a file, which goes if it has no name.
    pub fn close(&mut self, slot: u8) {
        if let Some(place) = self.open.remove(&slot) {
            self.forget(place);
        }
    }

    /// Closes all, as when the file system is closed.
    pub fn close_all(&mut self) {
        for slot in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(slot);
        }
    }

    /// The files that are open.
    pub fn slots(&self) -> impl Iterator<Item = (u8, Place)> + '_ {
        self.open.iter().map(|(slot, place)| (*slot, *place))
    }

    /// Drops an inode that nothing needs.
    fn forget(&mut self, place: Place) {
        let Some(subvolume) = self.subvolumes.get_mut(&place.subvolume) else { return };
        let unnamed = subvolume.nodes.get(&place.node).is_some_and(|node| node.nlink == 0);
        if unnamed && !self.open.values().any(|open| *open == place) {
            subvolume.nodes.remove(&place.node);
        }
    }
}

impl Subvolume {
    fn new(mode: u32) -> Self {
        let root = Node::empty_directory(mode);
        Self { nodes: BTreeMap::from([(ROOT, Arc::new(root))]), read_only: false }
    }
}
