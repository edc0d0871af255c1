//! The directories whose times are still to be sent.
//!
//! Owns [`DirectoryTimes`]. Each change of an entry alters the times of its directory at the
//! receiver, so they are sent once a directory has not been touched for a while. The order is that
//! of the kernel, which keeps 64 directories.
//!
//! Kernel counterpart: `cache_dir_utimes` (`fs/btrfs/send.c`).

use std::collections::{BTreeMap, HashMap};

/// Directories that are kept after each inode.
const KEPT: usize = 64;

/// The directories, in the order in which they were touched last.
#[derive(Debug, Default)]
pub(super) struct DirectoryTimes {
    /// Numbers of inodes by the time of their last touch.
    by_touch: BTreeMap<u64, u64>,
    touches: HashMap<u64, u64>,
    next: u64,
}

impl DirectoryTimes {
    /// Notes that an entry of a directory changed, or that its turn came.
    pub(super) fn touch(&mut self, number: u64) {
        if let Some(before) = self.touches.insert(number, self.next) {
            self.by_touch.remove(&before);
        }
        self.by_touch.insert(self.next, number);
        self.next += 1;
    }

    /// Whether the times of a directory are still to be sent.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.touches.contains_key(&number)
    }

    /// Takes the directory that was touched longest ago if there are more than are kept.
    pub(super) fn take_surplus(&mut self) -> Option<u64> {
        if self.touches.len() <= KEPT {
            return None;
        }
        let (_, number) = self.by_touch.pop_first()?;
        self.touches.remove(&number);
        Some(number)
    }

    /// Takes the directory that was touched last.
    pub(super) fn take_last(&mut self) -> Option<u64> {
        let (_, number) = self.by_touch.pop_last()?;
        self.touches.remove(&number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surplus_leaves_in_the_order_of_last_touches_and_the_rest_in_reverse() {
        let mut times = DirectoryTimes::default();
        (0..=KEPT as u64).for_each(|number| times.touch(number));
        times.touch(0);
        assert_eq!(times.take_surplus(), Some(1));
        assert_eq!(times.take_surplus(), None);
        assert!(times.contains(0) && !times.contains(1));
        let rest: Vec<u64> = std::iter::from_fn(|| times.take_last()).collect();
        assert_eq!(rest, [0].into_iter().chain((2..=KEPT as u64).rev()).collect::<Vec<_>>());
    }
}
