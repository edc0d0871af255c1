//! `Budget`: the memory that the requests of one client may hold.
//!
//! **Locks**: `free`, held for a few instructions, or to wait until a request returns its bytes.

use papilio_locks::{Condvar, Mutex};

/// A number of bytes that requests take and return.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Bytes.
    free: Mutex<u64>,
    returned: Condvar,
}

/// The bytes of one request, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self { free: Mutex::new(bytes), returned: Condvar::new() }
    }

    /// Takes `bytes`, which are at most the whole budget; waits until they are free.
    pub fn take(&self, bytes: u64) -> Share<'_> {
        let mut free = self.free.lock();
        while *free < bytes {
            self.returned.wait(&mut free);
        }
        *free -= bytes;
        Share { budget: self, bytes }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *self.budget.free.lock() += self.bytes;
        self.budget.returned.notify_all();
    }
}
