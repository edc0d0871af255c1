//! Mutations of an image: changes of a few bytes in any checksummed block, chosen by the caller.
//!
//! Owns [`mutate`] and the decoding of bytes into changes, so that a fuzzer's corpus and a seed
//! mean the same.

use crate::BaseImage;
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
    for change in plan.chunks_exact(CHANGE).take(LIMIT) {
        apply(base, &device, change);
    }
    device
}

fn number(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize
}

fn apply(base: &BaseImage, device: &MemoryDevice, change: &[u8]) {
    let blocks = base.blocks();
    let block = blocks[number(&change[0..4]) % blocks.len()];
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
    (position..bytes.len()).chain(0..position).find(|&at| bytes[at] != 0).unwrap_or(position)
}

fn get(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(value)
}

fn set(bytes: &mut [u8], value: u64) {
    bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
}
