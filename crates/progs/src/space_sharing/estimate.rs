//! Bytes, and how far off they may be.
//!
//! Owns [`Estimate`] and [`Sum`]. A sample tells which share of the data a set of subvolumes holds;
//! the block groups tell how much data there is. The error is that of the jackknife: each group of
//! inodes is left out once, and the answers without it are compared.

use super::shares::{GROUPS, Share, SharedBytes};

/// Bytes, counted or estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// The bytes. Those of tree blocks are always counted.
    pub bytes: SharedBytes,
    /// The true bytes of data differ by no more than so many in 95 of 100 samples; 0 if they were
    /// counted. A single file that holds most of the data can make that too small.
    pub data_error: u64,
}

/// A sum of shares.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    bytes: SharedBytes,
    groups: [u64; GROUPS],
}

impl Default for Sum {
    fn default() -> Self {
        Self { bytes: SharedBytes::default(), groups: [0; GROUPS] }
    }
}

impl Sum {
    pub(super) fn add(&mut self, share: &Share) {
        self.bytes += share.bytes;
        if let Some(groups) = &share.groups {
            for (sum, bytes) in self.groups.iter_mut().zip(groups.iter()) {
                *sum = sum.saturating_add(*bytes);
            }
        }
    }

    /// Returns what the sum stands for, if `whole` was found in a sample of `sampled_from` bytes.
    pub(super) fn estimate(&self, whole: &Self, sampled_from: Option<u64>) -> Estimate {
        let Some(data_in_use) = sampled_from else {
            return Estimate { bytes: self.bytes, data_error: 0 };
        };
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let found = share(self.bytes.data, whole.bytes.data);
        let without: Vec<f64> = (0..GROUPS)
            .map(|group| share(self.bytes.data - self.groups[group], whole.bytes.data - whole.groups[group]))
            .collect();
        let mean = without.iter().sum::<f64>() / GROUPS as f64;
        let spread: f64 = without.iter().map(|share| (share - mean).powi(2)).sum();
        let variance = spread * (GROUPS - 1) as f64 / GROUPS as f64;
        let bytes = |share: f64| (share * data_in_use as f64).min(data_in_use as f64) as u64;
        let copies = share(self.bytes.raw_data, self.bytes.data);
        let data = bytes(found);
        Estimate {
            bytes: SharedBytes { data, raw_data: (data as f64 * copies) as u64, ..self.bytes },
            data_error: bytes(2.0 * variance.sqrt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(groups: [u64; GROUPS]) -> Sum {
        let data = groups.iter().sum();
        Sum { bytes: SharedBytes { data, raw_data: 2 * data, ..SharedBytes::default() }, groups }
    }

    #[test]
    fn equal_groups_have_no_error_and_unequal_ones_have() {
        let whole = sum([100; GROUPS]);
        let part = sum([25; GROUPS]).estimate(&whole, Some(1 << 20));
        assert_eq!((part.bytes.data, part.bytes.raw_data, part.data_error), (1 << 18, 1 << 19, 0));
        let mut groups = [0; GROUPS];
        groups[3] = 100;
        let one = sum(groups).estimate(&whole, Some(1 << 20));
        assert_eq!(one.bytes.data, (1 << 20) / GROUPS as u64);
        assert!(one.data_error > one.bytes.data, "{one:?}");
        let counted = sum(groups).estimate(&whole, None);
        assert_eq!((counted.bytes.data, counted.data_error), (100, 0));
        assert_eq!(Sum::default().estimate(&Sum::default(), Some(9)).bytes.data, 0);
    }
}
