//! Mounts a Btrfs of Papilio through FUSE.
//!
//! [`Session::mount`] mounts an open file system with [`MountOptions`]. [`ioctl`] implements those
//! ioctls of the kernel's Btrfs that FUSE can carry. The server translates the kernel's requests to
//! calls of the library; a transport carries the requests ([`Transport`]).
//!
//! FUSE has one device number for all subvolumes, so inode numbers tell subvolumes apart. They are
//! the same at each mount; `numbers.rs` describes the scheme. FUSE cannot provide `FICLONE`,
//! `FIDEDUPERANGE`, `FIEMAP`, or a `sync` that commits; docs/mount.md lists the alternatives.

mod assistant;
mod cached_pages;
mod data_queue;
mod device_number;
mod device_transport;
mod dispatch;
pub mod errno;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod io_priority;
pub mod ioctl;
pub mod jobs;
mod mount_point;
pub mod mount_table;
mod nodes;
mod numbers;
pub mod options;
pub mod ownership;
mod protocol;
mod request_counts;
mod ring_transport;
mod server;
mod session;
pub mod signals;
pub mod streams;
pub mod transport;
mod unmount;
mod wakefulness;
pub mod whole_mount;

pub use device_transport::HandshakeError;
pub use errno::Errno;
pub use mount_point::MountError;
pub use options::{Atime, MountOptionError, MountOptions, Transport};
pub use ring_transport::RingError;
pub use session::Session;
pub use unmount::Unmounter;
