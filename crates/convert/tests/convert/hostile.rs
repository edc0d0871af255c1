//! Sources with changed bytes: preparing their conversion neither panics nor writes.
//!
//! Owns [`Sources`]. The fuzz target `convert_source` uses this file, too: its bytes choose a
//! source and the changes, as seeded ones do here.
//!
//! Checksums of XFS and of the superblock of ext match again after a change, so that every other
//! check has its turn. Other checksums of ext depend on the place of a block, so that some of the
//! sources have none.

use papilio_convert::{Conversion, ConvertError, ConvertOptions};
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use std::sync::Arc;

const BLOCK: usize = 4096;
/// Bytes that encode a change.
const CHANGE: usize = 8;
/// The most changes of an input.
const CHANGES: usize = 24;

/// A source, and the blocks that are worth a change.
struct Sound {
    device: MemoryDevice,
    blocks: Vec<u64>,
    /// Bytes of tree blocks that hold its attributes, and for which there is room.
    node_size: u32,
}

/// Sound sources to change.
pub struct Sources(Vec<Sound>);

impl Sources {
    /// Takes these.
    ///
    /// # Panics
    /// If one has no metadata, or cannot be converted.
    pub fn new(devices: Vec<MemoryDevice>) -> Self {
        let sound = |device: MemoryDevice| {
            let blocks: Vec<u64> =
                (0..device.size() / BLOCK as u64).filter(|at| is_metadata(&block(&device, *at))).collect();
            assert!(!blocks.is_empty(), "a source without metadata");
            let copy: Arc<dyn Device> = Arc::new(device.snapshot());
            let fits = |size: &u32| prepare(&copy, *size).is_ok();
            let node_size = [16384, 65536].into_iter().find(fits).expect("a sound source");
            Sound { device, blocks, node_size }
        };
        Self(devices.into_iter().map(sound).collect())
    }

    /// Prepares the conversion of a source that `input` chooses and changes. Returns whether it can
    /// be converted.
    ///
    /// # Panics
    /// If the device has changed.
    pub fn prepare(&self, input: &[u8]) -> bool {
        let [choice, changes @ ..] = input else { return false };
        let sound = &self.0[usize::from(choice / 2) % self.0.len()];
        let changed = sound.device.snapshot();
        for change in changes.chunks_exact(CHANGE).take(CHANGES) {
            // The first blocks have the superblock, groups and roots of trees.
            let number = usize::from(u16::from_le_bytes([change[0], change[1]]));
            let number = if change[2] & 3 == 0 { number % sound.blocks.len().min(8) } else { number };
            let at = sound.blocks[number % sound.blocks.len()];
            let mut bytes = block(&changed, at);
            apply(&mut bytes, change);
            if choice & 1 == 0 {
                reseal(&mut bytes, at);
            }
            changed.write_at(&bytes, PhysicalAddress(at * BLOCK as u64)).expect("the block is inside");
        }
        let before = changed.snapshot();
        let changed = Arc::new(changed);
        let device: Arc<dyn Device> = Arc::clone(&changed) as Arc<dyn Device>;
        let result = prepare(&device, sound.node_size);
        assert!(changed.same_content(&before), "a conversion that was only prepared wrote");
        match result {
            Ok(conversion) => conversion.plan().metadata_room > 0,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }
    }
}

fn prepare(device: &Arc<dyn Device>, node_size: u32) -> Result<Conversion, ConvertError> {
    Conversion::prepare(device, &ConvertOptions::new().node_size(node_size), &mut |_| ())
}

fn block(device: &MemoryDevice, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    device.read_at(&mut bytes, PhysicalAddress(at * BLOCK as u64)).expect("the block is inside");
    bytes
}

/// Whether a block may be metadata: data of the files in these sources has no zeros, or nothing
/// else.
fn is_metadata(bytes: &[u8]) -> bool {
    bytes.contains(&0) && bytes.iter().any(|byte| *byte != 0)
}

/// Changes a block: its position is the third and fourth byte, the kind the fifth.
fn apply(bytes: &mut [u8], change: &[u8]) {
    let wish = usize::from(u16::from_le_bytes([change[3], change[4]])) % BLOCK;
    // Bytes in use have more effect than the zeros behind them.
    let next = bytes[wish..].iter().position(|byte| *byte != 0).map(|more| wish + more);
    let at = if change[5] & 0x80 == 0 { next.unwrap_or(wish) } else { wish };
    match change[5] % 5 {
        0 => bytes[at] ^= 1 << (change[6] % 8),
        1 => bytes[at] = change[6],
        2 => bytes[at] = bytes[at].wrapping_add(change[6] % 9).wrapping_sub(4),
        3 => {
            let end = (at + 4).min(BLOCK);
            bytes[at..end].fill([0, 0xff, 0x7f, 0x80][usize::from(change[6] % 4)]);
        }
        _ => {
            // Another part of the block: plausible bytes at a wrong place.
            let from = usize::from(change[7]) * 16 % (BLOCK - 16);
            let end = (at + 16).min(BLOCK);
            bytes.copy_within(from..from + (end - at), at);
        }
    }
}

/// Gives the structures in a block of XFS, and a superblock of ext, checksums that match.
pub fn reseal(block: &mut [u8], number: u64) {
    let seal = |bytes: &mut [u8], at: usize| {
        bytes[at..at + 4].fill(0);
        let sum = crc32c::crc32c(bytes);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    };
    let magic: [u8; 4] = block[..4].try_into().expect("a block is longer");
    match &magic {
        b"AB3B" | b"AB3C" | b"IAB3" | b"FIB3" | b"RMB3" | b"R3FC" => seal(block, 52),
        b"BMA3" => seal(block, 64),
        b"XDB3" | b"XDD3" | b"XDF3" => seal(block, 4),
        b"XARM" | b"XSLM" => seal(block, 12),
        _ if matches!(u16::from_be_bytes([block[8], block[9]]), 0x3bee | 0x3ebe | 0x3df1 | 0x3dff) => {
            seal(block, 12);
        }
        _ if number == 0 && block[1024 + 0x38..1024 + 0x3a] == [0x53, 0xef] => {
            let sum = !crc32c::crc32c(&block[1024..1024 + 0x3fc]);
            block[1024 + 0x3fc..2048].copy_from_slice(&sum.to_le_bytes());
        }
        _ => {
            for unit in block.chunks_exact_mut(512) {
                let magic: [u8; 4] = unit[..4].try_into().expect("a sector is longer");
                match &magic {
                    b"XFSB" => seal(unit, 224),
                    b"XAGF" => seal(unit, 216),
                    b"XAGI" => seal(unit, 312),
                    b"XAFL" => seal(unit, 32),
                    [b'I', b'N', ..] if unit[4] == 3 => seal(unit, 100),
                    _ => {}
                }
            }
        }
    }
}
