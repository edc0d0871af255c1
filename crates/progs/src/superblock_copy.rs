//! A superblock copy as read from a device, valid or not, for tools that show it.
//!
//! Owns [`SuperblockCopy`]. `volume::superblocks` decides whether a file system can be opened.

use papilio_device::{Access, ImageOptions};
use papilio_engine::errors::{Error, Result};
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::superblock::{
    MAGIC, RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, SYSTEM_CHUNK_ARRAY_SIZE, superblock_offset,
};
use papilio_format::{
    Checksum, ChecksumType, Corrupt, Key, LogicalAddress, PhysicalAddress, Superblock, SuperblockError,
};
use std::path::Path;

/// Whether a superblock matches its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// The stored checksum is that of the bytes.
    Match(Checksum),
    /// The stored checksum differs from that of the bytes.
    Mismatch {
        /// The stored checksum.
        stored: Checksum,
        /// The checksum of the bytes.
        computed: Checksum,
    },
    /// The checksum algorithm is unknown.
    UnknownType,
}

/// One unverified copy of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuperblockCopy {
    /// The device offset of the copy.
    pub place: PhysicalAddress,
    /// Its fields.
    pub raw: RawSuperblock,
    bytes: [u8; SUPERBLOCK_SIZE],
}

impl SuperblockCopy {
    /// Reads copy `mirror` (0 to 2) from the device or image at `path`; `None` if the device is too
    /// small for that copy.
    ///
    /// # Errors
    /// A device that cannot be opened or read, or a copy that does not exist.
    pub fn read(path: impl AsRef<Path>, mirror: usize) -> Result<Option<Self>> {
        if mirror >= SUPERBLOCK_MIRRORS {
            return Err(Error::Invalid(format!(
                "superblock copy {mirror}: only copies 0 to {} exist",
                SUPERBLOCK_MIRRORS - 1
            )));
        }
        Self::read_at(path, superblock_offset(mirror))
    }

    /// Reads a copy at device offset `place`; `None` if it would reach past the end of the device.
    ///
    /// # Errors
    /// A device that cannot be opened or read.
    pub fn read_at(path: impl AsRef<Path>, place: PhysicalAddress) -> Result<Option<Self>> {
        // The copy of a mounted device is of interest, too. One sector is written at once.
        let options = papilio_device::OpenOptions::new(Access::ReadOnly).lock(false);
        let device = options.open_existing(path.as_ref(), &ImageOptions::default())?;
        if place.checked_add(SUPERBLOCK_SIZE as u64).is_none_or(|end| end.0 > device.size()) {
            return Ok(None);
        }
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(&mut bytes, place).map_err(|source| Error::Device {
            device: device.name().to_owned(),
            operation: "read",
            offset: place,
            length: SUPERBLOCK_SIZE,
            source,
        })?;
        Ok(Some(Self::of_bytes(bytes, place)))
    }

    fn of_bytes(bytes: [u8; SUPERBLOCK_SIZE], place: PhysicalAddress) -> Self {
        let raw = RawSuperblock::parse(&bytes).expect("the buffer has the size of a superblock");
        Self { place, raw, bytes }
    }

    /// Whether it has the magic of Btrfs.
    pub fn has_magic(&self) -> bool {
        self.raw.magic == MAGIC
    }

    /// Returns its checksum algorithm, if it is known.
    pub fn checksum_type(&self) -> Option<ChecksumType> {
        ChecksumType::from_raw(self.raw.csum_type).ok()
    }

    /// Compares its checksum with that of its bytes.
    pub fn checksum(&self) -> ChecksumState {
        let Some(algorithm) = self.checksum_type() else { return ChecksumState::UnknownType };
        let stored = algorithm.stored(&self.bytes);
        let computed = algorithm.compute(&self.bytes[CHECKSUM_SIZE..]);
        match stored == computed {
            true => ChecksumState::Match(stored),
            false => ChecksumState::Mismatch { stored, computed },
        }
    }

    /// Verifies it as a mount does.
    ///
    /// # Errors
    /// The first fault found.
    pub fn verify(&self) -> Result<Superblock, SuperblockError> {
        Superblock::parse(&self.bytes, self.place)
    }

    /// Returns the system chunks up to the first that cannot be decoded, and the error of that one.
    pub fn system_chunks(&self) -> (Vec<(LogicalAddress, ChunkItem)>, Option<Corrupt>) {
        let size = self.raw.sys_chunk_array_size as usize;
        let Some(mut rest) = self.raw.sys_chunk_array.get(..size) else {
            let value = u64::from(self.raw.sys_chunk_array_size);
            let why = "exceeds the array";
            debug_assert!(size > SYSTEM_CHUNK_ARRAY_SIZE);
            return (Vec::new(), Some(Corrupt::field("superblock", "sys_chunk_array_size", value, why)));
        };
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let next = Key::parse_prefix(rest).and_then(|(key, rest)| {
                let (chunk, rest) = ChunkItem::parse_prefix(rest)?;
                Ok((LogicalAddress(key.offset), chunk, rest))
            });
            match next {
                Ok((start, chunk, after)) => {
                    chunks.push((start, chunk));
                    rest = after;
                }
                Err(reason) => return (chunks, Some(reason)),
            }
        }
        (chunks, None)
    }

    /// Returns its 4,096 bytes.
    pub fn as_bytes(&self) -> &[u8; SUPERBLOCK_SIZE] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_copies_can_be_shown() {
        let copy = SuperblockCopy::of_bytes([0xff; SUPERBLOCK_SIZE], PhysicalAddress(65536));
        assert!(!copy.has_magic());
        assert_eq!(copy.checksum(), ChecksumState::UnknownType);
        assert!(copy.system_chunks().1.is_some());
        assert!(copy.verify().is_err());
        let zeros = SuperblockCopy::of_bytes([0; SUPERBLOCK_SIZE], PhysicalAddress(65536));
        assert!(matches!(zeros.checksum(), ChecksumState::Mismatch { .. }));
        assert_eq!(zeros.system_chunks(), (Vec::new(), None));
    }

    #[test]
    fn a_short_file_has_no_copy() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((64 << 10) + 4096).unwrap();
        assert!(SuperblockCopy::read(file.path(), 0).unwrap().is_some());
        assert!(SuperblockCopy::read(file.path(), 1).unwrap().is_none());
        assert!(SuperblockCopy::read(file.path(), 3).is_err());
        assert!(SuperblockCopy::read_at(file.path(), PhysicalAddress(u64::MAX)).unwrap().is_none());
    }
}
