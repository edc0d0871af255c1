//! Mutations of an image: changes of a few bytes in any checksummed block, chosen by the caller.
//!
//! Owns [`mutate`], [`change`] with [`change_back`], and the decoding of bytes into changes, so
//! that a fuzzer's corpus and a seed mean the same.

use crate::base_image::{BaseImage, Block, first_nonzero};
use papilio_device::{Device, MemoryDevice};

/// Bytes that encode one change.
const CHANGE: usize = 16;
/// Maximum number of changes per image.
const LIMIT: usize = 32;

/// Boundary values.
const EDGES: [u64; 12] = [
    0,
    1,
    255,
    256,
    4096,
    u16::MAX as u64,
    u32::MAX as u64,
    1 << 31,
    1 << 48,
    i64::MAX as u64,
    u64::MAX - 4095,
    u64::MAX,
];

/// Returns a copy of `base` with the changes that `plan` encodes, and with valid checksums.
///
/// Each change takes 16 bytes: the block (4), the position in it (4, modulo its size), the kind of
/// change (1), the choice of position, width and boundary value (1 each), and a value (4).
pub fn mutate(base: &BaseImage, plan: &[u8]) -> MemoryDevice {
    let device = base.copy();
    change(base, &device, plan);
    device
}

/// Makes the changes that `plan` encodes on a copy of `base`, as [`mutate`] does.
pub fn change(base: &BaseImage, device: &MemoryDevice, plan: &[u8]) {
    for change in changes(plan) {
        apply(base, device, change);
    }
}

/// Takes the changes that `plan` encodes back on a device with them.
pub fn change_back(base: &BaseImage, device: &MemoryDevice, plan: &[u8]) {
    for change in changes(plan) {
        base.restore(device, block_of(base, change));
    }
}

fn changes(plan: &[u8]) -> impl Iterator<Item = &[u8]> {
    plan.chunks_exact(CHANGE).take(LIMIT)
}

/// Returns the block that a change is in.
fn block_of(base: &BaseImage, change: &[u8]) -> Block {
    let blocks = base.blocks();
    blocks[number(&change[0..4]) % blocks.len()]
}

fn number(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize
}

fn apply(base: &BaseImage, device: &MemoryDevice, change: &[u8]) {
    let block = block_of(base, change);
    let mut bytes = vec![0; block.size];
    device.read_at(&mut bytes, block.offset).expect("the block was found when the image was loaded");
    let position = position_in(&bytes, number(&change[4..8]), change[9]);
    let value = number(&change[12..16]) as u64;
    let width = 1usize << (change[10] % 4);
    let end = (position + width).min(bytes.len());
    let target = &mut bytes[position..end];
    match change[8] % 6 {
        0 => target[0] ^= 1 << (value % 8),
        1 => target[0] = value as u8,
        2 => set(target, EDGES[usize::from(change[11]) % EDGES.len()]),
        3 => {
            let old = get(target);
            set(target, old.wrapping_add((value % 33).wrapping_sub(16)));
        }
        4 => set(target, value),
        _ => {
            // Copies another part of the block: plausible bytes in the wrong location.
            let from = number(&change[12..16]) % (bytes.len() - 32);
            let piece = bytes[from..from + 32].to_vec();
            let end = (position + 32).min(bytes.len());
            bytes[position..end].copy_from_slice(&piece[..end - position]);
        }
    }
    base.repair(&mut bytes);
    device.write_at(&bytes, block.offset).expect("the block lies within the device");
}

/// Returns a position in the block, most often of a nonzero byte, where a change has an effect.
fn position_in(bytes: &[u8], wish: usize, how: u8) -> usize {
    let position = wish % bytes.len();
    if how.is_multiple_of(8) {
        return position;
    }
    let behind = first_nonzero(&bytes[position..]).map(|at| position + at);
    behind.or_else(|| first_nonzero(&bytes[..position])).unwrap_or(position)
}

fn get(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(value)
}

fn set(bytes: &mut [u8], value: u64) {
    bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_byte_that_is_not_zero_is_chosen() {
        let mut bytes = vec![0; 1000];
        assert_eq!(position_in(&bytes, 700, 1), 700);
        for at in [0, 255, 256, 600, 999] {
            bytes.fill(0);
            bytes[at] = 7;
            for wish in [0, at, 700, 1999] {
                assert_eq!(position_in(&bytes, wish, 1), at, "{wish}");
                assert_eq!(position_in(&bytes, wish, 8), wish % 1000);
            }
        }
        bytes[300] = 1;
        assert_eq!((position_in(&bytes, 301, 1), position_in(&bytes, 200, 1)), (999, 300));
    }
}
