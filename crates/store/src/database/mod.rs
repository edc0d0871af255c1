//! Devices that live in an object store, for reading and writing.
//!
//! Owns [`StoreUrl`] and the openers of such devices. The parts:
//! - `url`: which store and which prefix a URL names.
//! - `device`: [`StoreDevice`], whose blocks are the values of a SlateDB database.
//! - `admin`: checkpoints and clones of a database.
//! - `still`: the clock by which a reader never follows a writer.
//!
//! SlateDB (<https://slatedb.io>) is a log-structured merge tree on object storage. Its write-ahead
//! log, manifests, compaction, garbage collection and fencing are its own.
//!
//! **Invariants**
//! - One program writes a device. A second one that opens it for writing fences the first, whose
//!   writes are errors from then on.
//! - A device opened for reading has one state: that of its checkpoint, or of the moment it was
//!   opened.

mod admin;
mod counted;
mod device;
mod errors;
mod still;
#[cfg(test)]
mod tests;
mod url;

pub use admin::{clone_store, create_checkpoint, delete_checkpoint, list_checkpoints};
pub use device::StoreDevice;
pub use url::StoreUrl;
