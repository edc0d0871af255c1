//! Reading the header of a device, and opening a key slot of it.
//!
//! **Invariant**: key material is in memory that is wiped when it is dropped.

use super::header::{FORMAT, KeySlot, LuksHeader, MAGIC, VolumeKey};
use super::sector_cipher::{SectorCipher, UNIT};
use super::{af, luks1, luks2};
use crate::error::{LayerError, Result};
use papilio_device::{Device, PhysicalAddress};
use zeroize::Zeroizing;

/// The most bytes of a slot's material.
const MOST_MATERIAL: usize = 16 << 20;

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
