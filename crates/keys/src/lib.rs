//! The keys of what Papilio encrypts: repositories of backups, and devices in object stores.
//!
//! Everything is encrypted by a random key. [`WrappedKey`] holds that key, encrypted by a key that
//! argon2id derives from a passphrase or from the bytes of a key file. Keys for separate purposes
//! come from the random key by [`subkey`]. [`new_cipher`] is the cipher of all of them.
//!
//! **Invariant**: secrets and keys are in memory that is wiped when it is dropped.

#![forbid(unsafe_code)]

mod cipher;
mod error;
pub mod hex;
mod limits;
mod random;
mod wrapped;

pub use cipher::{SecretKey, hmac, new_cipher, subkey};
pub use error::{KeyError, Result};
pub use random::random;
pub use wrapped::{Derivation, Secret, WrappedKey, new_key};
