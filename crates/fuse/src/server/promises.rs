//! Space that is kept for writes in the kernel's cache.
//!
//! Owns [`Promises`], and the answer to the kernel's question before it caches a write while room
//! is short ([`Server::before_cached_write`]). A write for which there is no space is refused there,
//! with ENOSPC or EDQUOT. One that is accepted has its space kept until its data comes.
//!
//! Invariant: a thread has one promise for a file at most. Its next write to the file comes after
//! the kernel has written back the one before.
//!
//! Lock: a leaf. Dropping a promise takes locks of the library, so it is dropped outside.

use super::pending_write::Pending;
use super::state::Server;
use crate::errno::Errno;
use crate::ioctl::Caller;
use crate::nodes::{Node, stale};
use crate::transport::NodeId;
use papilio::format::items::inode::InodeFlags;
use papilio::{ErrorKind, WritePromise};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// The bytes for which there must be space where the write is not known.
const GUESS: u64 = 128 << 10;
/// Bytes of a page of the kernel's cache.
const PAGE: u64 = 4096;

/// The space that is kept, by file and thread.
#[derive(Debug, Default)]
pub(super) struct Promises {
    files: Mutex<HashMap<NodeId, Vec<(u32, WritePromise)>>>,
}

impl Promises {
    /// Replaces the promise to a thread.
    fn set(&self, node: NodeId, thread: u32, promise: Option<WritePromise>) {
        let before = {
            let mut files = self.files.lock();
            let promises = files.entry(node).or_default();
            let before = promises.iter().position(|(other, _)| *other == thread);
            let before = before.map(|at| promises.swap_remove(at));
            promises.extend(promise.filter(|promise| !promise.is_empty()).map(|promise| (thread, promise)));
            if promises.is_empty() {
                files.remove(&node);
            }
            before
        };
        drop(before);
    }

    /// Takes what is promised to a write of `length` bytes at `offset` whose data has come.
    pub(super) fn take(&self, node: NodeId, offset: u64, length: usize) -> WritePromise {
        let wanted = (offset % PAGE + length as u64).next_multiple_of(PAGE);
        let mut files = self.files.lock();
        let Some(promises) = files.get_mut(&node) else { return WritePromise::default() };
        let mut taken = WritePromise::default();
        for (_, promise) in promises.iter_mut() {
            taken.merge(promise.split(wanted - taken.bytes()));
        }
        promises.retain(|(_, promise)| !promise.is_empty());
        if promises.is_empty() {
            files.remove(&node);
        }
        taken
    }

    /// Forgets the promises for a file, which no process writes any more.
    pub(super) fn forget(&self, node: NodeId) {
        let gone = self.files.lock().remove(&node);
        drop(gone);
    }
}

impl Server {
    /// Refuses a write that a caller is about to make to the kernel's cache: with the error of an
    /// earlier write that no caller has heard of, or because there is no space for it.
    pub(super) fn check_cached_write(&self, caller: Caller, id: NodeId) -> Result<(), Errno> {
        if !self.writeback_cache {
            return Ok(());
        }
        if self.room.is_short() {
            self.room.look(&self.fs);
        }
        let node = self.node(id)?;
        let failed = node.failed.load(Ordering::Acquire) != 0;
        if !failed && !self.room.is_short() {
            return Ok(());
        }
        let used = self.used(&node)?;
        let Ok(file) = used.file() else { return Ok(()) };
        let size = file.size().map_err(stale)?;
        let pending = Pending::of(caller, self.nodes.number_of_node(&node), size);
        if pending == Pending::Other {
            return Ok(());
        }
        match node.failed.swap(0, Ordering::AcqRel) {
            0 => {}
            error => {
                self.lost.was_told(&node);
                return Err(Errno(error));
            }
        }
        if !self.room.is_short() {
            return Ok(());
        }
        // What was promised to the thread's write before is written by now.
        self.promises.set(id, caller.pid, None);
        let promise = match pending {
            Pending::Write { offset, length } => file.promise_write(offset, length).map_err(stale)?,
            // The kernel asks for other reasons, too, and the write may need no space.
            _ if self.may_own_space(&node)? => return Ok(()),
            _ => match file.promise_write(None, GUESS) {
                Err(error) if error.kind() == ErrorKind::NoSpace => return Err(stale(error)),
                promise => promise.map_err(stale)?,
            },
        };
        self.promises.set(id, caller.pid, Some(promise));
        Ok(())
    }

    /// Returns whether a file may have space that it can write without taking more.
    fn may_own_space(&self, node: &Node) -> Result<bool, Errno> {
        let flags = node.current(&self.fs)?.metadata().flags();
        Ok(flags.intersects(InodeFlags::PREALLOC | InodeFlags::NODATACOW))
    }
}
