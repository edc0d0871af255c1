//! The inode numbers by which a mount of Papilio shows inodes of other subvolumes than the mounted
//! one: the subvolume's id in the bits from [`NUMBER_BITS`] up, and the inode's own number below.
//!
//! docs/mount.md, "Inode numbers", has the rules. A server hands out numbers from [`OTHERS`] up for
//! inodes that do not fit, and only it knows those.

use papilio_format::{InodeNumber, TreeId};

/// Number of bits of an inode's own number.
pub const NUMBER_BITS: u32 = 40;
/// The first of the numbers that a server hands out in order of appearance.
pub const OTHERS: u64 = 1 << 63;
/// The first subvolume id that does not fit above the bits of the number.
const TREE_LIMIT: u64 = 1 << (63 - NUMBER_BITS);

/// Returns the number of an inode of another subvolume; `None` if it does not fit.
pub fn shown_number(tree: TreeId, inode: InodeNumber) -> Option<u64> {
    let fits = inode.0 < 1 << NUMBER_BITS && tree.0 < TREE_LIMIT;
    fits.then_some(tree.0 << NUMBER_BITS | inode.0)
}

/// Returns the subvolume, 0 for the mounted one, and the own number of an inode that a mount shows
/// by `shown`. `None` for numbers that only the server of the mount knows.
pub fn place_of_shown(shown: u64) -> Option<(u64, u64)> {
    (shown < OTHERS).then_some((shown >> NUMBER_BITS, shown & ((1 << NUMBER_BITS) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        let shown = shown_number(TreeId(300), InodeNumber(257)).unwrap();
        assert_eq!(place_of_shown(shown), Some((300, 257)));
        assert_eq!(place_of_shown(257), Some((0, 257)));
        assert_eq!(place_of_shown(OTHERS), None);
        assert_eq!(shown_number(TreeId(300), InodeNumber(1 << 40)), None);
        assert_eq!(shown_number(TreeId(1 << 23), InodeNumber(257)), None);
    }
}
