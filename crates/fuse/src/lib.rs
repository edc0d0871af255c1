//! Mounts a Btrfs of Papilio through FUSE.

pub mod errno;
pub mod ioctl;
pub mod options;

pub use errno::Errno;
pub use options::{Atime, MountOptionError, MountOptions};
