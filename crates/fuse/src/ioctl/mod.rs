//! The ioctls of a mounted file system: the kernel's Btrfs ioctls, as far as FUSE can carry them,
//! and a few of our own.
//!
//! FUSE passes an ioctl with the number of bytes that its command number encodes, below 16 KiB, and
//! follows no pointers. So the kernel's ioctls of fixed size work for any program. For those with
//! pointers or open-ended buffers the server looks into the caller's memory, if it may. [`number`]
//! lists the commands, [`layout`] their arguments. [`server`] answers them, and [`client`] sends
//! them.

pub mod client;
mod client_extents;
mod client_jobs;
mod client_kernel;
mod client_owners;
mod client_quotas;
mod client_streams;
mod client_usage;
mod control_device;
mod host;
pub mod layout;
pub mod number;
mod record;
mod record_jobs;
#[cfg(target_os = "linux")]
pub mod server;

pub use client_jobs::ScrubStart;
pub use client_streams::{EncodedPart, SendRequest};
pub use control_device::{CONTROL_DEVICE, ControlDevice};
#[cfg(target_os = "linux")]
pub use server::{Caller, Changed, IoctlCall, IoctlReply, MountInfo, handle};
