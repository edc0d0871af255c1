//! File data: where it is, whether it is what was written, and what it was before compression.
//!
//! Reading goes through a tree's root as it was when the reader came, and holds no lock. Changing goes
//! through [`file_edit`]: data is written first, trees are changed last, for which [`space`] says what
//! it takes of a transaction.

pub(crate) mod checksum;
pub(crate) mod checksum_cache;
pub(crate) mod clone;
mod compress;
pub(crate) mod convert;
pub(crate) mod csum_edit;
pub(crate) mod dedupe;
mod extend;
pub(crate) mod extent_cache;
pub(crate) mod extent_map;
mod fiemap;
pub(crate) mod file_edit;
pub(crate) mod file_extents_edit;
mod inline;
mod new_extents;
pub(crate) mod nocow;
pub(crate) mod ordered_budget;
pub(crate) mod ordered_extents;
pub(crate) mod ordered_items;
mod ordered_map;
pub(crate) mod overlap;
pub(crate) mod prealloc;
pub(crate) mod punch_hole;
mod range_locks;
mod read;
mod sector_sums;
mod seek;
pub(crate) mod space;
pub(crate) mod stored_extents;
pub(crate) mod truncate;
pub(crate) mod write;

#[cfg(test)]
pub(crate) use compress::compress;
pub use fiemap::FiemapExtent;
pub(crate) use fiemap::fiemap;
pub(crate) use read::{FileData, FileTree, ReadContext};
pub(crate) use seek::{Whence, seek};

#[cfg(test)]
mod tests;
