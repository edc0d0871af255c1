//! The errors of keys.

use std::io;

/// The result of a function of this crate.
pub type Result<T> = std::result::Result<T, KeyError>;

/// A key cannot be made, or its description is not valid. A wrong secret is no error of this kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The host has no random numbers.
    #[error("random numbers: {0}")]
    Random(#[source] io::Error),
    /// The description names algorithms that this version does not know.
    #[error("the key needs {derivation} and {cipher}, which are not known")]
    Unknown {
        /// The derivation.
        derivation: String,
        /// The cipher.
        cipher: String,
    },
    /// A field of the description is not valid.
    #[error("the key's field {0} is not valid")]
    Field(&'static str),
    /// The derivation costs more than any real one.
    #[error(
        "the key needs {memory_kib} KiB, {passes} passes and {lanes} lanes; the most are {}, {} and {}",
        crate::limits::MOST_MEMORY,
        crate::limits::MOST_PASSES,
        crate::limits::MOST_LANES
    )]
    Cost {
        /// Memory in KiB.
        memory_kib: u32,
        /// Passes.
        passes: u32,
        /// Lanes.
        lanes: u32,
    },
    /// The derivation refuses its parameters.
    #[error("the key's derivation: {0}")]
    Derivation(argon2::Error),
    /// The cipher fails.
    #[error("the key cannot be encrypted")]
    Cipher,
}
