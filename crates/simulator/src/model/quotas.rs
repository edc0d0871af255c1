//! The state of quotas: whether they are on, and the limits of subvolumes.
//!
//! An operation that takes space may end with EDQUOT, but only where the subvolume that it changes
//! has a limit.

/// The quotas of a file system that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quotas {
    /// References of all extents are counted.
    Full,
    /// Each extent is charged to the subvolume that allocated it.
    Simple,
}

/// The limits of a subvolume's qgroup, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes that it may reference.
    pub referenced: Option<u64>,
    /// Most bytes that it alone may reference.
    pub exclusive: Option<u64>,
}
