//! `LuksHeader`: the fields that both versions have.
//!
//! **Invariants**
//! - A key is in memory that is wiped when it is dropped, and in no message.
//! - A header's places lie inside the device before they are read, and sizes have bounds.

use super::kdf::{Hash, Kdf};
use crate::error::{LayerError, Result};
use std::fmt;
use zeroize::Zeroizing;

/// The format's name in messages.
pub(super) const FORMAT: &str = "LUKS";
/// The magic number of a header.
pub(super) const MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
/// The most bytes of a key.
pub(super) const LONGEST_KEY: usize = 512;

/// The key of a volume's data, which is wiped when it is dropped.
#[derive(Clone)]
pub struct VolumeKey(pub(super) Zeroizing<Vec<u8>>);

impl fmt::Debug for VolumeKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "VolumeKey({} bits)", self.0.len() * 8)
    }
}

/// A key slot in use.
#[derive(Clone, Debug)]
pub struct KeySlot {
    /// The slot's number.
    pub number: u32,
    /// 2 is tried first, then 1; 0 only if the caller names the slot.
    pub priority: u8,
    pub(super) key_length: usize,
    pub(super) stripes: usize,
    pub(super) hash: Hash,
    pub(super) kdf: Kdf,
    /// Bytes from the start of the header's device.
    pub(super) material: u64,
    pub(super) cipher: String,
    pub(super) cipher_key_length: usize,
    pub(super) digest: usize,
}

/// The digest that says whether a key is right.
#[derive(Clone, Debug)]
pub(super) struct KeyDigest {
    pub(super) hash: Hash,
    pub(super) iterations: u32,
    pub(super) salt: Vec<u8>,
    pub(super) digest: Vec<u8>,
}

/// The header of an encrypted volume.
#[derive(Clone, Debug)]
pub struct LuksHeader {
    /// 1 or 2.
    pub version: u16,
    /// The UUID as text.
    pub uuid: String,
    /// The label of version 2.
    pub label: String,
    /// The cipher of the data, such as `aes-xts-plain64`.
    pub cipher: String,
    /// Bytes of an encrypted sector.
    pub sector_size: u32,
    /// Whether the first header of version 2 was bad, and the second was taken.
    pub is_secondary: bool,
    /// The key slots in use, by number.
    pub slots: Vec<KeySlot>,
    /// Bytes from the start of the data's device to the data.
    pub(super) data_offset: u64,
    /// Bytes of the data; `None` for all that follow.
    pub(super) data_length: Option<u64>,
    /// Added to the number of a sector's unit.
    pub(super) iv_offset: u64,
    pub(super) key_length: usize,
    pub(super) digests: Vec<KeyDigest>,
    /// The digest of the data's key.
    pub(super) data_digest: usize,
}

/// Checks the parts of a header that both versions have.
pub(super) fn checked(name: &str, header: LuksHeader, size: u64) -> Result<LuksHeader> {
    let bad = |reason: String| Err(LayerError::damaged(name, FORMAT, reason));
    if !(1..=LONGEST_KEY).contains(&header.key_length) {
        return bad(format!("a key of {} bytes", header.key_length));
    }
    for digest in &header.digests {
        let costs = Kdf::Pbkdf2 { hash: digest.hash, iterations: digest.iterations, salt: Vec::new() };
        if let Some(fault) = costs.fault() {
            return bad(format!("a digest has {fault}"));
        }
        if !(1..=64).contains(&digest.digest.len()) {
            return bad(format!("a digest of {} bytes", digest.digest.len()));
        }
    }
    for slot in &header.slots {
        let number = slot.number;
        if let Some(fault) = slot.kdf.fault() {
            return bad(format!("key slot {number} has {fault}"));
        }
        let length = (slot.key_length as u64).checked_mul(slot.stripes as u64);
        let end = length.and_then(|length| slot.material.checked_add(length));
        let keys = 1..=LONGEST_KEY;
        if !keys.contains(&slot.key_length)
            || !keys.contains(&slot.cipher_key_length)
            || !(1..=100_000).contains(&slot.stripes)
            || end.is_none_or(|end| end > size)
        {
            return bad(format!("key slot {number} reaches past the end, or has an impossible size"));
        }
    }
    Ok(header)
}
