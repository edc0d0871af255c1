//! Helpers: superblocks of md as mdadm writes them.

use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use std::sync::Arc;

pub const DATA_OFFSET: u64 = 1 << 20;

/// The shape of an array.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub level: i32,
    pub layout: u32,
    pub members: u32,
    /// Bytes.
    pub chunk: u64,
    /// Bytes of each member.
    pub data: u64,
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Returns a superblock of version 1.2 of member `number`.
pub fn superblock(shape: &Shape, number: u32, events: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    put(&mut bytes, 0, &0xa92b_4efc_u32.to_le_bytes());
    put(&mut bytes, 4, &1_u32.to_le_bytes());
    // The layout of a RAID 0 array is a feature.
    let features: u32 = if shape.level == 0 { 4096 } else { 0 };
    put(&mut bytes, 8, &features.to_le_bytes());
    put(&mut bytes, 16, b"array of a test!");
    put(&mut bytes, 32, b"any:test");
    put(&mut bytes, 72, &shape.level.to_le_bytes());
    put(&mut bytes, 76, &shape.layout.to_le_bytes());
    let component = if matches!(shape.level, -1 | 0) { 0 } else { shape.data / 512 };
    put(&mut bytes, 80, &component.to_le_bytes());
    put(&mut bytes, 88, &((shape.chunk / 512) as u32).to_le_bytes());
    put(&mut bytes, 92, &shape.members.to_le_bytes());
    put(&mut bytes, 128, &(DATA_OFFSET / 512).to_le_bytes());
    put(&mut bytes, 136, &(shape.data / 512).to_le_bytes());
    put(&mut bytes, 144, &8_u64.to_le_bytes());
    put(&mut bytes, 160, &number.to_le_bytes());
    put(&mut bytes, 200, &events.to_le_bytes());
    put(&mut bytes, 208, &u64::MAX.to_le_bytes());
    put(&mut bytes, 220, &shape.members.to_le_bytes());
    for member in 0..shape.members {
        put(&mut bytes, 256 + 2 * member as usize, &(member as u16).to_le_bytes());
    }
    sign(&mut bytes);
    bytes
}

/// Sets the checksum of a superblock.
pub fn sign(bytes: &mut [u8]) {
    bytes[216..220].fill(0);
    let roles = u32::from_le_bytes(bytes[220..224].try_into().unwrap()) as usize;
    let summed = &bytes[..256 + 2 * roles];
    let (words, rest) = summed.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
    if let [low, high] = rest {
        sum += u64::from(u16::from_le_bytes([*low, *high]));
    }
    let sum = (sum as u32).wrapping_add((sum >> 32) as u32);
    bytes[216..220].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the members of a new array.
pub fn members(shape: &Shape) -> Vec<Arc<dyn Device>> {
    let member = |number| {
        let device = MemoryDevice::new(DATA_OFFSET + shape.data);
        device.write_at(&superblock(shape, number, 10), PhysicalAddress(4096)).unwrap();
        Arc::new(device) as Arc<dyn Device>
    };
    (0..shape.members).map(member).collect()
}
