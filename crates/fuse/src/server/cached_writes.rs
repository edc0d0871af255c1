//! Writes that the kernel caches: before it accepts them, and when their data comes.
//!
//! Owns the answer to the kernel's question before it caches a write while room is short. A write
//! for which there is no space is refused there, with ENOSPC or EDQUOT. Also owns the report of
//! data that was accepted and could not be stored ([`super::lost`]).
//!
//! Locks: a file's turn, while its data is written.

use super::pending_write::{KnownWrite, PendingWrite};
use super::state::Server;
use crate::ioctl::{Caller, IoctlReply};
use crate::nodes::{Node, Used, stale};
use crate::numbers::Place;
use crate::transport::{NodeId, RefusedWrite};
use papilio::format::items::inode::InodeFlags;
use papilio::format::{InodeNumber, TreeId, objectid};
use papilio::{ErrorKind, File, FileKind, Inode, WritePromise};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::LostWrite;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The bytes for which there must be space where the write is not known.
const GUESS: u64 = 128 << 10;
/// How often data from the cache looks for the data before it, at most.
const ORDER_ATTEMPTS: u32 = 20;
const ORDER_PAUSE: Duration = Duration::from_millis(1);
/// The same where the order matters for the number of extents only.
const GROWTH_PAUSE: Duration = Duration::from_micros(100);
/// How long a look-up of a file that lost a write waits for a close that is under way, at most.
const CLOSE_ATTEMPTS: u32 = 20;
const CLOSE_PAUSE: Duration = Duration::from_millis(1);
/// Names in a deleted subvolume that the kernel is told to forget, at most.
const MOST_NAMED: usize = 10_000;
/// Directories on the way to a file, at most.
const DEPTH: usize = 256;

impl Server {
    /// Answers the kernel's question on behalf of an open file, which it may ask before it writes
    /// to its cache. An error fails that write: the error of an earlier write that no caller has
    /// heard of, or that of a write for which there is no space.
    pub(crate) fn before_cached_write(&self, caller: Caller, id: NodeId) -> Result<(), RefusedWrite> {
        if !self.writeback_cache {
            return Ok(());
        }
        if self.room.is_short() {
            self.lost_room();
        }
        let node = self.node(id)?;
        let failed = node.failed.load(Ordering::Acquire) != 0;
        if !failed && !self.room.is_short() {
            return Ok(());
        }
        let used = self.used(&node)?;
        let Ok(file) = used.file() else { return Ok(()) };
        let size = file.size().map_err(stale)?;
        let pending = PendingWrite::of(caller, self.nodes.number_of_node(&node), size);
        if pending == PendingWrite::Other {
            return Ok(());
        }
        match node.failed.swap(0, Ordering::AcqRel) {
            0 => {}
            error => {
                self.lost.was_told(&node);
                return Err(Errno(error).into());
            }
        }
        if !self.room.is_short() {
            return Ok(());
        }
        // The data of the thread's write before is written by now.
        self.promises.set(id, caller.pid, None);
        let promise = match pending {
            PendingWrite::Write(write) => match self.promise_with_tail(file, &write, size) {
                // The server gets the write itself, and reserves for it then.
                Ok(_) if write.direct => return Ok(()),
                Ok(promise) => promise,
                Err(error) => return Err(self.refused_unfit(caller, &node, file, &write, error)),
            },
            // The kernel asks for other reasons, too, and the write may need no space.
            _ if self.may_own_space(&node)? => return Ok(()),
            _ => match file.promise_write(None, GUESS) {
                Err(error) if error.kind() == ErrorKind::NoSpace => return Err(stale(error).into()),
                promise => promise.map_err(stale)?,
            },
        };
        self.promises.set(id, caller.pid, Some(promise));
        Ok(())
    }

    /// Keeps space for a write to a file of `size` bytes, and for the sector with the file's end:
    /// that one is written anew if data behind it comes first.
    fn promise_with_tail(&self, file: &File, write: &KnownWrite, size: u64) -> papilio::Result<WritePromise> {
        let end = write.offset.map_or(u64::MAX, |offset| offset.saturating_add(write.length));
        file.promise_write(write.offset, write.length + self.tail_before(size, end))
    }

    /// Returns the bytes of the sector with the end of a file of `size` bytes, if it ends before
    /// `offset` and is not whole.
    fn tail_before(&self, size: u64, offset: u64) -> u64 {
        let sector = u64::from(self.sector_size());
        let is_partial = !size.is_multiple_of(sector);
        if is_partial && size.next_multiple_of(sector) <= offset { sector } else { 0 }
    }

    /// Refuses a write that does not fit as a whole, for the reason `error`.
    fn refused_unfit(
        &self,
        caller: Caller,
        node: &Node,
        file: &File,
        write: &KnownWrite,
        error: papilio::Error,
    ) -> RefusedWrite {
        if !matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Quota(_)) {
            return stale(error).into();
        }
        let stored = self.store_prefix(caller, node, file, write);
        RefusedWrite { error: stale(error), stored }
    }

    /// Returns whether a file may have space that it can write without taking more.
    fn may_own_space(&self, node: &Node) -> Result<bool, Errno> {
        let flags = node.current(&self.fs())?.metadata().flags();
        Ok(flags.intersects(InodeFlags::PREALLOC | InodeFlags::NODATACOW))
    }

    /// Writes data from the kernel's cache. No caller waits for it: the kernel reports an error at
    /// `fsync` and `close`, and the server before the next write to its cache.
    pub(super) fn write_from_cache(
        &self,
        node: &Node,
        used: &Used,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Errno> {
        let file = used.file()?;
        // A mount that passes writes on learns of no room, and the data here is that of mappings.
        let in_order = self.room.is_short() || !self.writeback_cache;
        // The pieces of a file that grows become one extent if they come in order.
        let grows = file.size().is_ok_and(|size| size < offset + data.len() as u64);
        if in_order {
            wait_for_order(file, offset, ORDER_PAUSE);
        } else if grows && !used.sparse.load(Ordering::Relaxed) && !wait_for_order(file, offset, GROWTH_PAUSE)
        {
            used.sparse.store(true, Ordering::Relaxed);
        }
        let _turn = (in_order || grows).then(|| self.lost.turn(node, offset));
        let (stored, written) = match self.lost.refusal(node, offset) {
            Some(error) => (0, Err(error)),
            None => {
                let tail = file.size().map_or(0, |size| self.tail_before(size, offset));
                let mut promise = self.promises.take(node.id, offset, data.len() + tail as usize);
                // The library reserves the space of that sector by itself.
                drop(promise.split(tail));
                // The kernel has the times of these writes, and stores them by itself.
                let (stored, written) = file.write_back_promised(data, offset, promise);
                (stored, written.map_err(stale))
            }
        };
        written.inspect_err(|error| self.lose_write(node, offset + stored as u64, *error))
    }

    /// Notes that a write at `offset` was lost, which no caller has heard of.
    pub(super) fn lose_write(&self, node: &Node, offset: u64, error: Errno) {
        let generation = node.current(&self.fs()).ok().map(|inode| inode.metadata().generation().get());
        self.lost.note(node, generation, offset, error);
        node.failed.store(error.code(), Ordering::Release);
    }

    /// Waits for the close of a file that lost a write, if the program has closed it. The kernel
    /// tells the server of a close after the program goes on. A look-up in between would find the
    /// kernel's inode, with a size that the file does not have.
    pub(super) fn wait_for_close(&self, inode: &Inode) {
        if !self.room.is_short() {
            return;
        }
        let Ok(node) = self.node(self.nodes.id(inode.tree(), inode.number())) else { return };
        if !self.lost.has(&node) {
            return;
        }
        for _ in 0..CLOSE_ATTEMPTS {
            if !node.is_open() {
                break;
            }
            std::thread::sleep(CLOSE_PAUSE);
        }
        // The kernel drops its inode when it has the reply.
        std::thread::sleep(CLOSE_PAUSE);
    }

    /// Returns the names under which the kernel may know a file whose write from its cache failed,
    /// as directories and entries. It must forget them, and with its last close the file.
    pub(crate) fn names_after_failure(&self, id: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        let names = || {
            let inode = self.node(id).ok()?.current(&self.fs()).ok()?;
            let tree = inode.tree();
            let names = inode.names().ok()?.into_iter();
            Some(names.map(|(parent, name)| (self.nodes.id(tree, parent), name)).collect())
        };
        names().unwrap_or_default()
    }

    /// Returns the names in a deleted subvolume of directories and open files, as directories and
    /// entries. The kernel must forget them: while it has a name in its cache, it keeps the inode
    /// after the last use, and with it the subvolume.
    ///
    /// A file that is opened afterwards, through a directory in use, stays until the kernel shrinks
    /// its caches.
    pub(crate) fn names_in_deleted(&self, tree: TreeId) -> Vec<(NodeId, Vec<u8>)> {
        let mut used = self.nodes.select(|node| {
            node.tree() == tree && (node.kind != FileKind::Regular || node.is_open() || self.opens_by_kernel)
        });
        if used.len() > MOST_NAMED {
            tracing::debug!("subvolume {tree} stays until the kernel forgets its {} inodes", used.len());
            used.truncate(MOST_NAMED);
        }
        used.into_iter().flat_map(|node| self.names_after_failure(node)).collect()
    }

    /// As [`Server::names_after_failure`], for a file that was closed. It has none unless it lost a
    /// write.
    pub(crate) fn names_after_close(&self, id: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        match self.node(id) {
            Ok(node) if self.lost.has(&node) => self.names_after_failure(id),
            _ => Vec::new(),
        }
    }

    /// Our own ioctl: returns a file that lost a write, once.
    pub(super) fn take_lost_write(&self, caller: Caller) -> IoctlReply {
        let mut reply = LostWrite::default();
        while let Some(((tree, number), lost)) = self.lost.take() {
            // A file that was removed meanwhile has nothing left to lose.
            let exists = self.fs().inode_at(tree, number).is_ok_and(|inode| {
                let metadata = inode.metadata();
                metadata.nlink() > 0 && Some(metadata.generation().get()) == lost.generation
            });
            if !exists {
                continue;
            }
            reply.error = lost.error.code() as u32;
            reply.inode = self.nodes.number(tree, number);
            // The way to the file may lead through directories that other callers may not search.
            if [0, rustix::process::geteuid().as_raw()].contains(&caller.known().uid)
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

    /// Returns words for an inode, for the log, with its path if that can be found.
    pub(crate) fn describe(&self, id: NodeId) -> String {
        let Ok(node) = self.node(id) else { return format!("node {}", id.0) };
        let (tree, number) = match node.place() {
            Place::Inode(tree, number) | Place::Stub(tree, number, _) => (tree, number),
        };
        let path = self.path_of(tree, number).filter(|path| !path.is_empty());
        let path = path.map_or_else(String::new, |path| format!(", {:?}", String::from_utf8_lossy(&path)));
        format!("inode {number} in subvolume {tree}{path}")
    }

    /// Returns the path of an inode from the top level.
    fn path_of(&self, tree: TreeId, number: InodeNumber) -> Option<Vec<u8>> {
        let mut path = self.fs().subvolume(tree).ok()?.path.unwrap_or_default();
        let mut names = Vec::new();
        let mut at = number;
        while at != objectid::FIRST_INODE {
            let (parent, name) = self.fs().inode_at(tree, at).ok()?.names().ok()?.into_iter().next()?;
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

/// Waits for the data between the end of a file and `offset`, which other threads are storing. A
/// hole there may also be meant, so it looks only so often, with a pause in between. Returns
/// whether the data came.
fn wait_for_order(file: &File, offset: u64, pause: Duration) -> bool {
    let came = || file.size().is_ok_and(|size| size >= offset);
    (0..ORDER_ATTEMPTS).any(|_| {
        came() || {
            std::thread::sleep(pause);
            false
        }
    }) || came()
}
