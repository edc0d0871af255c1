//! Space that is kept for writes in the kernel's cache.
//!
//! Owns [`Promises`]. A write that the server admits while room is short has its space kept until
//! its data comes ([`super::cached_writes`]).
//!
//! Invariant: a thread has one promise for a file at most. Its next write to the file comes after
//! the kernel has written back the one before.
//!
//! Lock: a leaf. Dropping a promise takes locks of the library, so it is dropped outside.

use crate::transport::NodeId;
use papilio::WritePromise;
use papilio_locks::Mutex;
use std::collections::HashMap;

/// Bytes of a page of the kernel's cache.
const PAGE: u64 = 4096;
/// Files that may have promises at once. Each keeps far more metadata than its write takes.
const MOST: usize = 64;

/// The space that is kept, by file and thread.
#[derive(Debug, Default)]
pub(super) struct Promises {
    files: Mutex<HashMap<NodeId, Vec<(u32, WritePromise)>>>,
}

impl Promises {
    /// Replaces the promise to a thread.
    pub(super) fn set(&self, node: NodeId, thread: u32, promise: Option<WritePromise>) {
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

    /// Returns the files with promises if they are many. Once the kernel has written them back, a
    /// flush returns what they do not need.
    pub(super) fn too_many(&self) -> Vec<NodeId> {
        let files = self.files.lock();
        if files.len() < MOST { Vec::new() } else { files.keys().copied().collect() }
    }

    /// Forgets the promises for a file, which no process writes any more.
    pub(super) fn forget(&self, node: NodeId) {
        let gone = self.files.lock().remove(&node);
        drop(gone);
    }
}
