//! The ioctls of a mounted file system: the kernel's Btrfs's own, as far as FUSE can carry them.

pub mod server;

pub use server::{Caller, Changed, IoctlCall, IoctlReply, MountInfo, handle};
