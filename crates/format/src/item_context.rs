//! The input of an item's validator.
//!
//! Owns [`ItemContext`], which [`crate::tree_check`] builds for each item of a leaf.

use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::key::Key;
use crate::units::{Generation, TreeId};

/// The input of an item's validator.
#[derive(Clone, Copy)]
pub(crate) struct ItemContext<'a> {
    /// The item's key.
    pub key: Key,
    /// The item's bytes.
    pub data: &'a [u8],
    /// Key and bytes of the item before it in the same leaf.
    pub previous: Option<(Key, &'a [u8])>,
    /// The tree that allocated the leaf.
    pub owner: TreeId,
    /// The file system's parameters.
    pub geometry: &'a Geometry,
}

impl ItemContext<'_> {
    /// Refuses a generation more than one ahead of the last commit. A log tree may be one ahead.
    pub fn check_generation(
        &self,
        what: &'static str,
        field: &'static str,
        generation: Generation,
    ) -> Result<(), Corrupt> {
        if generation.0 > self.geometry.generation.0.saturating_add(1) {
            return Err(Corrupt::field(what, field, generation.0, "later than the last transaction"));
        }
        Ok(())
    }

    /// Refuses a size or an address that is not a multiple of the sector size.
    pub fn check_sector_aligned(
        &self,
        what: &'static str,
        field: &'static str,
        value: u64,
    ) -> Result<(), Corrupt> {
        // The sector size is a power of two; a mask is cheap enough for every field of every item.
        if value & (u64::from(self.geometry.sector_size) - 1) != 0 {
            return Err(Corrupt::field(what, field, value, "not a multiple of the sector size"));
        }
        Ok(())
    }
}
