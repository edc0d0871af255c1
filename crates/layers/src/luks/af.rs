//! The anti-forensic merge: a key that is spread over many sectors.
//!
//! Source: "LUKS On-Disk Format Specification" 1.2.3, section 2.4.

use super::kdf::Hash;
use zeroize::Zeroizing;

/// Merges `stripes` stripes of `length` bytes to the key. `None` if the material is too short.
pub(super) fn merge(
    material: &[u8],
    length: usize,
    stripes: usize,
    hash: Hash,
) -> Option<Zeroizing<Vec<u8>>> {
    let material = material.get(..length.checked_mul(stripes)?)?;
    if length == 0 || stripes == 0 {
        return None;
    }
    let (last, others) = material
        .chunks_exact(length)
        .collect::<Vec<_>>()
        .split_last()
        .map(|(last, others)| (*last, others.to_vec()))?;
    let mut block = Zeroizing::new(vec![0; length]);
    for stripe in others {
        block.iter_mut().zip(stripe).for_each(|(byte, other)| *byte ^= other);
        diffuse(&mut block, hash);
    }
    block.iter_mut().zip(last).for_each(|(byte, other)| *byte ^= other);
    Some(block)
}

/// Replaces each piece of a digest's length by the digest of its number and itself.
fn diffuse(block: &mut [u8], hash: Hash) {
    for (number, piece) in (0_u32..).zip(block.chunks_mut(hash.length())) {
        let digest = hash.digest(&[&number.to_be_bytes(), piece]);
        piece.copy_from_slice(&digest[..piece.len()]);
    }
}
