//! The server's side of ioctls.
//!
//! Owns [`handle`], which has each command answered by its entry in [`table`].
//!
//! **Invariants**
//! - Operations that the kernel reserves for administrators are reserved for root and the server's
//!   own user. Permissions of files govern the rest (`access.rs`).
//! - What the kernel has made durable when an ioctl returns is durable here, too (`table.rs`).
//!
//! Kernel counterpart: `btrfs_ioctl` (`fs/btrfs/ioctl.c`).

mod access;
mod call;
mod caller;
mod caller_memory;
mod defragment;
mod devices;
mod encoded;
mod extents;
mod files;
mod jobs;
mod owners;
mod quotas;
mod replace;
mod search;
mod send;
mod sharing;
mod state;
mod subvolumes;
mod switch;
pub mod table;
mod verity;

pub use call::{Caller, Changed, IoctlCall, IoctlReply, MountInfo};
pub(crate) use switch::{Switch, wanted_switch};

use call::Result;
use papilio_ioctl::Errno;

/// Answers an ioctl.
///
/// # Errors
/// ENOTTY for an unknown command, EPERM and EACCES for missing permissions, EINVAL for invalid
/// arguments. Otherwise the library's error, as the kernel's Btrfs would return it.
pub fn handle(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let entry = table::find(call.command).ok_or(Errno(libc::ENOTTY))?;
    // A device that is added to a mount of a seed makes it writable.
    if entry.is_change() && !call.mount.opened_read_only() && call.mount.refuses_changes() {
        return Err(Errno(libc::EROFS));
    }
    let reply = entry.answer(call)?;
    if entry.is_committed() {
        call.fs.commit()?;
    }
    Ok(reply)
}
