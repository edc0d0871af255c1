//! Locks on the rows of chunks with parity.
//!
//! Owns [`RowLocks`]: a fixed number of locks to which rows are hashed, so that they need no memory
//! per row.
//! - A writer holds the row's lock exclusively, from reading the bytes that it does not write until
//!   data and parity are written.
//! - A rebuild holds it shared, and so never combines data and parity of different times.
//! - Direct reads take no lock.
//!
//! **Locks**: the locks of a batch are acquired together, in ascending order of their index. They
//! are held across device I/O. Only leaves are acquired under them: error counters, and the
//! snapshots where a device is lost.
//!
//! Kernel counterpart: `lock_stripe_add` and `struct btrfs_stripe_hash_table`
//! (`fs/btrfs/raid56.c`).

use super::chunk_map::Chunk;
use papilio_locks::{RwLock, RwLockReadGuard, RwLockWriteGuard, in_order, might_write};

const LOCKS: usize = 256;

/// The locks of all rows of a volume.
#[derive(Debug)]
pub(super) struct RowLocks {
    locks: Box<[RwLock<()>]>,
}

impl Default for RowLocks {
    fn default() -> Self {
        Self { locks: (0..LOCKS).map(|_| RwLock::new(())).collect() }
    }
}

impl RowLocks {
    fn place(chunk: &Chunk, row: u64) -> usize {
        // Adjacent rows map to different locks, and chunks start at different ones.
        let start = (chunk.start().0 >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (start.wrapping_add(row) % LOCKS as u64) as usize
    }

    /// Locks a row for rebuilding from it.
    pub(super) fn share(&self, chunk: &Chunk, row: u64) -> RwLockReadGuard<'_, ()> {
        self.locks[Self::place(chunk, row)].read()
    }

    /// Locks rows for writing. The caller holds no other lock of this table.
    pub(super) fn hold<'c>(
        &self,
        rows: impl Iterator<Item = (&'c Chunk, u64)>,
    ) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut wanted = [false; LOCKS];
        for (chunk, row) in rows {
            wanted[Self::place(chunk, row)] = true;
        }
        let wanted = self.locks.iter().zip(wanted).filter_map(|(lock, wanted)| wanted.then_some(lock));
        if let Some(first) = wanted.clone().next() {
            might_write(first);
        }
        let _order = in_order("row locks, in ascending order");
        wanted.map(|lock| lock.write()).collect()
    }
}
