//! The ioctls of a mounted Btrfs: the kernel's, as far as FUSE carries them, and a few of our own.
//!
//! - [`number`] lists the commands, [`layout`] the structures of their arguments.
//! - [`shown_number`]: the inode numbers that a mount of Papilio shows.
//! - [`record`] is the encoding of open-ended answers of a mount of Papilio.
//! - [`client`] sends them to a mount, the kernel's or one of Papilio: [`client::MountedPath`].
//! - [`ControlDevice`] tells the kernel of devices.
//! - [`mount_table`] reads the host's mounts, [`io_priority`] sets that of a process.
//!
//! FUSE passes an ioctl with the number of bytes that its command number encodes, below 16 KiB, and
//! follows no pointers. So the kernel's ioctls of fixed size work for any program. For those with
//! pointers or open-ended buffers the server of a mount looks into the caller's memory, if it may.
//! The server is in `papilio-fuse`.
//!
//! All hosts build this crate. Elsewhere than on Linux no file is on a Btrfs.

pub mod client;
mod control_device;
pub mod errno;
pub mod host;
pub mod io_priority;
pub mod job;
pub mod layout;
pub mod mount_table;
pub mod number;
pub mod record;
pub mod shown_number;

pub use client::{EncodedPart, ScrubStart, SendRequest};
pub use control_device::{CONTROL_DEVICE, ControlDevice};
pub use errno::Errno;
