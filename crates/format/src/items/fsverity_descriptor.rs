//! The descriptor of fs-verity: the parameters of a file's Merkle tree, and its root hash.
//!
//! Owns [`FsverityDescriptor`] and [`FsverityAlgorithm`]. The kernel keeps the descriptor as plain
//! bytes in items of the type VERITY_DESC_ITEM, see [`super::verity`]. A builtin signature may
//! follow it.
//!
//! Sources: `Documentation/filesystems/fsverity.rst`, `struct fsverity_descriptor`
//! (`fs/verity/fsverity_private.h`), `validate_fsverity_descriptor` (`fs/verity/open.c`).

use crate::error::Corrupt;
use crate::parse::disk_struct;

/// Most bytes of a salt (`FS_VERITY_MAX_SALT_SIZE`).
pub const MAX_SALT: usize = 32;
/// Most bytes of a descriptor with its signature (`FS_VERITY_MAX_DESCRIPTOR_SIZE`).
pub const MAX_DESCRIPTOR: u64 = 16384;
/// Most bytes of a signature (`FS_VERITY_MAX_SIGNATURE_SIZE`).
pub const MAX_SIGNATURE: u64 = MAX_DESCRIPTOR - FsverityDescriptor::SIZE as u64;
/// The smallest block of a Merkle tree, as a power of two: 1 KiB.
pub const MIN_LOG_BLOCK_SIZE: u8 = 10;
/// The largest block of a Merkle tree, as a power of two: 64 KiB, the largest page of a kernel.
pub const MAX_LOG_BLOCK_SIZE: u8 = 16;

disk_struct! {
    /// The parameters of a Merkle tree, and the hash of its root block.
    pub struct FsverityDescriptor as FsverityDescriptorDisk = 256 {
        /// 1.
        pub version: u8,
        /// The number of the hash algorithm, see [`FsverityAlgorithm::of_number`].
        pub hash_algorithm: u8,
        /// The size of data and tree blocks in bytes, as a power of two.
        pub log_blocksize: u8,
        /// The size of the salt in bytes, 0 to 32.
        pub salt_size: u8,
        /// The size of the signature behind the descriptor in bytes; 0 without one.
        pub sig_size: u32,
        /// The size of the file in bytes.
        pub data_size: u64,
        /// The hash of the root block, followed by zeros. Zeros only for an empty file.
        pub root_hash: [u8; 64],
        /// The salt, followed by zeros.
        pub salt: [u8; 32],
        /// Zeros.
        pub reserved: [u8; 144],
    }
}

/// The hash algorithms of fs-verity (`FS_VERITY_HASH_ALG_*`, `include/uapi/linux/fsverity.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FsverityAlgorithm {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

impl FsverityAlgorithm {
    /// Returns the algorithm with a number of the format.
    pub const fn of_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Returns its number in the format.
    pub const fn number(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }

    /// Returns the size of a hash in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Returns the size of the blocks that the algorithm works on. The salt is padded to one.
    pub const fn input_block(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }
}

impl std::fmt::Display for FsverityAlgorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for FsverityAlgorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Sha256, Self::Sha512]
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| format!("{name}: the hash algorithms are sha256 and sha512"))
    }
}

impl FsverityDescriptor {
    /// Returns the hash algorithm.
    ///
    /// # Errors
    /// A number that no kernel knows.
    pub fn algorithm(&self) -> Result<FsverityAlgorithm, Corrupt> {
        let number = self.hash_algorithm;
        FsverityAlgorithm::of_number(number)
            .ok_or_else(|| bad("hash_algorithm", number.into(), "not one of the hash algorithms"))
    }

    /// Returns the salt without its padding.
    pub fn salt(&self) -> &[u8] {
        &self.salt[..usize::from(self.salt_size).min(MAX_SALT)]
    }

    /// Checks the descriptor of a file of `file_size` bytes; `size` bytes of it are stored, its
    /// signature among them.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn validate(&self, file_size: u64, size: u64) -> Result<(), Corrupt> {
        if self.version != 1 {
            return Err(bad("version", self.version.into(), "not 1"));
        }
        self.algorithm()?;
        if !(MIN_LOG_BLOCK_SIZE..=MAX_LOG_BLOCK_SIZE).contains(&self.log_blocksize) {
            return Err(bad("log_blocksize", self.log_blocksize.into(), "not 10 to 16"));
        }
        if usize::from(self.salt_size) > MAX_SALT {
            return Err(bad("salt_size", self.salt_size.into(), "larger than 32"));
        }
        if self.data_size != file_size {
            return Err(bad("data_size", self.data_size, "not the size of the file"));
        }
        if u64::from(self.sig_size) > size.saturating_sub(Self::SIZE as u64) {
            return Err(bad("sig_size", self.sig_size.into(), "the signature exceeds the descriptor"));
        }
        match self.reserved.iter().find(|&&byte| byte != 0) {
            Some(&byte) => Err(bad("reserved", byte.into(), "not zero")),
            None => Ok(()),
        }
    }
}

fn bad(field: &'static str, value: u64, why: &'static str) -> Corrupt {
    Corrupt::field("fs-verity descriptor", field, value, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> FsverityDescriptor {
        FsverityDescriptor {
            version: 1,
            hash_algorithm: 1,
            log_blocksize: 12,
            salt_size: 2,
            sig_size: 0,
            data_size: 5000,
            root_hash: [7; 64],
            salt: [3; 32],
            reserved: [0; 144],
        }
    }

    #[test]
    fn descriptors_round_trip() {
        crate::parse::assert_round_trip::<FsverityDescriptor>();
        assert_eq!(good().salt(), [3, 3]);
    }

    #[test]
    fn each_check_detects_its_fault() {
        assert_eq!(good().validate(5000, 256), Ok(()));
        assert_eq!(FsverityDescriptor { sig_size: 10, ..good() }.validate(5000, 266), Ok(()));
        let mut reserved = [0; 144];
        reserved[143] = 1;
        let faults = [
            ("version", FsverityDescriptor { version: 2, ..good() }),
            ("hash_algorithm", FsverityDescriptor { hash_algorithm: 3, ..good() }),
            ("log_blocksize", FsverityDescriptor { log_blocksize: 9, ..good() }),
            ("log_blocksize", FsverityDescriptor { log_blocksize: 17, ..good() }),
            ("salt_size", FsverityDescriptor { salt_size: 33, ..good() }),
            ("data_size", FsverityDescriptor { data_size: 4999, ..good() }),
            ("sig_size", FsverityDescriptor { sig_size: 1, ..good() }),
            ("reserved", FsverityDescriptor { reserved, ..good() }),
        ];
        for (field, descriptor) in faults {
            let fault = descriptor.validate(5000, 256).unwrap_err();
            assert!(matches!(fault, Corrupt::Field { field: found, .. } if found == field), "{fault}");
        }
    }

    #[test]
    fn algorithms_have_names_and_numbers() {
        for algorithm in [FsverityAlgorithm::Sha256, FsverityAlgorithm::Sha512] {
            assert_eq!(FsverityAlgorithm::of_number(algorithm.number()), Some(algorithm));
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        assert!("md5".parse::<FsverityAlgorithm>().is_err());
    }
}
