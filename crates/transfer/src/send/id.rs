//! The identity of an inode at the receiver.

use papilio_format::objectid;

/// An inode at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) number: u64,
    /// Whether this is an inode of the parent that the new tree lacks; its number may be in use
    /// again.
    pub(super) doomed: bool,
}

impl Id {
    pub(super) const ROOT: Self = Self::lasting(objectid::FIRST_INODE.0);

    pub(super) const fn lasting(number: u64) -> Self {
        Self { number, doomed: false }
    }
}
