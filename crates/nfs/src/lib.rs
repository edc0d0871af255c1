//! A server of NFS version 3, which shows a Btrfs file system to any NFS client.
//!
//! It is for machines without FUSE: macOS, BSD, sandboxes. The protocol has no passwords: a client
//! names its users, and the server believes it. Each call has the permissions of its user.
//!
//! - [`Export`]: a file system, or a part of it, as the protocol sees it.
//! - [`Squash`]: the users that clients' users become; by default root becomes nobody.
//! - [`Server`]: listens on an address, and serves each client.
//!
//! The crate `nfs3_types` has the types of the protocol. Calls, records and threads are here.
//!
//! - [`Secret`]: marks the handles of inodes; one that is kept lets them survive a restart.
//!
//! **Durability**: a client's unstable write is in memory when it is answered, and durable after
//! the client's COMMIT. Every other change is durable when it is answered ([`Export::sync`]).
//!
//! Source: RFC 1813.

#![forbid(unsafe_code)]

mod arguments;
mod attributes;
mod change;
mod connection;
mod dispatch;
mod duplicates;
mod entries;
mod errors;
mod export;
pub mod fuzzing;
mod handle;
mod identity;
mod mount;
mod read;
mod rpc;
mod secret;
mod server;
mod write;

pub use export::Export;
pub use identity::Squash;
pub use secret::{Secret, SecretError};
pub use server::{BindError, Server, listen};
