//! The geometry of a file system: sizes, checksum algorithm, features and identity.
//!
//! Owns [`Geometry`], which [`crate::superblock`] fills in, and the limit on tree levels.

use crate::checksum::ChecksumType;
use crate::features::{CompatRoFeatures, IncompatFeatures};
use crate::units::Generation;
use uuid::Uuid;

/// The number of levels a tree can have: 0 (leaf) to 7.
pub const MAX_LEVEL: u8 = 8;

/// The parameters of a file system that its block readers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes per tree block.
    pub node_size: u32,
    /// Bytes per data sector.
    pub sector_size: u32,
    /// Checksum algorithm.
    pub checksum_type: ChecksumType,
    /// Incompat feature bits.
    pub incompat: IncompatFeatures,
    /// Compat_ro feature bits.
    pub compat_ro: CompatRoFeatures,
    /// UUID in tree blocks.
    pub metadata_uuid: Uuid,
    /// The last committed transaction; a tree block is at most one generation newer.
    pub generation: Generation,
}
