//! Mounts a Btrfs of Papilio through FUSE.
//!
//! [`Session::mount`] mounts an open file system; [`MountOptions`] are the options of a mount; [`ioctl`] are the
//! kernel's Btrfs's own ioctls, as far as FUSE carries them. Below lie the server, which translates what the
//! kernel asks for to calls of the library, and the transports, over which it asks ([`Transport`]).
//!
//! Inode numbers: FUSE has one device number for all subvolumes, so the numbers tell them apart and are the
//! same at each mount; `numbers.rs` says how. What FUSE or its transport cannot give: birth times by `statx`,
//! `O_TMPFILE`, `FICLONE`, `FIDEDUPERANGE`, `FIEMAP`, a `sync` that commits; `fuser_transport` says why, and
//! docs/mount.md what comes instead.

mod device_number;
pub mod errno;
mod fuser_transport;
pub mod ioctl;
mod mount_point;
pub mod mount_table;
mod nodes;
mod numbers;
pub mod options;
mod ring_transport;
mod server;
mod session;
pub mod signals;
pub mod streams;
pub mod transport;
mod unmount;

pub use errno::Errno;
pub use mount_point::MountError;
pub use options::{Atime, MountOptionError, MountOptions, Transport};
pub use ring_transport::RingError;
pub use session::Session;
pub use unmount::Unmounter;
