//! Shows mounts of Papilio to a program as the kernel's Btrfs shows its own.
//!
//! A FUSE mount has one device number, FUSE's magic number in statfs and the type `fuse.papilio` in
//! the tables of mounts, and the kernel passes it no `FICLONE`, `FIDEDUPERANGE` or `FS_IOC_FIEMAP`.
//! Programs that ask for Btrfs therefore refuse it, and those that stay on one file system cross
//! into subvolumes. This crate has the answers that the kernel's Btrfs would give:
//!
//! - [`identity`]: device and inode numbers of each subvolume.
//! - [`own_mounts`]: the mounts that are Papilio's.
//! - [`mount_table`]: the tables of mounts, rewritten.
//! - [`calls`]: `ioctl` calls, carried out by ioctls of our own.
//! - [`program`]: the way in which a program's calls can be answered.
//! - [`notify`]: answers the calls of programs that do without the C library.
//!
//! `papilio-preload` answers the calls of all others. Linux on 64-bit processors only.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

pub mod caller;
pub mod calls;
pub mod identity;
pub mod mount_table;
pub mod notify;
pub mod own_mounts;
pub mod program;
pub mod system;
