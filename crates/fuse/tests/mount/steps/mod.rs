//! The steps that run on both file systems.

mod access;
mod attributes;
mod data;
mod names;
mod stubs;
mod unnamed;

pub use access::{access, xattrs};
pub use attributes::{attributes, times};
pub use data::{data, open_files, ranges};
pub use names::{names, renames};
pub use stubs::stubs;
pub use unnamed::unnamed;
