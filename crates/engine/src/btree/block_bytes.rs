//! The bytes of a tree block, in buffers that blocks reuse.
//!
//! Owns [`BlockBytes`] and the process-wide store of free buffers. One thread typically creates a
//! block and another drops it. With a per-thread arena allocator, memory freed by one thread is
//! unavailable to the other, and each arena grows to its thread's peak.
//!
//! **Invariant**: the store keeps at most [`KEPT`] bytes of each size.
//!
//! **Locks**: one per size, held for one push or pop; a leaf.

use papilio_locks::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

/// Most bytes kept of each size.
const KEPT: usize = 4 << 20;
/// log2 of the smallest block size, and the number of sizes: 4 to 64 KiB.
const FIRST: u32 = 12;
const SIZES: usize = 5;

/// Free buffers of one size.
type Stored = Mutex<Vec<Box<[u8]>>>;

static STORE: LazyLock<[Stored; SIZES]> = LazyLock::new(|| std::array::from_fn(|_| Mutex::new(Vec::new())));

/// The bytes of one tree block.
pub(crate) struct BlockBytes(Box<[u8]>);

impl BlockBytes {
    /// Returns a buffer of `length` zeros.
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

/// Returns the store for this length.
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

    /// A size that no other test uses for blocks.
    const LENGTH: usize = 64 << 10;

    #[test]
    fn reused_buffers_are_overwritten() {
        let mut first = BlockBytes::zeroed(LENGTH);
        first.fill(7);
        let copy = first.clone();
        drop(first);
        let next = BlockBytes::zeroed(LENGTH);
        assert!(next.iter().all(|&byte| byte == 0) && copy.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn store_size_is_bounded() {
        drop((0..200).map(|_| BlockBytes::zeroed(LENGTH)).collect::<Vec<_>>());
        assert!(store(LENGTH).unwrap().lock().len() <= KEPT / LENGTH);
        assert!([0, 2048, 5000, 128 << 10].iter().all(|&length| store(length).is_none()));
        assert_eq!(BlockBytes::zeroed(5000).len(), 5000);
    }
}
