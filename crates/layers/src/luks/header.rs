//! `LuksHeader`: what both versions have in common, and opening a key slot.
//!
//! **Invariants**
//! - Key material is in memory that is wiped when it is dropped, and in no message.
//! - A header's places lie inside the device before they are read, and sizes have bounds.

use super::kdf::{Hash, Kdf};
use super::sector_cipher::{SectorCipher, UNIT};
use super::{af, luks1, luks2};
use crate::error::{LayerError, Result};
use papilio_device::{Device, PhysicalAddress};
use std::fmt;
use zeroize::Zeroizing;

/// The format's name in messages.
pub(super) const FORMAT: &str = "LUKS";
/// The magic number of a header.
pub(super) const MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
/// The most bytes of a key.
pub(super) const LONGEST_KEY: usize = 512;
/// The most bytes of a slot's material.
const MOST_MATERIAL: usize = 16 << 20;

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

impl LuksHeader {
    /// Returns whether a device starts with a header, or has the second one of version 2.
    pub fn is_at(device: &dyn Device) -> bool {
        let mut magic = [0; 8];
        let is_first = device.read_at(&mut magic, PhysicalAddress(0)).is_ok() && magic.starts_with(MAGIC);
        is_first || luks2::secondary_of(device).is_some()
    }

    /// Reads the header at the start of a device.
    ///
    /// # Errors
    /// A damaged header, or a feature that is not supported.
    pub fn read(device: &dyn Device) -> Result<Self> {
        let mut start = vec![0; 4096.min(usize::try_from(device.size()).unwrap_or(4096))];
        device.read_at(&mut start, PhysicalAddress(0)).map_err(LayerError::io(device.name()))?;
        let version = crate::bytes::be16(&start, 6);
        match (start.starts_with(MAGIC), version) {
            (true, 1) => luks1::parse(device.name(), &start, device.size()),
            (true, 2) | (false, _) => luks2::read(device),
            (true, other) => Err(LayerError::unsupported(device.name(), FORMAT, format!("version {other}"))),
        }
    }

    /// Opens a key slot with a secret, and returns the key of the data. Slots are tried by
    /// priority, then by number.
    ///
    /// # Errors
    /// A slot that cannot be read; [`LayerError::WrongKey`] if none opens.
    pub fn unlock(
        &self,
        device: &dyn Device,
        secret: &[u8],
        slot: Option<u32>,
        source_name: &'static str,
    ) -> Result<VolumeKey> {
        let mut slots: Vec<&KeySlot> = self
            .slots
            .iter()
            .filter(|candidate| match slot {
                Some(number) => candidate.number == number,
                None => candidate.priority > 0,
            })
            .collect();
        slots.sort_by_key(|slot| (std::cmp::Reverse(slot.priority), slot.number));
        let mut fault = None;
        for slot in slots {
            match self.open_slot(device, slot, secret) {
                Ok(Some(key)) => return Ok(key),
                Ok(None) => {}
                // Another slot may open.
                Err(error) => fault = Some(error),
            }
        }
        Err(fault.unwrap_or(LayerError::WrongKey { device: device.name().to_owned(), source_name }))
    }

    /// Returns whether a key is that of the data.
    pub(crate) fn is_key(&self, key: &VolumeKey) -> bool {
        self.digests.get(self.data_digest).is_some_and(|digest| {
            let found = digest.hash.pbkdf2(&key.0, &digest.salt, digest.iterations, digest.digest.len());
            found[..] == digest.digest[..]
        })
    }

    /// Returns the key if the secret opens the slot.
    fn open_slot(&self, device: &dyn Device, slot: &KeySlot, secret: &[u8]) -> Result<Option<VolumeKey>> {
        let name = device.name();
        let length = slot.key_length.checked_mul(slot.stripes).filter(|length| *length <= MOST_MATERIAL);
        let length = length.ok_or_else(|| LayerError::damaged(name, FORMAT, "a key slot is too large"))?;
        let rounded = length.next_multiple_of(UNIT as usize);
        let mut material = Zeroizing::new(vec![0; rounded]);
        device.read_at(&mut material, PhysicalAddress(slot.material)).map_err(LayerError::io(name))?;
        let slot_key = slot.kdf.derive(name, secret, slot.cipher_key_length)?;
        let cipher = SectorCipher::new(&slot.cipher, &slot_key)
            .map_err(|feature| LayerError::unsupported(name, FORMAT, feature))?;
        cipher.decrypt(&mut material, UNIT as usize, 0);
        let key = af::merge(&material, slot.key_length, slot.stripes, slot.hash)
            .ok_or_else(|| LayerError::damaged(name, FORMAT, "a key slot has no key material"))?;
        let Some(digest) = self.digests.get(slot.digest) else { return Ok(None) };
        let found = digest.hash.pbkdf2(&key, &digest.salt, digest.iterations, digest.digest.len());
        let is_right = found[..] == digest.digest[..] && slot.digest == self.data_digest;
        Ok(is_right.then_some(VolumeKey(key)))
    }
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
