//! A web page and WebDAV for the file system in an image.
//!
//! Owns [`Server`], which answers HTTP/1.1 and WebDAV (classes 1 and 2) for an [`Export`]. The
//! program `papilio-web` runs it for `papilio serve --http`.
//!
//! - `wire`, `head`, `target`, `body`, `reply`: a connection, its requests and its answers
//! - `guard`: the secret, `Host` and origin of requests
//! - `export`, `travel`: where paths lead, in the present and in the past
//! - `conditions`, `ranges`, `download`, `archive`: files and folders for clients
//! - `upload`, `form`, `tree`: changes
//! - `dav`: the methods of WebDAV
//! - `html`, `listing`, `views`: the pages
//! - `service`, `server`: which request gets which answer; the clients
//!
//! Each connection has a thread, because the file system is called in the same way. The parts of
//! the protocol that are easy to get wrong come from the crates `httparse`, `quick-xml` and
//! `rustls`.
//!
//! **Invariants**
//! - No request leads out of the exported directory, and none changes an export for reading.
//! - Nothing out of the file system acts as a page of this server.
//! - The memory of a request is bounded, and no lock is held while a client is waited for.

#![forbid(unsafe_code)]

mod archive;
mod body;
mod conditions;
mod dates;
mod dav;
mod download;
mod errors;
mod export;
mod form;
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod head;
mod html;
mod limits;
mod listing;
mod random;
mod ranges;
mod reply;
mod server;
mod service;
mod target;
mod text;
mod tls;
mod travel;
mod tree;
mod upload;
mod views;
mod wire;

pub use export::Export;
pub use guard::Secret;
pub use limits::Limits;
pub use server::{BindError, Server, Settings, listen};
pub use tls::{TlsError, tls_config, tls_config_for_disks};
pub use views::{Picture, Pictures};
