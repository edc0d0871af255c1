//! The nodes that the kernel knows.
//!
//! Owns [`Nodes`] and [`Node`]. Each reply that names a node adds one to the kernel's count of
//! look-ups for it, and forget requests subtract from the count. A node lives here until its count
//! is zero. It keeps its inode ([`papilio::KeptInode`]), so a file without names stays readable and
//! writable while a process has it open. An inode number may be reused after a deletion; the
//! generation in each reply tells the kernel so.
//!
//! **Locks**
//! - A shard's mutex, for one operation on its map. Dropping a node may delete an inode, so nodes
//!   are dropped outside the lock.

use crate::errno::Errno;
use crate::numbers::{InodeNumbers, Place};
use crate::transport::NodeId;
use papilio::format::{InodeNumber, TreeId};
use papilio::{ErrorKind, File, FileKind, FileSystem, Inode, KeptInode, PathError};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

const SHARDS: usize = 64;

/// An inode that the kernel knows.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) place: Place,
    /// The inode when the kernel first looked it up. Only its immutable properties are current.
    pub(crate) inode: Inode,
    /// The open file, for a regular file.
    file: Option<File>,
    _kept: KeptInode,
    /// Number of times the file is open for writing.
    pub(crate) writers: AtomicU32,
    /// The error of a write from the kernel's cache that no caller has heard of; 0 if there is none.
    pub(crate) failed: AtomicI32,
    /// The kernel may have pages of the file in its cache.
    pub(crate) cached: AtomicBool,
    /// The count of name changes at the last recorded read; `server/access_time.rs` owns it.
    pub(crate) read_noted: AtomicU64,
}

impl Node {
    fn new(id: NodeId, place: Place, inode: Inode) -> Self {
        // Open first and check for existence afterwards, so that an existing file stays.
        let file = if inode.file_type() == FileKind::Regular { inode.open().ok() } else { None };
        let kept = inode.keep();
        let (writers, read_noted) = (AtomicU32::new(0), AtomicU64::new(0));
        let (failed, cached) = (AtomicI32::new(0), AtomicBool::new(false));
        Self { id, place, inode, file, _kept: kept, writers, failed, cached, read_noted }
    }

    /// Returns the regular file; EISDIR or EINVAL for another kind.
    pub(crate) fn file(&self) -> Result<&File, Errno> {
        match (&self.file, self.inode.file_type()) {
            (Some(file), _) => Ok(file),
            (None, FileKind::Directory) => Err(Errno(libc::EISDIR)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// Returns the current inode; ESTALE if it is gone, because the kernel still knows it.
    pub(crate) fn current(&self, fs: &FileSystem) -> Result<Inode, Errno> {
        match &self.place {
            Place::Inode(tree, number) => fs.inode_at(*tree, *number).map_err(stale),
            Place::Stub(tree, directory, name) => {
                let directory = fs.inode_at(*tree, *directory).map_err(stale)?;
                let stub = directory.lookup(name).map_err(stale)?;
                stub.filter(Inode::is_subvolume_stub).ok_or(Errno(libc::ESTALE))
            }
        }
    }
}

/// Converts an error about a node that the kernel believes exists: "not found" becomes ESTALE.
pub(crate) fn stale(error: papilio::Error) -> Errno {
    match error.kind() {
        ErrorKind::Path(PathError::NotFound | PathError::NoSubvolume) => Errno(libc::ESTALE),
        _ => error.into(),
    }
}

/// A node and the kernel's count of look-ups for it.
struct Known {
    node: Arc<Node>,
    lookups: u64,
}

/// The nodes that the kernel knows, by id.
pub(crate) struct Nodes {
    numbers: InodeNumbers,
    root: Arc<Node>,
    shards: Box<[Mutex<HashMap<NodeId, Known>>]>,
}

impl Nodes {
    /// Creates the table with the root directory, which the kernel always knows.
    pub(crate) fn new(root: Inode) -> Self {
        let place = Place::Inode(root.tree(), root.number());
        let numbers = InodeNumbers::new((root.tree(), root.number()));
        let root = Arc::new(Node::new(NodeId::ROOT, place, root));
        Self { numbers, root, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Returns the inode number that users see for the entry `name` of `directory`, which names
    /// `inode`.
    pub(crate) fn number_of(&self, directory: &Inode, name: &[u8], inode: &Inode) -> u64 {
        self.numbers.number(&place_of(directory, name, inode))
    }

    /// Returns the inode number that users see for an inode.
    pub(crate) fn number(&self, tree: TreeId, inode: InodeNumber) -> u64 {
        self.numbers.number(&Place::Inode(tree, inode))
    }

    /// Returns the inode number that users see for a node.
    pub(crate) fn number_of_node(&self, node: &Node) -> u64 {
        self.numbers.number(&node.place)
    }

    /// Returns the id by which the kernel knows an inode.
    pub(crate) fn id(&self, tree: TreeId, inode: InodeNumber) -> NodeId {
        if (tree, inode) == (self.root.inode.tree(), self.root.inode.number()) {
            return NodeId::ROOT;
        }
        NodeId(self.number(tree, inode))
    }

    /// Counts a look-up of the entry `name` of `directory` and returns its node.
    pub(crate) fn learn(&self, directory: &Inode, name: &[u8], inode: &Inode) -> Arc<Node> {
        let place = place_of(directory, name, inode);
        let id = match place {
            Place::Inode(tree, number) => self.id(tree, number),
            Place::Stub(..) => NodeId(self.numbers.number(&place)),
        };
        if id == NodeId::ROOT {
            return Arc::clone(&self.root);
        }
        let mut shard = self.shard(id).lock();
        let known = shard
            .entry(id)
            .or_insert_with(|| Known { node: Arc::new(Node::new(id, place, inode.clone())), lookups: 0 });
        known.lookups += 1;
        Arc::clone(&known.node)
    }

    /// Subtracts `count` look-ups from a node; drops it at zero.
    pub(crate) fn forget(&self, id: NodeId, count: u64) {
        let gone = {
            let mut shard = self.shard(id).lock();
            match shard.get_mut(&id) {
                Some(known) if known.lookups > count => {
                    known.lookups -= count;
                    None
                }
                Some(_) => shard.remove(&id),
                None => None,
            }
        };
        drop(gone);
    }

    /// Returns a node that the kernel knows; ESTALE otherwise.
    pub(crate) fn get(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        if id == NodeId::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        let shard = self.shard(id).lock();
        shard.get(&id).map(|known| Arc::clone(&known.node)).ok_or(Errno(libc::ESTALE))
    }

    /// Returns the inode with an id. Works for callers that remember the number without keeping the
    /// node, such as an NFS server.
    pub(crate) fn resolve(&self, fs: &FileSystem, id: NodeId) -> Result<Inode, Errno> {
        if let Ok(node) = self.get(id) {
            return node.current(fs);
        }
        match self.numbers.place(id.0) {
            Some(Place::Inode(tree, number)) => fs.inode_at(tree, number).map_err(stale),
            _ => Err(Errno(libc::ESTALE)),
        }
    }

    /// Returns the files that are open for writing.
    pub(crate) fn open_for_writing(&self) -> Vec<NodeId> {
        let mut open = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let written = shard.values().filter(|known| known.node.writers.load(Ordering::Acquire) > 0);
            open.extend(written.map(|known| known.node.id));
        }
        open
    }

    /// Returns the sum of all look-up counts.
    #[cfg(test)]
    pub(crate) fn lookups(&self) -> u64 {
        let all = |shard: &Mutex<HashMap<NodeId, Known>>| {
            shard.lock().values().map(|known| known.lookups).sum::<u64>()
        };
        self.shards.iter().map(all).sum()
    }

    fn shard(&self, id: NodeId) -> &Mutex<HashMap<NodeId, Known>> {
        // Files of one directory usually have consecutive numbers, which land in different shards.
        &self.shards[id.0 as usize % SHARDS]
    }
}

fn place_of(directory: &Inode, name: &[u8], inode: &Inode) -> Place {
    if inode.is_subvolume_stub() {
        return Place::Stub(directory.tree(), directory.number(), name.into());
    }
    Place::Inode(inode.tree(), inode.number())
}
