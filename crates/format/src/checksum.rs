//! The four checksum algorithms, and the hashes of names.
//!
//! Owns [`ChecksumType`] and [`Checksum`]. Each call dispatches with one `match`, never through a
//! trait object. Sources: `fs/btrfs/fs.c` (`btrfs_csums`), `Documentation/filesystems/btrfs` and
//! the "Checksumming" page of the Btrfs documentation.

use crate::incompatible::Incompatible;

/// Bytes reserved for the checksum in every block.
pub const CHECKSUM_SIZE: usize = 32;

/// A checksum algorithm (`enum btrfs_csum_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ChecksumType {
    /// CRC-32C, 4 bytes.
    Crc32c = 0,
    /// xxHash, 64 bits, seed 0, 8 bytes.
    XxHash64 = 1,
    /// SHA-256, 32 bytes.
    Sha256 = 2,
    /// BLAKE2b with a 256-bit digest, 32 bytes.
    Blake2b = 3,
}

impl ChecksumType {
    /// All algorithms, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::XxHash64, Self::Sha256, Self::Blake2b];

    /// Returns the algorithm with the superblock's number.
    ///
    /// # Errors
    /// [`Incompatible::ChecksumType`] for an unknown number.
    pub fn from_raw(raw: u16) -> Result<Self, Incompatible> {
        Self::ALL.get(usize::from(raw)).copied().ok_or(Incompatible::ChecksumType(raw))
    }

    /// Returns the size of one checksum, 4 to 32 bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::XxHash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// Returns the name that `mkfs.btrfs --csum` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::XxHash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2",
        }
    }

    /// Computes the checksum of `bytes`.
    #[inline]
    pub fn compute(self, bytes: &[u8]) -> Checksum {
        let mut sum = [0; CHECKSUM_SIZE];
        match self {
            Self::Crc32c => sum[..4].copy_from_slice(&crc32c(bytes).to_le_bytes()),
            Self::XxHash64 => {
                let hash = xxhash_rust::xxh64::xxh64(bytes, 0);
                sum[..8].copy_from_slice(&hash.to_le_bytes());
            }
            Self::Sha256 => {
                use sha2::Digest;
                sum.copy_from_slice(&sha2::Sha256::digest(bytes));
            }
            Self::Blake2b => {
                let hash = blake2b_simd::Params::new().hash_length(32).hash(bytes);
                sum.copy_from_slice(hash.as_bytes());
            }
        }
        Checksum { bytes: sum, size: self.size() as u8 }
    }

    /// Reads the checksum at the start of `bytes`, which must hold [`ChecksumType::size`] bytes.
    #[inline]
    pub fn stored(self, bytes: &[u8]) -> Checksum {
        let mut sum = [0; CHECKSUM_SIZE];
        sum[..self.size()].copy_from_slice(&bytes[..self.size()]);
        Checksum { bytes: sum, size: self.size() as u8 }
    }

    /// Returns whether checksumming is as fast here as reading the bytes from memory. If so, a
    /// caller that checksums bytes just before using them pays next to nothing for it.
    pub fn keeps_up_with_memory(self) -> bool {
        self == Self::Crc32c && multiplies_wide()
    }

    /// Returns whether `stored` (at least [`ChecksumType::size`] bytes) is the checksum of `bytes`.
    #[inline]
    pub fn verify(self, bytes: &[u8], stored: &[u8]) -> bool {
        match self {
            Self::Crc32c => crc32c(bytes).to_le_bytes() == stored[..4],
            _ => self.compute(bytes).as_bytes() == &stored[..self.size()],
        }
    }
}

impl std::fmt::Display for ChecksumType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A checksum of up to 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum {
    bytes: [u8; CHECKSUM_SIZE],
    size: u8,
}

impl Checksum {
    /// Returns the checksum, [`ChecksumType::size`] bytes long.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.size)]
    }

    /// Returns the checksum padded with zeros, as blocks store it.
    #[inline]
    pub fn padded(&self) -> &[u8; CHECKSUM_SIZE] {
        &self.bytes
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("0x")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Computes CRC-32C by the fastest method here. Multiplying 64 bytes at a time takes 0.05 us per
/// sector; the CRC instruction takes 0.16 us, and beats narrower multiplications.
#[inline]
fn crc32c(bytes: &[u8]) -> u32 {
    if multiplies_wide() { crc_fast::crc32_iscsi(bytes) } else { crc32c::crc32c(bytes) }
}

/// Returns whether the processor multiplies polynomials of 64 bytes at a time.
#[inline]
fn multiplies_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Updates a raw CRC-32C register as the kernel's `crc32c(seed, data)` does, without inversion
/// before or after.
#[inline]
pub fn crc32c_raw(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Hashes a name for the key of a directory item or an xattr (`btrfs_name_hash`).
#[inline]
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c_raw(!1, name))
}

/// Hashes a name for the key of an extended inode reference (`btrfs_extref_hash`).
#[inline]
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    u64::from(crc32c_raw(parent as u32, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        let text = b"123456789";
        assert_eq!(ChecksumType::Crc32c.compute(text).as_bytes(), 0xe306_9283_u32.to_le_bytes());
        assert_eq!(ChecksumType::XxHash64.compute(text).as_bytes(), 0x8cb8_41db_40e6_ae83_u64.to_le_bytes());
        assert_eq!(
            ChecksumType::Sha256.compute(b"abc").to_string(),
            "0xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            ChecksumType::Blake2b.compute(b"abc").to_string(),
            "0xbddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"
        );
    }

    #[test]
    fn both_crc32c_methods_agree() {
        let bytes: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let all = (0..600).chain([1023, 4095, 4096, 4097, 16_384, 19_990]);
        for length in all.filter(|length| !cfg!(miri) || length % 128 < 2 && *length < 1000) {
            let part = &bytes[length % 7..][..length];
            assert_eq!(crc32c(part), crc32c::crc32c(part), "{length} bytes");
            assert_eq!(crc_fast::crc32_iscsi(part), crc32c::crc32c(part), "{length} bytes");
        }
    }

    #[test]
    fn known_name_hashes() {
        // From a kernel-made file system: the default subvolume's entry in the root tree.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }

    #[test]
    fn verify_ignores_bytes_after_the_checksum() {
        let sum = ChecksumType::Crc32c.compute(b"x");
        assert!(ChecksumType::Crc32c.verify(b"x", sum.padded()));
        assert!(!ChecksumType::Crc32c.verify(b"y", sum.padded()));
    }

    #[test]
    fn unknown_type_is_refused() {
        assert_eq!(ChecksumType::from_raw(4), Err(Incompatible::ChecksumType(4)));
    }
}
