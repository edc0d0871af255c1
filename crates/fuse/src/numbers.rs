//! The inode numbers that users of a mount see.
//!
//! The kernel's Btrfs gives each subvolume its own device number (`st_dev`), and inode numbers
//! repeat between subvolumes. A FUSE mount has one device number, so the inode number alone must
//! tell subvolumes apart: otherwise `cp`, `tar`, `find` and `rsync` take two files for one. It must
//! also be the same at each mount, for programs that remember it, such as `tar
//! --listed-incremental`. Therefore:
//!
//! - Inodes of the mounted subvolume keep their own numbers. Its root directory is 256, as in the
//!   kernel. Only the FUSE protocol calls the root of the file system node 1. If a server has
//!   several mounts, the mounted subvolume is that of the first.
//! - Inodes of another subvolume have the subvolume's id in the bits from 40 up and their own
//!   number below.
//! - The rest gets numbers from 2^63 up in order of appearance, distinct and stable while the mount
//!   lasts. The rest are subvolume ids of 2^23 and above, inode numbers of 2^40 and above, and the
//!   empty directories that represent subvolumes in snapshots and have no number.
//!
//! Owns [`InodeNumbers`].
//!
//! **Locks**
//! - The table's mutex, for a single look-up.

use papilio::format::{InodeNumber, TreeId};
use papilio_ioctl::shown_number::{NUMBER_BITS, OTHERS, place_of_shown, shown_number};
use papilio_locks::Mutex;
use std::collections::HashMap;

/// The identity of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// An inode of a subvolume.
    Inode(TreeId, InodeNumber),
    /// The empty directory that represents a subvolume in a snapshot, by its directory and name.
    Stub(TreeId, InodeNumber, Box<[u8]>),
}

/// The mapping between inodes and their numbers.
#[derive(Debug)]
pub(crate) struct InodeNumbers {
    /// The mounted subvolume.
    mounted: TreeId,
    others: Mutex<Others>,
}

#[derive(Debug, Default)]
struct Others {
    by_place: HashMap<Place, u64>,
    by_number: Vec<Place>,
}

impl InodeNumbers {
    /// Creates the mapping for a mount of the subvolume `mounted`.
    pub(crate) fn new(mounted: TreeId) -> Self {
        Self { mounted, others: Mutex::default() }
    }

    /// Returns the number of an inode; allocates one if necessary.
    pub(crate) fn number(&self, place: &Place) -> u64 {
        if let Place::Inode(tree, number) = *place {
            if tree == self.mounted && number.0 < 1 << NUMBER_BITS {
                return number.0;
            }
            if let Some(shown) = shown_number(tree, number).filter(|_| tree != self.mounted) {
                return shown;
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

    /// Returns the inode with this number, whether or not it exists.
    pub(crate) fn place(&self, number: u64) -> Option<Place> {
        if number >= OTHERS {
            let others = self.others.lock();
            return others.by_number.get(usize::try_from(number - OTHERS).ok()?).cloned();
        }
        let (tree, own) = place_of_shown(number)?;
        let tree = if tree == 0 { self.mounted } else { TreeId(tree) };
        Some(Place::Inode(tree, InodeNumber(own)))
    }
}

/// Returns the own number of an inode of `tree` that callers know by the number which a mount
/// shows. `None` for any other number, such as one that is its own already.
pub(crate) fn own_number(tree: TreeId, shown: u64) -> Option<u64> {
    place_of_shown(shown).filter(|(of, _)| *of == tree.0 && *of != 0).map(|(_, own)| own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_a_mount_shows_lead_to_own_ones() {
        let numbers = InodeNumbers::new(TreeId(5));
        let shown = numbers.number(&Place::Inode(TreeId(300), InodeNumber(257)));
        assert_eq!(own_number(TreeId(300), shown), Some(257));
        assert_eq!(own_number(TreeId(301), shown), None);
        assert_eq!(own_number(TreeId(300), 257), None);
        assert_eq!(place_of_shown(shown), Some((300, 257)));
        assert_eq!(place_of_shown(257), Some((0, 257)));
        assert_eq!(place_of_shown(OTHERS), None);
        // The orphan items of a tree.
        assert_eq!(own_number(TreeId((1 << 24) - 1), -5_i64 as u64), None);
    }

    #[test]
    fn numbers_are_distinct_and_round_trip() {
        let numbers = InodeNumbers::new(TreeId(256));
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
