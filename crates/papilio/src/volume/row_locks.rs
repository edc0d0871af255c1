//! Locks on the rows of chunks with parity.
//!
//! Owns [`RowLocks`]: a fixed number of locks over which rows are spread by a hash, so that they cost
//! no memory for each row. A writer of a row holds its lock alone, from reading what it does not
//! write itself until data and parity are written; who rebuilds from parity shares it, and so never
//! sees data of one time and parity of another. Direct reads take no lock.
//!
//! Lock order: those of a batch are taken together, in ascending order of their place in the table.
//! They are the innermost locks of the volume: held over calls of devices, and no other is taken
//! under them. Kernel counterpart: `lock_stripe_add` and `struct btrfs_stripe_hash_table`
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
        // Neighbouring rows get different locks; chunks start at different places.
        let start = (chunk.start().0 >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (start.wrapping_add(row) % LOCKS as u64) as usize
    }

    /// For rebuilding from a row.
    pub(super) fn share(&self, chunk: &Chunk, row: u64) -> RwLockReadGuard<'_, ()> {
        self.locks[Self::place(chunk, row)].read()
    }

    /// For writing to rows. The caller holds no other lock of this table.
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
        let _order = in_order("locks of rows, as they lie");
        wanted.map(|lock| lock.write()).collect()
    }
}
