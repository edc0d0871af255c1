//! Bounds that keep a description from asking for more memory or time than any real one needs.

/// The most memory of the derivation, in KiB.
pub(crate) const MOST_MEMORY: u32 = 4 << 20;
/// The most passes of the derivation.
pub(crate) const MOST_PASSES: u32 = 1000;
/// The most lanes of the derivation.
pub(crate) const MOST_LANES: u32 = 64;
