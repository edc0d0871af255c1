//! Finds the one byte of a tree block whose change makes the checksum right.
//!
//! Owns [`Correction`] and [`find`]. Memory and buses flip single bits; such a block has lost
//! nothing. A CRC is linear: the difference of two checksums depends only on the difference of the
//! bytes and on its distance from the end.
//!
//! **Invariant**: a correction is the only one of its block, and the result passes all checks of a
//! tree block, for the pointer that leads to it too.

use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::{ChecksumType, Geometry, Node, NodeExpectation};

/// A byte to change: `bytes[offset] ^= flip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Correction {
    pub(crate) offset: usize,
    pub(crate) flip: u8,
}

/// The polynomial of CRC-32C, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The effect of one byte on a CRC, and the way back from an effect to its byte.
struct Effects {
    of: [u32; 256],
    /// The byte by the highest byte of its effect: each has another one.
    byte: [u8; 256],
}

impl Effects {
    fn new() -> Self {
        let (mut of, mut byte) = ([0; 256], [0; 256]);
        for value in 0..=u8::MAX {
            let effect = (0..8).fold(u32::from(value), |crc, _| (crc >> 1) ^ (POLYNOMIAL * (crc & 1)));
            of[usize::from(value)] = effect;
            byte[(effect >> 24) as usize] = value;
        }
        Self { of, byte }
    }

    /// The only byte that can have this effect.
    fn byte(&self, effect: u32) -> u8 {
        self.byte[(effect >> 24) as usize]
    }

    /// The byte that has this effect, if one has it.
    fn cause(&self, effect: u32) -> Option<u8> {
        let byte = self.byte(effect);
        (self.of[usize::from(byte)] == effect).then_some(byte)
    }

    /// The difference of two CRCs before the last byte, which is the same for both.
    fn one_byte_earlier(&self, difference: u32) -> u32 {
        let byte = self.byte(difference);
        (difference ^ self.of[usize::from(byte)]) << 8 | u32::from(byte)
    }
}

/// Returns the correction of a block that has the wrong checksum; `None` if there is none, if there
/// are several, or if the checksum is no CRC.
pub(super) fn find(bytes: &[u8], expected: &NodeExpectation, geometry: &Geometry) -> Option<Correction> {
    if geometry.checksum_type != ChecksumType::Crc32c {
        return None;
    }
    let number = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let computed = geometry.checksum_type.compute(&bytes[CHECKSUM_SIZE..]);
    let wrong = number(computed.as_bytes()) ^ number(bytes);
    if wrong == 0 {
        return None;
    }
    let passes = |change: &Correction| {
        let mut changed = bytes.to_vec();
        changed[change.offset] ^= change.flip;
        Node::check(&changed, expected, geometry).is_ok()
    };
    // The checksum itself is a candidate, too.
    let mut found: Vec<Correction> = wrong
        .to_le_bytes()
        .into_iter()
        .enumerate()
        .filter(|(byte, flip)| wrong == u32::from(*flip) << (8 * byte))
        .map(|(offset, flip)| Correction { offset, flip })
        .filter(&passes)
        .collect();
    let effects = Effects::new();
    let mut difference = wrong;
    for offset in (CHECKSUM_SIZE..bytes.len()).rev() {
        let change = effects.cause(difference).map(|flip| Correction { offset, flip });
        found.extend(change.filter(&passes));
        difference = effects.one_byte_earlier(difference);
    }
    match found[..] {
        [one] => Some(one),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
    use papilio_format::node::NodeHeader;
    use papilio_format::{Generation, LogicalAddress, Uuid, objectid};

    #[test]
    fn one_flipped_byte_is_found_wherever_it_is() {
        let geometry = Geometry {
            node_size: 4096,
            sector_size: 4096,
            checksum_type: ChecksumType::Crc32c,
            incompat: IncompatFeatures::SUPPORTED,
            compat_ro: CompatRoFeatures::SUPPORTED,
            metadata_uuid: Uuid::from_u128(7),
            generation: Generation(100),
        };
        let address = LogicalAddress(1 << 20);
        let header = NodeHeader {
            csum: [0; 32],
            fsid: geometry.metadata_uuid,
            address,
            flags: 1 | 1 << 56,
            chunk_tree_uuid: Uuid::from_u128(8),
            generation: Generation(90),
            owner: objectid::CSUM_TREE,
            item_count: 0,
            level: 0,
        };
        let mut good = vec![0; 4096];
        good[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
        let sum = geometry.checksum_type.compute(&good[CHECKSUM_SIZE..]);
        good[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
        let expected = NodeExpectation::at(address);
        assert_eq!(find(&good, &expected, &geometry), None);
        for (offset, flip) in [(0, 0x80), (3, 1), (40, 0x5a), (100, 0xff), (2000, 0x10), (4095, 7)] {
            let mut bad = good.clone();
            bad[offset] ^= flip;
            assert_eq!(find(&bad, &expected, &geometry), Some(Correction { offset, flip }));
            // Not in the unused bytes behind the checksum, which no checksum covers.
            bad[(offset + 2048) % 4096] ^= 1;
            assert_eq!(find(&bad, &expected, &geometry), None, "two bytes");
        }
    }
}
