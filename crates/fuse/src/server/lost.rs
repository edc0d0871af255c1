//! Writes of the kernel's cache that could not be stored.
//!
//! Owns [`LostWrites`]. The kernel accepts such a write before the server sees it, and has extended
//! the file by then. A file that lost a write must not get the data after it: the result would have
//! a hole where the lost data was.
//!
//! - Later data from the cache, from the lost write's offset on, is refused with the same error,
//!   until the error was told to a program that writes the file, or the last one has closed it.
//! - The file's names leave the kernel's cache before it hears of the failure. With the last close
//!   the kernel forgets the file, and with it a size that the file does not have.
//! - A sync, an unmount, and a remount report a lost write once, with the file's path, unless the
//!   file was removed or cut meanwhile. An error belongs to its file: it fails no sync of others.
//!
//! Locks: `files`, a leaf; a file's turn, while data from the cache is written.

use super::state::Server;
use crate::errno::Errno;
use crate::ioctl::layout::LostWrite;
use crate::ioctl::{Caller, IoctlReply};
use crate::nodes::Node;
use crate::numbers::Place;
use crate::transport::NodeId;
use papilio::format::{InodeNumber, TreeId, objectid};
use papilio_locks::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Files whose writes take turns share so many locks.
const TURNS: usize = 16;
/// How long data from the cache waits for the data before it, at most.
const ORDER_ATTEMPTS: u32 = 20;
const ORDER_PAUSE: Duration = Duration::from_millis(1);
/// Directories on the way to a file, at most.
const DEPTH: usize = 256;

/// A write that could not be stored.
#[derive(Clone, Copy, Debug)]
struct Lost {
    error: Errno,
    /// The lowest file offset that was lost.
    from: u64,
    /// The generation of the inode, whose number may be used again.
    generation: Option<u64>,
    /// Later data is refused, too.
    refuses: bool,
}

/// The files that lost writes.
#[derive(Debug, Default)]
pub(super) struct LostWrites {
    files: Mutex<BTreeMap<(TreeId, InodeNumber), Lost>>,
    turns: [Mutex<()>; TURNS],
}

fn key(node: &Node) -> Option<(TreeId, InodeNumber)> {
    match node.place() {
        Place::Inode(tree, number) => Some((tree, number)),
        Place::Stub(..) => None,
    }
}

impl LostWrites {
    /// Waits for the file's turn: writes of the cache follow one another, so that none is stored
    /// after an earlier one was lost.
    pub(super) fn turn(&self, node: &Node) -> MutexGuard<'_, ()> {
        self.turns[node.id.0 as usize % TURNS].lock()
    }

    /// Notes that a write at `offset` was lost.
    fn note(&self, node: &Node, generation: Option<u64>, offset: u64, error: Errno) {
        let Some(key) = key(node) else { return };
        let new = Lost { error, from: offset, generation, refuses: true };
        let mut files = self.files.lock();
        let lost = files.entry(key).or_insert(new);
        *lost = match lost.generation == generation {
            true => Lost { error: lost.error, from: lost.from.min(offset), ..new },
            false => new,
        };
    }

    /// Returns why data from the cache at `offset` is refused.
    pub(super) fn refusal(&self, node: &Node, offset: u64) -> Option<Errno> {
        let files = self.files.lock();
        let lost = files.get(&key(node)?).filter(|lost| lost.refuses && offset >= lost.from)?;
        Some(lost.error)
    }

    /// Notes that a program that writes the file was told, or that none writes it any more.
    pub(super) fn was_told(&self, node: &Node) {
        let Some(key) = key(node) else { return };
        if let Some(lost) = self.files.lock().get_mut(&key) {
            lost.refuses = false;
        }
    }

    /// Notes that the file was cut to `size` bytes.
    pub(super) fn was_cut(&self, node: &Node, size: u64) {
        let Some(key) = key(node) else { return };
        let mut files = self.files.lock();
        if files.get(&key).is_some_and(|lost| size <= lost.from) {
            files.remove(&key);
        }
    }

    /// Returns whether the file has lost a write.
    pub(super) fn has(&self, node: &Node) -> bool {
        key(node).is_some_and(|key| self.files.lock().contains_key(&key))
    }
}

impl Server {
    /// Notes that a write at `offset` was lost, which no caller has heard of.
    pub(super) fn lose_write(&self, node: &Node, offset: u64, error: Errno) {
        let generation = node.current(&self.fs).ok().map(|inode| inode.metadata().generation().get());
        self.lost.note(node, generation, offset, error);
        node.failed.store(error.code(), Ordering::Release);
    }

    /// Waits for the data between the end of a file and `offset`, which other threads are storing.
    /// A hole there may also be meant, so it waits for a short time only.
    pub(super) fn wait_for_order(&self, file: &papilio::File, offset: u64) {
        for _ in 0..ORDER_ATTEMPTS {
            if file.size().is_ok_and(|size| size >= offset) {
                return;
            }
            std::thread::sleep(ORDER_PAUSE);
        }
    }

    /// Returns the names under which the kernel may know a file, as directories and entries.
    pub(super) fn known_names(&self, id: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        let names = || {
            let inode = self.node(id).ok()?.current(&self.fs).ok()?;
            let tree = inode.tree();
            let names = inode.names().ok()?.into_iter();
            Some(names.map(|(parent, name)| (self.nodes.id(tree, parent), name)).collect())
        };
        names().unwrap_or_default()
    }

    /// Returns the names of a file that was closed and that lost a write.
    pub(super) fn names_to_forget(&self, id: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        match self.node(id) {
            Ok(node) if self.lost.has(&node) => self.known_names(id),
            _ => Vec::new(),
        }
    }

    /// Our own ioctl: returns a file that lost a write, once.
    pub(super) fn take_lost_write(&self, caller: Caller) -> IoctlReply {
        let mut reply = LostWrite::default();
        loop {
            let next = self.lost.files.lock().pop_first();
            let Some(((tree, number), lost)) = next else { break };
            // A file that was removed meanwhile has nothing left to lose.
            let exists = self.fs.inode_at(tree, number).is_ok_and(|inode| {
                let metadata = inode.metadata();
                metadata.nlink() > 0 && Some(metadata.generation().get()) == lost.generation
            });
            if !exists {
                continue;
            }
            reply.error = lost.error.code() as u32;
            reply.inode = self.nodes.number(tree, number);
            // The way to the file may lead through directories that other callers may not search.
            if [0, rustix::process::geteuid().as_raw()].contains(&caller.uid)
                && let Some(path) = self.path_of(tree, number)
            {
                let length = path.len().min(reply.path.len());
                reply.path[..length].copy_from_slice(&path[path.len() - length..]);
                reply.path_length = length as u32;
            }
            break;
        }
        IoctlReply { result: 0, output: reply.as_bytes().to_vec(), changed: Vec::new() }
    }

    /// Returns the path of an inode from the top level.
    fn path_of(&self, tree: TreeId, number: InodeNumber) -> Option<Vec<u8>> {
        let mut path = self.fs.subvolume(tree).ok()?.path.unwrap_or_default();
        let mut names = Vec::new();
        let mut at = number;
        while at != objectid::FIRST_INODE {
            let (parent, name) = self.fs.inode_at(tree, at).ok()?.names().ok()?.into_iter().next()?;
            names.push(name);
            at = parent;
            if names.len() > DEPTH {
                return None;
            }
        }
        for name in names.iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        Some(path)
    }
}
