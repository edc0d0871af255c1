//! The inode numbers that users of a mount see.
//!
//! The kernel's Btrfs gives each subvolume a device number (`st_dev`) of its own, and inode numbers repeat
//! from one to the next. A FUSE mount has one device number, so here the inode number itself must tell
//! subvolumes apart, or `cp`, `tar`, `find` and `rsync` would take two files for one. It must also be the
//! same at each mount, for `tar --listed-incremental` and others that remember it. So:
//!
//! - inodes of the mounted subvolume keep their own numbers (its root directory is 256, as in the kernel;
//!   only towards the kernel's FUSE it is node 1, as FUSE asks);
//! - inodes of another subvolume have the subvolume's id in the bits above 40 and their own number below;
//! - what does not fit (an id of 2^23 or more, a number of 2^40 or more) and the empty directories that stand for
//!   subvolumes in snapshots, which have no number, get numbers from 2^63 on in the order of their
//!   appearance: distinct, and stable as long as the mount lasts.
//!
//! Owns [`InodeNumbers`]. Locks: its table's, for one look-up.

use papilio::format::{InodeNumber, TreeId};
use papilio_locks::Mutex;
use std::collections::HashMap;

/// Bits of an inode's own number.
const NUMBER_BITS: u32 = 40;
/// Ids of subvolumes from here on do not fit above them.
const TREE_LIMIT: u64 = 1 << (63 - NUMBER_BITS);
/// Where the numbers begin that are given out one after the other.
const OTHERS: u64 = 1 << 63;

/// Where an inode lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// An inode of a subvolume.
    Inode(TreeId, InodeNumber),
    /// The empty directory that a snapshot shows for a subvolume: by its directory and name.
    Stub(TreeId, InodeNumber, Box<[u8]>),
}

/// Which number is whose.
#[derive(Debug)]
pub(crate) struct InodeNumbers {
    root: (TreeId, InodeNumber),
    others: Mutex<Others>,
}

#[derive(Debug, Default)]
struct Others {
    by_place: HashMap<Place, u64>,
    by_number: Vec<Place>,
}

impl InodeNumbers {
    /// Of a mount that shows the directory `root` as its root.
    pub(crate) fn new(root: (TreeId, InodeNumber)) -> Self {
        Self { root, others: Mutex::default() }
    }

    /// The number of an inode.
    pub(crate) fn number(&self, place: &Place) -> u64 {
        if let Place::Inode(tree, number) = *place
            && number.0 < 1 << NUMBER_BITS
        {
            if tree == self.root.0 {
                return number.0;
            }
            if tree.0 < TREE_LIMIT {
                return tree.0 << NUMBER_BITS | number.0;
            }
        }
        let mut others = self.others.lock();
        if let Some(number) = others.by_place.get(place) {
            return *number;
        }
        let number = OTHERS + others.by_number.len() as u64;
        others.by_number.push(place.clone());
        others.by_place.insert(place.clone(), number);
        number
    }

    /// The inode that has a number, whether or not it is there.
    pub(crate) fn place(&self, number: u64) -> Option<Place> {
        if number >= OTHERS {
            let others = self.others.lock();
            return others.by_number.get(usize::try_from(number - OTHERS).ok()?).cloned();
        }
        let (tree, own) = (number >> NUMBER_BITS, number & ((1 << NUMBER_BITS) - 1));
        let tree = if tree == 0 { self.root.0 } else { TreeId(tree) };
        Some(Place::Inode(tree, InodeNumber(own)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_lead_back() {
        let numbers = InodeNumbers::new((TreeId(256), InodeNumber(256)));
        let inode = |tree, number| Place::Inode(TreeId(tree), InodeNumber(number));
        let stub = |name: &[u8]| Place::Stub(TreeId(300), InodeNumber(256), name.into());
        let places = [
            inode(256, 256),
            inode(256, 257),
            inode(5, 256),
            inode(5, 257),
            inode(300, 257),
            inode(300, (1 << 40) - 1),
            inode(256, 1 << 40),
            inode(300, 1 << 40),
            inode(1 << 23, 257),
            inode(u64::MAX - 256, u64::MAX - 256),
            stub(b"a"),
            stub(b"b"),
        ];
        let all: std::collections::HashSet<u64> = places.iter().map(|place| numbers.number(place)).collect();
        assert_eq!(all.len(), places.len());
        for place in &places {
            assert_eq!(numbers.place(numbers.number(place)).as_ref(), Some(place));
        }
        assert_eq!(numbers.number(&inode(256, 257)), 257);
        assert_eq!(numbers.number(&inode(5, 257)), 5 << 40 | 257);
        assert_eq!(numbers.place(u64::MAX), None);
    }
}
