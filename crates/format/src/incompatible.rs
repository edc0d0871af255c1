//! Features that a file system may use and this code does not support, as a type.
//!
//! Owns [`Incompatible`]. It names neither a path nor a device; the layers that do I/O add those.

/// A file system that uses a feature this code does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Incompatible {
    /// Incompat feature bits that forbid reading.
    #[error("unknown incompat feature bits {0:#x}")]
    IncompatBits(u64),
    /// Read-only compatible feature bits; an unknown one forbids writing.
    #[error("unknown compat_ro feature bits {0:#x}: the file system can only be read")]
    CompatRoBits(u64),
    /// An unknown checksum algorithm.
    #[error("unknown checksum type {0}")]
    ChecksumType(u16),
    /// An unknown compression algorithm.
    #[error("unknown compression type {0}")]
    Compression(u8),
}
