//! The bytes of a tree block, in memory that goes from block to block.
//!
//! Owns [`BlockBytes`] and the process's store of bytes that no block has just now. One thread makes a block and
//! another drops it, all the time; given back to an allocator that keeps an arena for each thread, what one thread
//! dropped is of no use to the next, and each arena grows to the most that its thread ever had. Invariant: the store
//! keeps [`KEPT`] bytes of each size at most. Locks: one for each size, for one move; a leaf.

use papilio_locks::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

/// Bytes that are kept of each size.
const KEPT: usize = 4 << 20;
/// The smallest size of a block, a shift, and how many there are: 4 to 64 KiB.
const FIRST: u32 = 12;
const SIZES: usize = 5;

/// Bytes of one size.
type Stored = Mutex<Vec<Box<[u8]>>>;

static STORE: LazyLock<[Stored; SIZES]> = LazyLock::new(|| std::array::from_fn(|_| Mutex::new(Vec::new())));

/// The bytes of one tree block.
pub(crate) struct BlockBytes(Box<[u8]>);

impl BlockBytes {
    /// So many zeros.
    pub(crate) fn zeroed(length: usize) -> Self {
        match take(length) {
            Some(mut bytes) => {
                bytes.fill(0);
                Self(bytes)
            }
            None => Self(vec![0; length].into_boxed_slice()),
        }
    }
}

/// Where bytes of this length are stored.
fn store(length: usize) -> Option<&'static Stored> {
    let size = length.checked_ilog2()?.checked_sub(FIRST)?;
    if length.is_power_of_two() { STORE.get(size as usize) } else { None }
}

fn take(length: usize) -> Option<Box<[u8]>> {
    store(length)?.lock().pop()
}

impl Clone for BlockBytes {
    fn clone(&self) -> Self {
        match take(self.len()) {
            Some(mut bytes) => {
                bytes.copy_from_slice(self);
                Self(bytes)
            }
            None => Self(self.0.clone()),
        }
    }
}

impl Drop for BlockBytes {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        let Some(store) = store(bytes.len()) else { return };
        let mut stored = store.lock();
        if stored.len() < KEPT / bytes.len() {
            stored.push(bytes);
        }
    }
}

impl Deref for BlockBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for BlockBytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for BlockBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size of its own, which no other test makes blocks of.
    const LENGTH: usize = 64 << 10;

    #[test]
    fn what_was_in_a_block_before_is_not_in_the_next() {
        let mut first = BlockBytes::zeroed(LENGTH);
        first.fill(7);
        let copy = first.clone();
        drop(first);
        let next = BlockBytes::zeroed(LENGTH);
        assert!(next.iter().all(|&byte| byte == 0) && copy.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        drop((0..200).map(|_| BlockBytes::zeroed(LENGTH)).collect::<Vec<_>>());
        assert!(store(LENGTH).unwrap().lock().len() <= KEPT / LENGTH);
        assert!([0, 2048, 5000, 128 << 10].iter().all(|&length| store(length).is_none()));
        assert_eq!(BlockBytes::zeroed(5000).len(), 5000);
    }
}
