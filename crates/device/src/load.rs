//! The number of requests under way at a device.
//!
//! Owns [`Load`] and [`Busy`]. A volume chooses among mirrors by it. **Locks**: none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the requests under way at one device. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Load(Arc<AtomicUsize>);

/// A request under way. Dropping it ends it; a clone is another one.
#[derive(Debug)]
pub struct Busy(Arc<AtomicUsize>);

impl Load {
    /// Counts a request, until the result is dropped.
    #[inline]
    pub fn begin(&self) -> Busy {
        self.0.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(&self.0))
    }

    /// Returns the number of requests under way.
    #[inline]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for Busy {
    fn clone(&self) -> Self {
        Load(Arc::clone(&self.0)).begin()
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_until_they_end() {
        let load = Load::default();
        let (first, same) = (load.begin(), load.clone());
        let second = first.clone();
        assert_eq!((load.get(), same.get()), (2, 2));
        drop(first);
        assert_eq!(same.get(), 1);
        drop(second);
        assert_eq!(load.get(), 0);
    }
}
