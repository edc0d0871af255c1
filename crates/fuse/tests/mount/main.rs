//! A mounted Papilio, used through system calls and compared with the kernel's Btrfs.
//!
//! The server runs in a child process, as it does for users: a process must not use a mount that it
//! serves. `mount_ring` runs the same tests over the other transport.

mod access_times;
mod cached;
mod calls;
mod compared;
mod encoded;
mod idmapped;
mod ioctls;
mod limits;
mod listings;
mod opens;
mod ownership;
mod parallel;
mod random;
mod scarce;
mod script;
mod server;
mod smoke;
mod steps;
mod subvolumes;
mod transport;
