//! The nodes that the kernel knows.
//!
//! Owns [`Nodes`] and [`Node`]. The kernel learns of a node by each reply that names it, and forgets it in
//! pieces; what it knows is kept here, so that a file that lost its last name stays readable and writable as
//! long as somebody has it open: a node keeps its inode ([`papilio::KeptInode`]), and an open file is a node
//! that the kernel has not forgotten. Inode numbers may be given out anew after a deletion; the generation
//! that goes with each reply tells the kernel so.
//!
//! Locks: a shard's, for one operation on its map; dropping a node may delete an inode and happens outside.

use crate::errno::Errno;
use crate::numbers::{InodeNumbers, Place};
use crate::transport::NodeId;
use papilio::format::{InodeNumber, TreeId};
use papilio::{ErrorKind, File, FileKind, FileSystem, Inode, KeptInode, PathError};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SHARDS: usize = 64;

/// One inode that the kernel knows.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) place: Place,
    /// As it was when the kernel learned of it: what never changes of it can be asked of this.
    pub(crate) inode: Inode,
    /// Of a regular file.
    file: Option<File>,
    _kept: KeptInode,
    /// How often it is open for writing.
    pub(crate) writers: AtomicU32,
    /// See [`crate::server`]'s access times.
    pub(crate) read_noted: AtomicU64,
}

impl Node {
    fn new(id: NodeId, place: Place, inode: Inode) -> Self {
        // Opened before it is asked whether it still is there, so that it then stays.
        let file = if inode.kind() == FileKind::Regular { inode.open().ok() } else { None };
        let kept = inode.keep();
        let (writers, read_noted) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { id, place, inode, file, _kept: kept, writers, read_noted }
    }

    /// The regular file that it is.
    pub(crate) fn file(&self) -> Result<&File, Errno> {
        match (&self.file, self.inode.kind()) {
            (Some(file), _) => Ok(file),
            (None, FileKind::Directory) => Err(Errno(libc::EISDIR)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// The inode as it is now. One that is gone is ESTALE: the kernel knew it.
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

/// The error of what concerns a node itself, which the kernel thinks is there.
pub(crate) fn stale(error: papilio::Error) -> Errno {
    match error.kind() {
        ErrorKind::Path(PathError::NotFound | PathError::NoSubvolume) => Errno(libc::ESTALE),
        _ => error.into(),
    }
}

struct Known {
    node: Arc<Node>,
    lookups: u64,
}

/// All nodes that the kernel knows.
pub(crate) struct Nodes {
    numbers: InodeNumbers,
    root: Arc<Node>,
    shards: Box<[Mutex<HashMap<NodeId, Known>>]>,
}

impl Nodes {
    /// The root directory only, which the kernel knows from the start and for ever.
    pub(crate) fn new(root: Inode) -> Self {
        let place = Place::Inode(root.tree(), root.number());
        let numbers = InodeNumbers::new((root.tree(), root.number()));
        let root = Arc::new(Node::new(NodeId::ROOT, place, root));
        Self { numbers, root, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// The number that users see of the entry `name` of `directory`, an inode's.
    pub(crate) fn number_of(&self, directory: &Inode, name: &[u8], inode: &Inode) -> u64 {
        self.numbers.number(&place_of(directory, name, inode))
    }

    /// The number that users see of an inode.
    pub(crate) fn number(&self, tree: TreeId, inode: InodeNumber) -> u64 {
        self.numbers.number(&Place::Inode(tree, inode))
    }

    /// The number that users see of a node.
    pub(crate) fn number_of_node(&self, node: &Node) -> u64 {
        self.numbers.number(&node.place)
    }

    /// The kernel's name of an inode.
    pub(crate) fn id(&self, tree: TreeId, inode: InodeNumber) -> NodeId {
        if (tree, inode) == (self.root.inode.tree(), self.root.inode.number()) {
            return NodeId::ROOT;
        }
        NodeId(self.number(tree, inode))
    }

    /// The kernel learns of the entry `name` of `directory`.
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

    /// The kernel forgets.
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

    /// A node that the kernel knows.
    pub(crate) fn get(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        if id == NodeId::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        let shard = self.shard(id).lock();
        shard.get(&id).map(|known| Arc::clone(&known.node)).ok_or(Errno(libc::ESTALE))
    }

    /// The inode that a number names, for who kept the number and not the node (an NFS server).
    pub(crate) fn resolve(&self, fs: &FileSystem, id: NodeId) -> Result<Inode, Errno> {
        if let Ok(node) = self.get(id) {
            return node.current(fs);
        }
        match self.numbers.place(id.0) {
            Some(Place::Inode(tree, number)) => fs.inode_at(tree, number).map_err(stale),
            _ => Err(Errno(libc::ESTALE)),
        }
    }

    /// The files that are open for writing.
    pub(crate) fn open_for_writing(&self) -> Vec<NodeId> {
        let mut open = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let written = shard.values().filter(|known| known.node.writers.load(Ordering::Acquire) > 0);
            open.extend(written.map(|known| known.node.id));
        }
        open
    }

    /// How often the kernel learned of nodes that it did not forget.
    #[cfg(test)]
    pub(crate) fn lookups(&self) -> u64 {
        let all = |shard: &Mutex<HashMap<NodeId, Known>>| {
            shard.lock().values().map(|known| known.lookups).sum::<u64>()
        };
        self.shards.iter().map(all).sum()
    }

    fn shard(&self, id: NodeId) -> &Mutex<HashMap<NodeId, Known>> {
        // Numbers of one directory's files follow one another.
        &self.shards[id.0 as usize % SHARDS]
    }
}

fn place_of(directory: &Inode, name: &[u8], inode: &Inode) -> Place {
    if inode.is_subvolume_stub() {
        return Place::Stub(directory.tree(), directory.number(), name.into());
    }
    Place::Inode(inode.tree(), inode.number())
}
