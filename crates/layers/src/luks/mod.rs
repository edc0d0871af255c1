//! LUKS: encrypted volumes of versions 1 and 2.
//!
//! - `luks1`, `luks2`: the headers;
//! - `header`: the fields that both have;
//! - `unlock`: reading a header, and opening a key slot;
//! - `af`: the anti-forensic merge of key material;
//! - `kdf`: hashes and key derivation;
//! - `sector_cipher`: the encryption of sectors;
//! - `device`: the open volume.
//!
//! Sources: "LUKS On-Disk Format Specification" 1.2.3 and "LUKS2 On-Disk Format Specification"
//! 1.1.3; dm-crypt's documentation for the initialisation vectors. The algorithms are those of
//! RustCrypto.

mod af;
mod device;
mod header;
mod kdf;
mod luks1;
mod luks2;
mod sector_cipher;
mod unlock;
mod xts;

pub use device::LuksDevice;
pub use header::{KeySlot, LuksHeader, VolumeKey};
