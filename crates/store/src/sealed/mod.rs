//! Objects that are encrypted at rest.
//!
//! A device in a store is encrypted as a whole, below the database and the segments: everything
//! that either of them writes passes through [`SealedStore`]. The parts:
//! - `chunks`: the stored form of an object, and the cipher ([`Sealing`]).
//! - `reading`: ranges of objects, chunk by chunk; `upload`: objects that are sent in parts.
//! - `store`: [`SealedStore`], which presents the content of objects.
//! - `keys`: the object that holds the device's key, encrypted by the user's secrets.
//! - `admin`: adding, removing and changing these secrets.
//!
//! **Invariants**
//! - Content is used only after its authentication was verified: that it belongs to this device, to
//!   this name and to this place in the object, and that the object does not end too early.
//! - No nonce is used twice with a key: 16 bytes are random for each object that is written.
//! - Names are not encrypted. Database and segments choose none by what the user stores.

mod admin;
mod chunks;
mod fault;
mod keys;
mod reading;
mod store;
#[cfg(test)]
mod tests;
mod upload;

pub use admin::{add_store_key, change_store_key, encrypt_store, remove_store_key, store_keys};
pub(crate) use chunks::Sealing;
pub(crate) use fault::SealFault;
pub(crate) use keys::{FOLDER, KeyRing};
pub(crate) use store::SealedStore;
