//! The ioctls of a mounted file system: the kernel's Btrfs's own, as far as FUSE can carry them, and a few
//! of ours where those do not do.
//!
//! FUSE passes an ioctl with as many bytes as its number says, at most 16 KiB less one, and follows no
//! pointers. So the kernel's ioctls of fixed size work as they are, for any program that uses them; those
//! with pointers or open ends do not ([`number`] has the list). Modules: [`number`] which there are,
//! [`layout`] what they pass, [`server`] the answers, [`client`] the questions.

pub mod client;
pub mod layout;
pub mod number;
mod record;
pub mod server;

pub use server::{Caller, Changed, IoctlCall, IoctlReply, MountInfo, handle};
