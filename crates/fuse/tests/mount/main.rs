//! A mounted Papilio, used by programs as any file system, and compared with the kernel's Btrfs.
//!
//! The server runs in a child process, as it does for users: who uses a mount must not be who serves it.
//! (`mount_ring` runs the same over the other transport.)

mod access_times;
mod compared;
mod limits;
mod listings;
mod parallel;
mod random;
mod script;
mod server;
mod smoke;
mod steps;
mod subvolumes;
mod transport;
