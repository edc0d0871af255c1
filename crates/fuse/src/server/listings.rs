//! The table of open directories.
//!
//! Owns [`Listings`].
//!
//! **Locks**
//! - The table's mutex, for a single look-up.

use crate::transport::DirectoryHandle;
use papilio_ioctl::Errno;
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The open directories.
#[derive(Debug, Default)]
pub(super) struct Listings {
    next: AtomicU64,
    /// Index of the last entry that each listing shows.
    open: Mutex<HashMap<DirectoryHandle, Arc<AtomicU64>>>,
}

impl Listings {
    pub(super) fn open(&self, last: u64) -> DirectoryHandle {
        let handle = DirectoryHandle(self.next.fetch_add(1, Ordering::Relaxed));
        self.open.lock().insert(handle, Arc::new(AtomicU64::new(last)));
        handle
    }

    pub(super) fn get(&self, handle: DirectoryHandle) -> Result<Arc<AtomicU64>, Errno> {
        self.open.lock().get(&handle).cloned().ok_or(Errno(libc::EBADF))
    }

    pub(super) fn close(&self, handle: DirectoryHandle) {
        self.open.lock().remove(&handle);
    }
}
