//! File data: where it is, whether it is what was written, and what it was before compression.
//!
//! Everything here reads through a committed tree's root and holds no lock.

mod checksum;
#[allow(dead_code)] // Callers of the writing side land next.
mod compress;
pub(crate) mod extent_map;
mod fiemap;
mod read;
mod seek;

#[cfg(test)]
pub(crate) use compress::compress;
pub use fiemap::FiemapExtent;
pub(crate) use fiemap::fiemap;
pub(crate) use read::{FileData, ReadContext};
pub(crate) use seek::{Whence, seek};

#[cfg(test)]
mod tests;
