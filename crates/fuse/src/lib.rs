//! Mounts a Btrfs of Papilio through FUSE.
//!
//! [`Session::mount`] mounts an open file system with [`MountOptions`]. [`ioctl`] answers those
//! ioctls of the kernel's Btrfs that FUSE can carry. The server translates the kernel's requests to
//! calls of the library; a transport carries the requests ([`Transport`]).
//!
//! FUSE has one device number for all subvolumes, so inode numbers tell subvolumes apart. They are
//! the same at each mount; `numbers.rs` describes the scheme. FUSE cannot provide `FICLONE`,
//! `FIDEDUPERANGE`, `FIEMAP`, or a `sync` that commits; docs/mount.md lists the alternatives.
//!
//! Only Linux can mount. Elsewhere the options of a mount remain, so that programs have one source.

#![cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "the server uses it"))]

#[cfg(target_os = "linux")]
mod assistant;
#[cfg(target_os = "linux")]
mod cached_pages;
#[cfg(target_os = "linux")]
mod cpu_latency;
#[cfg(target_os = "linux")]
mod data_queue;
#[cfg(target_os = "linux")]
mod device_number;
#[cfg(target_os = "linux")]
mod device_transport;
#[cfg(target_os = "linux")]
mod dispatch;
#[cfg(target_os = "linux")]
mod follower;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(target_os = "linux")]
pub mod guest;
#[cfg(target_os = "linux")]
mod io_errors;
#[cfg(target_os = "linux")]
pub mod ioctl;
#[cfg(target_os = "linux")]
pub mod jobs;
#[cfg(target_os = "linux")]
mod mount_point;
#[cfg(target_os = "linux")]
mod nodes;
#[cfg(target_os = "linux")]
mod numbers;
pub mod options;
pub mod ownership;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod request_counts;
#[cfg(target_os = "linux")]
mod ring_transport;
#[cfg(target_os = "linux")]
mod served;
mod server;
#[cfg(target_os = "linux")]
mod session;
pub mod signals;
pub mod streams;
#[cfg(target_os = "linux")]
pub mod transport;
#[cfg(target_os = "linux")]
mod unmount;
#[cfg(target_os = "linux")]
pub mod whole_mount;

#[cfg(target_os = "linux")]
pub use device_transport::HandshakeError;
#[cfg(target_os = "linux")]
pub use mount_point::MountError;
pub use options::{Atime, MountOptionError, MountOptions, Transport};
pub use papilio_ioctl::Errno;
#[cfg(target_os = "linux")]
pub use ring_transport::RingError;
#[cfg(target_os = "linux")]
pub use session::Session;
#[cfg(target_os = "linux")]
pub use unmount::Unmounter;
