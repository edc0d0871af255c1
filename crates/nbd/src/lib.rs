//! A server of the NBD protocol, which shows the bytes of a device to any NBD client.
//!
//! - [`Export`]: a device with a name, and the commands that clients may give it.
//! - [`Server`]: listens on an address, and serves each client in threads of its own.
//! - [`Tls`]: encrypts connections, if the caller brings it.
//!
//! The handshake is the fixed newstyle one. Structured replies and the metadata context
//! `base:allocation` are there for clients that ask for them. TLS is that of the caller ([`Tls`]).
//!
//! A client is not trusted. No request makes the server panic, allocate more than
//! [`MAX_PAYLOAD`] bytes at once, or leave the device's range.
//!
//! ```
//! use papilio_device::MemoryDevice;
//! use papilio_nbd::{Address, Export, Server};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let export = Export::new(String::new(), Arc::new(MemoryDevice::new(1 << 20)))?;
//! let server = Server::start(&Address::Tcp("127.0.0.1:0".to_owned()), export, 16)?;
//! assert!(server.uri().starts_with("nbd://127.0.0.1:"));
//! server.stop()?;
//! # Ok(())
//! # }
//! ```
//!
//! The protocol: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>. Kernel
//! counterpart of the other side: drivers/block/nbd.c.

#![forbid(unsafe_code)]

mod address;
mod budget;
mod connection;
mod export;
mod handshake;
mod protocol;
mod replies;
mod server;
mod stream;

pub use address::{Address, BindError, Listening};
pub use export::{Export, NameTooLong};
pub use protocol::MAX_PAYLOAD;
pub use server::{Server, Settings, StartError};
pub use stream::{Channel, Socket, Tls};
