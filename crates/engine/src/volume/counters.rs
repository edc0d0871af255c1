//! The error counters of the devices, and the addresses where a copy was found bad.
//!
//! Owns [`ErrorCounters`] and [`BadCopies`]. The counters are loaded from the device tree and saved
//! by each commit. The addresses wait for a thread that holds no lock and verifies all copies.
//!
//! **Invariants**
//! - The counters are those on disk and everything counted since.
//! - At most [`MOST`] addresses wait. A scrub finds the others.
//!
//! **Locks**: leaves.
//!
//! Kernel counterparts: `btrfs_dev_stat_inc`, `btrfs_run_dev_stats` (`fs/btrfs/volumes.c`).

use papilio_format::items::device::DeviceStat;
use papilio_format::{DeviceId, LogicalAddress};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most addresses that wait.
const MOST: usize = 4096;

/// The counters of one device, in the order of [`DeviceStat::ALL`].
pub(crate) type DeviceCounts = [u64; DeviceStat::ALL.len()];

/// The error counters of all devices.
#[derive(Debug, Default)]
pub struct ErrorCounters {
    counts: Mutex<BTreeMap<DeviceId, DeviceCounts>>,
    changed: AtomicBool,
}

impl ErrorCounters {
    /// Adds the counters of the device tree.
    pub(crate) fn load(&self, devid: DeviceId, values: impl Iterator<Item = u64>) {
        let mut counts = self.counts.lock();
        for (count, value) in counts.entry(devid).or_default().iter_mut().zip(values) {
            *count = count.saturating_add(value);
        }
    }

    /// Counts errors of a device.
    pub(crate) fn add(&self, devid: DeviceId, stat: DeviceStat, errors: u64) {
        if errors > 0 {
            let mut counts = self.counts.lock();
            let count = &mut counts.entry(devid).or_default()[stat as usize];
            *count = count.saturating_add(errors);
            self.changed.store(true, Ordering::Release);
        }
    }

    /// Returns the counters of a device.
    pub fn get(&self, devid: DeviceId) -> DeviceCounts {
        self.counts.lock().get(&devid).copied().unwrap_or_default()
    }

    /// Sets the counters of a device to zero, and returns them.
    pub fn reset(&self, devid: DeviceId) -> DeviceCounts {
        self.changed.store(true, Ordering::Release);
        self.counts.lock().insert(devid, DeviceCounts::default()).unwrap_or_default()
    }

    /// Returns whether a commit has counters to save.
    pub(crate) fn are_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// Returns the counters to save, and counts them as saved.
    pub(crate) fn take_changed(&self) -> Vec<(DeviceId, DeviceCounts)> {
        if !self.changed.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        self.counts.lock().iter().map(|(devid, counts)| (*devid, *counts)).collect()
    }
}

/// The addresses where a copy was bad.
#[derive(Debug, Default)]
pub(crate) struct BadCopies {
    addresses: Mutex<BTreeSet<LogicalAddress>>,
    any: AtomicBool,
}

impl BadCopies {
    /// Notes that a copy of the bytes at `logical` is bad.
    pub(crate) fn note(&self, logical: LogicalAddress) {
        let mut addresses = self.addresses.lock();
        if addresses.len() < MOST {
            addresses.insert(logical);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Returns the addresses, and forgets them.
    pub(crate) fn take(&self) -> BTreeSet<LogicalAddress> {
        if !self.any.swap(false, Ordering::AcqRel) {
            return BTreeSet::new();
        }
        std::mem::take(&mut *self.addresses.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_saved_once_for_each_change() {
        let (counters, devid) = (ErrorCounters::default(), DeviceId(3));
        counters.load(devid, [1, 2].into_iter());
        assert!(counters.take_changed().is_empty(), "those on disk need no saving");
        counters.add(devid, DeviceStat::ALL[1], 0);
        assert!(!counters.are_changed());
        counters.add(devid, DeviceStat::ALL[1], 5);
        let mut expected = DeviceCounts::default();
        expected[..2].copy_from_slice(&[1, 7]);
        assert_eq!(counters.take_changed(), [(devid, expected)]);
        assert!(counters.take_changed().is_empty());
        assert_eq!(counters.reset(devid), expected);
        assert_eq!(counters.take_changed(), [(devid, DeviceCounts::default())]);
    }

    #[test]
    fn a_limited_number_of_bad_copies_waits() {
        let bad = BadCopies::default();
        for address in 0..MOST as u64 + 5 {
            bad.note(LogicalAddress(address));
        }
        assert_eq!(bad.take().len(), MOST);
        assert!(bad.take().is_empty());
    }
}
