//! The header of LUKS version 1: one sector and a half, big-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 8, 40, 72 | 32 each | cipher, mode, hash |
//! | 104 | 4 | start of the data in sectors |
//! | 108 | 4 | bytes of the key |
//! | 112, 132, 164 | 20, 32, 4 | digest of the key, its salt and iterations |
//! | 168 | 40 | UUID |
//! | 208 | 48 each | eight key slots: state, iterations, salt, start in sectors, stripes |

use super::header::{FORMAT, KeyDigest, KeySlot, LuksHeader, checked};
use super::kdf::{Hash, Kdf};
use super::sector_cipher::UNIT;
use crate::bytes::{be32, text};
use crate::error::{LayerError, Result};

const LENGTH: usize = 592;
const SLOTS: u32 = 8;
const SLOT_LENGTH: usize = 48;
const IN_USE: u32 = 0x00ac_71f3;
const NOT_IN_USE: u32 = 0x0000_dead;

/// Parses the header of a device of `size` bytes.
pub(super) fn parse(name: &str, start: &[u8], size: u64) -> Result<LuksHeader> {
    let Some(header) = start.get(..LENGTH) else {
        return Err(LayerError::damaged(name, FORMAT, "the device ends in the header"));
    };
    let hash_name = text(&header[72..104]);
    let hash = Hash::named(&hash_name)
        .ok_or_else(|| LayerError::unsupported(name, FORMAT, format!("the hash {hash_name:?}")))?;
    let cipher = format!("{}-{}", text(&header[8..40]), text(&header[40..72]));
    let key_length = be32(header, 108) as usize;
    let digest = KeyDigest {
        hash,
        iterations: be32(header, 164),
        salt: header[132..164].to_vec(),
        digest: header[112..132].to_vec(),
    };
    let mut slots = Vec::new();
    for number in 0..SLOTS {
        let slot = &header[208 + number as usize * SLOT_LENGTH..][..SLOT_LENGTH];
        match be32(slot, 0) {
            NOT_IN_USE => continue,
            IN_USE => {}
            other => {
                let reason = format!("key slot {number} has the unknown state {other:#x}");
                return Err(LayerError::damaged(name, FORMAT, reason));
            }
        }
        slots.push(KeySlot {
            number,
            priority: 1,
            key_length,
            stripes: be32(slot, 44) as usize,
            hash,
            kdf: Kdf::Pbkdf2 { hash, iterations: be32(slot, 4), salt: slot[8..40].to_vec() },
            material: u64::from(be32(slot, 40)) * UNIT,
            cipher: cipher.clone(),
            cipher_key_length: key_length,
            digest: 0,
        });
    }
    let header = LuksHeader {
        version: 1,
        uuid: text(&header[168..208]),
        label: String::new(),
        cipher,
        sector_size: UNIT as u32,
        is_secondary: false,
        slots,
        data_offset: u64::from(be32(header, 104)) * UNIT,
        data_length: None,
        iv_offset: 0,
        key_length,
        digests: vec![digest],
        data_digest: 0,
    };
    checked(name, header, size)
}
