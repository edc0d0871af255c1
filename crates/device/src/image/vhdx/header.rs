//! The two headers of a VHDX file.
//!
//! Owns [`Header`], and the checksum of the format's structures. The source is [MS-VHDX] 2.2.2.
//!
//! **Invariant**: a header with a wrong checksum is not used.

use super::super::blocks::read_range;
use super::super::sparse::identifier;
use crate::device::Device;
use crate::error::OpenErrorKind;
use papilio_format::PhysicalAddress;
use std::io;

/// The offsets of the two headers, and their size.
const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const HEADER_SIZE: u64 = 4096;

pub(super) type Guid = [u8; 16];

/// Returns an error of the image.
pub(super) fn fault(reason: impl Into<String>) -> OpenErrorKind {
    OpenErrorKind::Image { format: "vhdx", reason: reason.into() }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub(super) fn guid_at(bytes: &[u8], at: usize) -> Guid {
    std::array::from_fn(|index| bytes[at + index])
}

/// Returns the checksum of a structure, whose own checksum is at byte 4 and counts as zero.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..4]);
    digest.update(&[0; 4]);
    digest.update(&bytes[8..]);
    digest.finalize() as u32
}

/// Returns whether a structure has a signature and the right checksum.
pub(super) fn is_valid(bytes: &[u8], signature: &[u8; 4]) -> bool {
    bytes.starts_with(signature) && u32_at(bytes, 4) == checksum(bytes)
}

/// The current header.
#[derive(Debug)]
pub(super) struct Header {
    bytes: Vec<u8>,
    /// Whether it is the first or the second one.
    index: usize,
    /// The log's identifier; all zeros for an empty log.
    pub log_id: Guid,
    /// Place and length of the log in bytes.
    pub log: (u64, u64),
}

impl Header {
    /// Reads the valid header with the greater sequence number.
    pub(super) fn read(file: &dyn Device) -> Result<Self, OpenErrorKind> {
        let mut best: Option<(usize, Vec<u8>)> = None;
        for (index, place) in HEADERS.into_iter().enumerate() {
            let bytes = read_range(file, place, HEADER_SIZE).map_err(|_| fault("it is truncated"))?;
            let newer = |best: &(usize, Vec<u8>)| u64_at(&bytes, 8) > u64_at(&best.1, 8);
            if is_valid(&bytes, b"head") && best.as_ref().is_none_or(newer) {
                best = Some((index, bytes));
            }
        }
        let (index, bytes) = best.ok_or_else(|| fault("both of its headers are damaged"))?;
        let version = u16::from_le_bytes([bytes[66], bytes[67]]);
        if version != 1 {
            return Err(fault(format!("its version {version} is not known")));
        }
        let log_id = guid_at(&bytes, 48);
        if log_id != Guid::default() && bytes[64..66] != [0; 2] {
            return Err(fault("the version of its log is not known"));
        }
        let log = (u64_at(&bytes, 72), u32_at(&bytes, 68).into());
        Ok(Self { bytes, index, log_id, log })
    }

    /// Writes both headers: with new identifiers of the file and of its content, and an empty log.
    ///
    /// # Errors
    /// As of [`Device::write_at`] and [`Device::flush`]. One header is valid at any time.
    pub(super) fn renew(&self, file: &dyn Device) -> io::Result<()> {
        let mut bytes = self.bytes.clone();
        let sequence = u64_at(&bytes, 8);
        bytes[16..32].copy_from_slice(&identifier());
        bytes[32..48].copy_from_slice(&identifier());
        bytes[48..64].fill(0);
        for (index, step) in [(1 - self.index, 1), (self.index, 2)] {
            bytes[8..16].copy_from_slice(&sequence.wrapping_add(step).to_le_bytes());
            let sum = checksum(&bytes);
            bytes[4..8].copy_from_slice(&sum.to_le_bytes());
            file.write_at(&bytes, PhysicalAddress(HEADERS[index]))?;
            file.flush()?;
        }
        Ok(())
    }
}
