//! Images at URLs and devices in object stores, as [`Device`]s.
//!
//! - `remote`: an object of a store or web server, for reading ([`RemoteDevice`]).
//! - `database`: a device whose blocks are in a SlateDB database and in
//!   segments on a store ([`StoreDevice`]).
//! - `bucket`: objects below a prefix, which are written and read as a whole ([`Bucket`]).
//! - `sealed`: devices whose objects are encrypted, and their keys.
//! - `installed`: both of them for `papilio_device`, as its object stores ([`install`]).
//!
//! A program that shall open URLs calls [`install`] once at its start:
//!
//! ```
//! papilio_store::install();
//! assert!(papilio_device::object_stores().is_ok());
//! ```

#![forbid(unsafe_code)]

mod bucket;
mod database;
mod installed;
mod remote;
mod sealed;

pub use bucket::Bucket;
pub use database::{
    LogWatch, StoreDevice, StoreUrl, clone_store, create_checkpoint, delete_checkpoint, list_checkpoints,
    store_info,
};
pub use installed::install;
#[doc(no_inline)]
pub use papilio_device::{
    Device, RemoteCache, RemoteOptions, RequestCounts, StoreCheckpoint, StoreCleaned, StoreInfo, StoreKey,
    StoreRequests, StoreWatch,
};
#[doc(no_inline)]
pub use papilio_keys::{Derivation, Secret};
pub use remote::{RemoteDevice, RemoteStatistics};
pub use sealed::{add_store_key, change_store_key, encrypt_store, remove_store_key, store_keys};
