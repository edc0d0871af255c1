//! The weights of files and directories.
//!
//! Owns [`Entry`], the tree of directories, and [`Tally`], which knows how many bytes a weight
//! stands for.

use super::resolver::Found;
use std::collections::BTreeMap;

/// Most directories on the way to a file. Files below count for the last of them, so that nothing
/// that walks a tree goes deeper either.
pub const DEEPEST: usize = 256;
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
        for part in parts(path) {
            at = at.below.entry(part.to_vec()).or_default();
            at.weight += weight;
        }
    }

    /// Sets the weight of the entry at a path below, which it makes if it is not there.
    fn set(&mut self, path: &[u8], weight: u64) {
        let at = parts(path).fold(self, |at, part| at.below.entry(part.to_vec()).or_default());
        at.weight = weight;
    }

    /// Returns the entry at a path below.
    pub fn at<'e>(&'e self, path: &[Vec<u8>]) -> Option<&'e Self> {
        path.iter().try_fold(self, |entry, name| entry.below.get(name))
    }
}

/// Returns the names in a path, at most [`DEEPEST`].
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).take(DEEPEST)
}

/// The weights that were found.
#[derive(Debug, Default)]
pub struct Tally {
    /// The top directory.
    pub root: Entry,
    /// Parts of extents that no file uses any more.
    pub unreachable: u64,
    /// Data of files that cannot be read.
    pub unread: u64,
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
    /// Adds a weight of what was found.
    pub fn count(&mut self, found: &Found, weight: u64) {
        match found {
            Found::NoData => {}
            Found::Unreachable => self.add(None, weight),
            Found::Path(path) => self.add(Some(path), weight),
            Found::Unread => {
                self.all += weight;
                self.unread += weight;
            }
        }
    }

    /// Adds the weight of a path, or of no file at all.
    pub fn add(&mut self, path: Option<&[u8]>, weight: u64) {
        self.all += weight;
        match path {
            Some(path) => self.root.add(path, weight),
            None => self.unreachable += weight,
        }
    }

    /// Sets the weight of a path, with everything below it. The caller sets those of all paths.
    pub fn set(&mut self, path: &[u8], weight: u64) {
        self.root.set(path, weight);
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
        // Files that lie deeper count for a directory above.
        tally.add(Some(&b"/x".repeat(DEEPEST + 1000)), 1);
        assert!(tally.root.at(&vec![b"x".to_vec(); DEEPEST]).unwrap().below.is_empty());
        tally.set(b"/a/c", 7);
        assert_eq!(
            (tally.root.at(&[b"a".to_vec(), b"c".to_vec()]).unwrap().weight, tally.root.weight),
            (7, 7)
        );
    }
}
