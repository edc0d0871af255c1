//! The weights of files and directories.
//!
//! Owns [`Entry`], the tree of directories, and [`Tally`], which knows how many bytes a weight
//! stands for.

use std::collections::BTreeMap;

/// The half width of the interval that holds the true value in 95 of 100 cases, in standard
/// deviations.
const DEVIATIONS: f64 = 1.96;

/// A file or directory.
#[derive(Debug, Default)]
pub struct Entry {
    /// Samples, or bytes if every extent is looked up, in it and below it.
    pub weight: u64,
    /// Its entries.
    pub below: BTreeMap<Vec<u8>, Entry>,
}

impl Entry {
    fn add(&mut self, path: &[u8], weight: u64) {
        self.weight += weight;
        let mut at = self;
        for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            at = at.below.entry(part.to_vec()).or_default();
            at.weight += weight;
        }
    }

    /// Returns the entry at a path below.
    pub fn at<'e>(&'e self, path: &[Vec<u8>]) -> Option<&'e Self> {
        path.iter().try_fold(self, |entry, name| entry.below.get(name))
    }
}

/// The weights that were found.
#[derive(Debug, Default)]
pub struct Tally {
    /// The top directory.
    pub root: Entry,
    /// Parts of extents that no file uses any more.
    pub unreachable: u64,
    /// The sum of all weights.
    pub all: u64,
    /// Used bytes of data.
    pub data: u64,
    /// Used bytes of tree blocks.
    pub metadata: u64,
    /// Whether weights are bytes.
    pub exact: bool,
}

impl Tally {
    /// Adds the weight of a path, or of no file at all.
    pub fn add(&mut self, path: Option<&[u8]>, weight: u64) {
        self.all += weight;
        match path {
            Some(path) => self.root.add(path, weight),
            None => self.unreachable += weight,
        }
    }

    /// Returns the part of all that a weight is, from 0 to 1.
    pub fn share(&self, weight: u64) -> f64 {
        weight as f64 / self.all.max(1) as f64
    }

    /// Returns the bytes that a weight stands for, and the bytes by which they may be wrong.
    pub fn bytes(&self, weight: u64) -> (u64, u64) {
        if self.exact {
            return (weight, 0);
        }
        let (all, share) = (self.all.max(1) as f64, self.share(weight));
        // One sample more and less, so that a share of 0 or 1 is not called certain.
        let spread = (share * (1.0 - share) / all).sqrt() * DEVIATIONS + 1.0 / all;
        let data = self.data as f64;
        ((share * data).round() as u64, (spread * data).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_the_root() {
        let mut tally = Tally { data: 6000, ..Tally::default() };
        tally.add(Some(b"/a/b"), 3);
        tally.add(Some(b"/a/c"), 2);
        tally.add(Some(b"/d"), 1);
        assert_eq!(tally.root.weight, 6);
        assert_eq!(tally.root.below[&b"a"[..]].weight, 5);
        let (bytes, error) = tally.bytes(3);
        assert_eq!(bytes, 3000);
        assert!((3000..4500).contains(&error), "{error}");
        tally.add(None, 6);
        assert_eq!(tally.bytes(6).0, 3000);
        assert_eq!(tally.root.at(&[b"a".to_vec(), b"c".to_vec()]).unwrap().weight, 2);
        assert!(tally.root.at(&[b"c".to_vec()]).is_none());
    }
}
