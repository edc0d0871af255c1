//! The exit codes of `btrfs scrub` beside 0 and 1.

/// Nothing is there to resume or to cancel.
pub const NOTHING: u8 = 2;
/// Errors are left that cannot be corrected.
pub const UNCORRECTABLE: u8 = 3;
