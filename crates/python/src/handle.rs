//! An open file system, shared by the Python objects that belong to it.
//!
//! Owns [`Handle`]: the library's handle, the objects to take back when it is closed, and the
//! attributes of new inodes.

use crate::slot::{Revoke, Slot};
use papilio::{FileSystem, NewInode, NewKind};
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::sync::{Arc, Weak};

/// Objects between two removals of those that are gone.
const PRUNE: usize = 64;

/// An open file system.
pub struct Handle {
    slot: Slot<FileSystem>,
    given: Mutex<Given>,
    /// Makes appends of this file system follow one another.
    pub appending: Mutex<()>,
    /// Path or description of the first device.
    pub name: String,
    /// Whether it is open for writing.
    pub write: bool,
    /// The owner of new inodes.
    pub owner: (u32, u32),
    /// Permission bits that new inodes lack.
    pub umask: u32,
}

/// The objects that were handed out.
struct Given {
    objects: Vec<Weak<dyn Revoke>>,
    /// The number of objects at which those that are gone are removed.
    limit: usize,
}

impl Handle {
    pub fn new(fs: FileSystem, name: String, write: bool, owner: (u32, u32), umask: u32) -> Self {
        Self {
            slot: Slot::new("file system", fs),
            given: Mutex::new(Given { objects: Vec::new(), limit: PRUNE }),
            appending: Mutex::new(()),
            name,
            write,
            owner,
            umask,
        }
    }

    /// Returns the file system.
    ///
    /// # Errors
    /// `ForkError` in a forked child; `ValueError` if it is closed.
    pub fn fs(&self) -> PyResult<Arc<FileSystem>> {
        self.slot.get()
    }

    /// Fails in a forked child.
    pub fn check_process(&self) -> PyResult<()> {
        self.slot.check_process()
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.slot.is_closed()
    }

    /// Wraps an object that is taken back when the file system is closed.
    pub fn give<T: Send + Sync + 'static>(&self, noun: &'static str, value: T) -> Arc<Slot<T>> {
        let slot = Arc::new(Slot::new(noun, value));
        let weak: Weak<Slot<T>> = Arc::downgrade(&slot);
        let mut given = self.given.lock();
        if given.objects.len() >= given.limit {
            given.objects.retain(|object| object.strong_count() > 0);
            given.limit = (2 * given.objects.len()).max(PRUNE);
        }
        given.objects.push(weak);
        slot
    }

    /// Takes back all objects, commits and closes. Closing twice does nothing.
    pub fn close(&self) -> papilio::Result<()> {
        let Some(fs) = self.slot.take() else { return Ok(()) };
        let objects = std::mem::take(&mut self.given.lock().objects);
        for object in objects.iter().filter_map(Weak::upgrade) {
            object.revoke();
        }
        FileSystem::clone(&fs).close()
    }

    /// Returns the attributes of a new inode.
    pub fn new_inode<'a>(&self, kind: NewKind<'a>, mode: u32) -> NewInode<'a> {
        NewInode::new(kind, mode & 0o7777).owner(self.owner.0, self.owner.1).umask(self.umask)
    }
}
