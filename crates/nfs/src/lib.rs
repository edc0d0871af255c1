//! A server of NFS version 3, which shows a Btrfs file system to any NFS client.
//!
//! It is for machines without FUSE: macOS, BSD, sandboxes. Clients and server are on one machine;
//! the protocol has no passwords, and the server has no users: it does all that a client asks.
//!
//! - [`Export`]: a file system, or a part of it, as the protocol sees it.
//! - [`Server`]: listens on an address, and serves each client.
//!
//! The crate `nfs3_server` speaks the protocol (RPC, XDR, the mount protocol and the port mapper).
//! Not in it are hard links and special files. It tells clients of 1 TiB of free space, whatever
//! there is.
//!
//! **Durability**: a client's unstable write is in memory when it is answered, and durable after
//! the client's COMMIT. Everything else is as after the system call on a local file system.
//!
//! Source: RFC 1813.

#![forbid(unsafe_code)]

mod attributes;
mod change;
mod entries;
mod errors;
mod export;
mod handle;
mod read;
mod server;

pub use export::Export;
pub use server::{BindError, Server};
