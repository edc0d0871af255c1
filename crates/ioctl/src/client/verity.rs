//! fs-verity of a file in a mount, the kernel's or ours.
//!
//! Kernel counterparts: `fs/verity/enable.c`, `fs/verity/measure.c`.

use super::{MountedPath, garbled};
use crate::layout::{VerityDigest, VerityEnable};
use crate::number::Command;
use papilio_engine::file::verity::FsverityOptions;
use papilio_format::items::fsverity_descriptor::FsverityAlgorithm;
use std::io;

impl MountedPath {
    /// Turns on fs-verity for the file.
    ///
    /// # Errors
    /// EEXIST if it is on; ETXTBSY while the file is open for writing; EACCES without the right to
    /// write; EOPNOTSUPP or ENOTTY where the mount has no fs-verity.
    pub fn enable_verity(&self, options: &FsverityOptions) -> io::Result<()> {
        let mut arguments = VerityEnable {
            version: 1,
            hash_algorithm: options.algorithm.number().into(),
            block_size: options.block_size,
            salt_size: options.salt.len() as u32,
            salt: options.salt.as_ptr().addr() as u64,
            signature_size: options.signature.len() as u32,
            signature: options.signature.as_ptr().addr() as u64,
            ..VerityEnable::default()
        };
        // The kernel reads salt and signature, which outlive the call.
        self.call(Command::ENABLE_VERITY, &mut arguments)
    }

    /// Returns the hash algorithm and the file digest; `None` without fs-verity.
    ///
    /// # Errors
    /// The file's descriptor cannot be read.
    pub fn measure_verity(&self) -> io::Result<Option<(FsverityAlgorithm, Vec<u8>)>> {
        let mut digest = VerityDigest { size: 64, ..VerityDigest::default() };
        match self.call(Command::MEASURE_VERITY, &mut digest) {
            // Without CONFIG_FS_VERITY, a kernel cannot open a file that has it.
            Err(error)
                if [libc::ENODATA, libc::EOPNOTSUPP, libc::ENOTTY]
                    .map(Some)
                    .contains(&error.raw_os_error()) =>
            {
                return Ok(None);
            }
            result => result?,
        }
        let number = u8::try_from(digest.hash_algorithm).unwrap_or(u8::MAX);
        let algorithm = FsverityAlgorithm::of_number(number).ok_or_else(garbled)?;
        let bytes = digest.digest.get(..usize::from(digest.size)).ok_or_else(garbled)?;
        Ok(Some((algorithm, bytes.to_vec())))
    }
}
