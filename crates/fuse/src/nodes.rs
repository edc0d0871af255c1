//! The nodes that the kernel knows.
//!
//! Owns [`Nodes`] and [`Node`]. Each reply that names a node adds one to the kernel's count of
//! look-ups for it, and forget requests subtract from the count. A node lives here until its count
//! is zero. It keeps its inode ([`papilio::KeptInode`]), so a file without names stays readable and
//! writable while a process has it open. An inode number may be reused after a deletion; the
//! generation in each reply tells the kernel so.
//!
//! A node that was only looked up has its identity and a few marks, some 250 bytes in all. The
//! inode and the open file come with the first use ([`Used`]). They go when newer ones have taken
//! their place in a queue of limited length, unless the file is open.
//!
//! A read-only mount that becomes writable, or follows a writer, has another file system from then
//! on. Each node is then replaced by one with the same id that keeps its inode there
//! ([`Nodes::renew`]). A file that the writer has deleted is gone: ESTALE. The table hears
//! of it after [`ServedFileSystem`] has changed, and asks that under the lock of a shard or a node,
//! so that no inode of the earlier one comes in later.
//!
//! **Locks**
//! - A shard's mutex, for one operation on its map. Dropping a node may delete an inode, so nodes
//!   are dropped outside the lock.
//! - `used` of a node, while its inode and file are opened.
//! - `resting`, for one push and one pop.

use crate::cached_pages::CachedPages;
use crate::numbers::{InodeNumbers, Place};
use crate::served::ServedFileSystem;
use crate::transport::NodeId;
use arc_swap::ArcSwap;
use papilio::format::{InodeNumber, TreeId};
use papilio::{ErrorKind, File, FileKind, FileSystem, Inode, KeptInode, PathError};
use papilio_ioctl::Errno;
use papilio_locks::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

const SHARDS: usize = 64;
/// Number of nodes whose inode and file stay at hand although no process has them open.
const RESTING: usize = 1024;

/// An inode that the kernel knows.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) kind: FileKind,
    /// The identity of the inode, and of the directory for a stub.
    kept: KeptInode,
    /// The name, for the empty directory that represents a subvolume in a snapshot.
    stub: Option<Box<[u8]>>,
    used: Mutex<Option<Arc<Used>>>,
    /// Number of times the file is open.
    opens: Arc<AtomicU32>,
    /// Number of times the file is open for writing.
    pub(crate) writers: AtomicU32,
    /// The error of a write from the kernel's cache that no caller has heard of, or 0.
    pub(crate) failed: AtomicI32,
    /// The kernel may have pages of the file in its cache.
    pub(crate) cached: CachedPages,
    /// The count of name changes at the last recorded read; `server/access_time.rs` owns it.
    pub(crate) read_noted: AtomicU64,
    /// The count of closes at the last listing with attributes. Where the kernel opens directories
    /// without the server, the end of the last listing. `server/directories.rs` owns it.
    pub(crate) listed: AtomicU64,
}

/// The inode and the file of a node in use.
#[derive(Debug)]
pub(crate) struct Used {
    /// The inode when its use began. Only its immutable properties are current.
    pub(crate) inode: Inode,
    /// The open file, for a regular file.
    file: Option<Arc<File>>,
    /// The file has holes: data behind its end need not wait for the data before.
    pub(crate) sparse: AtomicBool,
}

impl Used {
    /// Returns the regular file; EISDIR or EINVAL for another kind.
    pub(crate) fn file(&self) -> Result<&File, Errno> {
        match (&self.file, self.inode.file_type()) {
            (Some(file), _) => Ok(file),
            (None, FileKind::Directory) => Err(Errno(libc::EISDIR)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// As [`Used::file`], for a request that outlives this.
    pub(crate) fn shared_file(&self) -> Result<Arc<File>, Errno> {
        self.file()?;
        Ok(Arc::clone(self.file.as_ref().expect("it was just found")))
    }
}

impl Node {
    fn new(id: NodeId, place: Place, kind: FileKind, fs: &FileSystem) -> Self {
        let (tree, number, stub) = match place {
            Place::Inode(tree, number) => (tree, number, None),
            Place::Stub(tree, directory, name) => (tree, directory, Some(name)),
        };
        Self {
            id,
            kind,
            kept: fs.keep(tree, number),
            stub,
            used: Mutex::new(None),
            opens: Arc::default(),
            writers: AtomicU32::new(0),
            failed: AtomicI32::new(0),
            cached: CachedPages::default(),
            read_noted: AtomicU64::new(0),
            listed: AtomicU64::new(0),
        }
    }

    /// Returns the identity of the inode.
    pub(crate) fn place(&self) -> Place {
        match &self.stub {
            None => Place::Inode(self.kept.tree(), self.kept.number()),
            Some(name) => Place::Stub(self.kept.tree(), self.kept.number(), name.clone()),
        }
    }

    /// Returns the current inode; ESTALE if it is gone, because the kernel still knows it.
    pub(crate) fn current(&self, fs: &FileSystem) -> Result<Inode, Errno> {
        let inode = fs.inode_at(self.kept.tree(), self.kept.number()).map_err(stale)?;
        match &self.stub {
            None => Ok(inode),
            Some(name) => {
                let stub = inode.lookup(name).map_err(stale)?;
                stub.filter(Inode::is_subvolume_stub).ok_or(Errno(libc::ESTALE))
            }
        }
    }

    /// Returns whether this is the empty directory that represents a subvolume in a snapshot.
    pub(crate) fn is_stub(&self) -> bool {
        self.stub.is_some()
    }

    /// Returns the subvolume of the inode.
    pub(crate) fn tree(&self) -> TreeId {
        self.kept.tree()
    }

    /// Returns whether the file is open, as far as the server hears of it.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_resting()
    }

    /// Returns whether the node is in use without a process that has it open.
    fn is_resting(&self) -> bool {
        self.opens.load(Ordering::Acquire) == 0
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
    root: ArcSwap<Node>,
    shards: Box<[Mutex<HashMap<NodeId, Known>>]>,
    /// Nodes in the order of their last use, opened files excepted.
    resting: Mutex<VecDeque<NodeId>>,
}

impl Nodes {
    /// Creates the table with the root directory, which the kernel always knows. Inodes of the
    /// subvolume `mounted` keep their own numbers.
    pub(crate) fn new(root: &Inode, mounted: TreeId) -> Self {
        let place = Place::Inode(root.tree(), root.number());
        let numbers = InodeNumbers::new(mounted);
        let root = Node::new(NodeId::ROOT, place, root.file_type(), root.file_system());
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { numbers, root: ArcSwap::from_pointee(root), shards, resting: Mutex::default() }
    }

    /// Replaces all nodes by those of the file system that has taken the place of the one so far,
    /// which was open for reading.
    pub(crate) fn renew(&self, served: &ServedFileSystem) {
        let fs = served.current();
        let renewed = |node: &Node| {
            let opens = Arc::clone(&node.opens);
            Arc::new(Node { opens, ..Node::new(node.id, node.place(), node.kind, &fs) })
        };
        drop(self.root.swap(renewed(&self.root.load())));
        for shard in &self.shards {
            let mut earlier = Vec::new();
            for known in shard.lock().values_mut() {
                let node = renewed(&known.node);
                node.cached.note_pages();
                earlier.push(std::mem::replace(&mut known.node, node));
            }
            // Files are closed outside the lock.
            drop(earlier);
        }
    }

    /// Returns the inode and the file of a node, opened if necessary.
    pub(crate) fn used(&self, served: &ServedFileSystem, node: &Node) -> Result<Arc<Used>, Errno> {
        let mut used = node.used.lock();
        if let Some(used) = &*used {
            return Ok(Arc::clone(used));
        }
        let inode = node.current(&served.current())?;
        let file = match inode.file_type() {
            FileKind::Regular => Some(Arc::new(inode.open().map_err(stale)?)),
            _ => None,
        };
        let made = Arc::new(Used { inode, file, sparse: AtomicBool::new(false) });
        *used = Some(Arc::clone(&made));
        drop(used);
        self.rest(node.id);
        Ok(made)
    }

    /// Notes that a file was opened.
    pub(crate) fn opened(&self, node: &Node) {
        node.opens.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that an open file was closed.
    pub(crate) fn closed(&self, node: &Node) {
        if node.opens.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.rest(node.id);
        }
    }

    /// Puts a node at the end of the queue, and ends the use of the one that leaves it.
    fn rest(&self, id: NodeId) {
        let oldest = {
            let mut resting = self.resting.lock();
            resting.push_back(id);
            if resting.len() > RESTING { resting.pop_front() } else { None }
        };
        let Some(oldest) = oldest.and_then(|oldest| self.get(oldest).ok()) else { return };
        if oldest.is_resting() {
            // A thread that is at work with it has its own reference.
            let gone = oldest.used.lock().take();
            drop(gone);
        }
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
        self.numbers.number(&node.place())
    }

    /// Returns the id by which the kernel knows an inode.
    pub(crate) fn id(&self, tree: TreeId, inode: InodeNumber) -> NodeId {
        let root = self.root.load();
        if (tree, inode) == (root.kept.tree(), root.kept.number()) {
            return NodeId::ROOT;
        }
        NodeId(self.number(tree, inode))
    }

    /// Counts a look-up of the entry `name` of `directory` and returns its node.
    pub(crate) fn learn(
        &self,
        served: &ServedFileSystem,
        directory: &Inode,
        name: &[u8],
        inode: &Inode,
    ) -> Arc<Node> {
        let place = place_of(directory, name, inode);
        let id = match place {
            Place::Inode(tree, number) => self.id(tree, number),
            Place::Stub(..) => NodeId(self.numbers.number(&place)),
        };
        if id == NodeId::ROOT {
            return self.root.load_full();
        }
        let new = |place| Arc::new(Node::new(id, place, inode.file_type(), &served.current()));
        let mut shard = self.shard(id).lock();
        let known = shard.entry(id).or_insert_with(|| Known { node: new(place), lookups: 0 });
        if known.node.kind != inode.file_type() {
            // The writer that this mount follows has used the number of a deleted inode again.
            known.node = new(known.node.place());
        }
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
            return Ok(self.root.load_full());
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

    /// Returns the nodes that `wanted` accepts.
    pub(crate) fn select(&self, wanted: impl Fn(&Node) -> bool) -> Vec<NodeId> {
        let mut selected = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            selected.extend(shard.values().filter(|known| wanted(&known.node)).map(|known| known.node.id));
        }
        selected
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
