//! Btrfs in user space: reads real Btrfs file systems, in images and on block devices, without a
//! kernel driver and without root.

#![forbid(unsafe_code)]

mod btree;
mod errors;
mod options;
mod volume;

pub use errors::{BlockFault, Error, ErrorKind, FilePlace, PathError, Result};
pub use options::{OpenOptions, SubvolumeChoice};
pub use papilio_format as format;
