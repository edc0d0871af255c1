//! VMDK images of VMware: `monolithicSparse`, `streamOptimized`, and descriptors with extents.
//!
//! The source is "Virtual Disk Format 5.0" of VMware. [`header`] reads the header and the tables of
//! a sparse file, [`grains`] writes them, and [`stream`] reads compressed grains. [`descriptor`]
//! reads the text that names the files of a disk, and [`content`] its identifiers.
//!
//! **Invariant**: an image that needs a parent is refused.

mod content;
mod descriptor;
mod grains;
mod header;
mod sparse_file;
mod stream;

pub(super) use descriptor::open as open_descriptor;
pub(super) use sparse_file::{open, open_writable};
