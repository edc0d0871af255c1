//! Devices over devices: encrypted volumes (LUKS), arrays (md) and logical volumes (LVM2), in any
//! order, without root and without a device mapper.
//!
//! [`install`] lets every function of Papilio that opens an image find the layers over it. The
//! formats can be used alone, too: [`luks`], [`md`] and [`lvm`] open devices over devices.
//! [`Stack`] shows what lies over a file.
//!
//! The crate knows bytes and headers. It knows Btrfs only by its superblock, which says which
//! device of a stack is wanted. Ciphers, hashes and key derivation are those of RustCrypto.

#![forbid(unsafe_code)]

mod bytes;
mod content;
mod error;
mod installed;
mod keys;
pub mod luks;
pub mod lvm;
pub mod md;
mod options;
mod search;
mod stack;

pub use error::{LayerError, Result};
pub use installed::{forget_keys, install, keep_command_secret, keep_secret, known_secret, unlock};
pub use keys::{KeyFault, UnlockedKey};
pub use options::{KeySource, LayerOptions, keep_terminal};
pub use stack::{Stack, StackEntry};
