//! Images that were made by hand, whole, cut and damaged.

use super::layout::crc;
use super::{PartcloneDevice, PartcloneLayout, PartcloneReader};
use crate::device::Device;
use crate::memory::MemoryDevice;
use papilio_format::PhysicalAddress;
use std::sync::Arc;

const BLOCK: usize = 512;

fn is_used(block: usize) -> bool {
    !block.is_multiple_of(3)
}

fn block(number: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| (at * 7 + number * 13) as u8).collect()
}

/// Returns an image of version 2 with `blocks` blocks and a checksum for each `per` blocks.
fn version_2(blocks: usize, per: u32, file_system: &[u8; 5]) -> Vec<u8> {
    let mut image = b"partclone-image\x000.3.23\0\0\0\0\0\0\0\x000002\xde\xc0".to_vec();
    image.extend_from_slice(file_system);
    image.resize(52, 0);
    let used = (0..blocks).filter(|block| is_used(*block)).count() as u64;
    for number in [(blocks * BLOCK) as u64, blocks as u64, used, used] {
        image.extend_from_slice(&number.to_le_bytes());
    }
    image.extend_from_slice(&(BLOCK as u32).to_le_bytes());
    image.extend_from_slice(&18_u32.to_le_bytes());
    for number in [2_u16, 64, if per == 0 { 0 } else { 0x20 }, if per == 0 { 0 } else { 4 }] {
        image.extend_from_slice(&number.to_le_bytes());
    }
    image.extend_from_slice(&per.to_le_bytes());
    image.extend_from_slice(&[1, 1]);
    let sum = crc(&image);
    image.extend_from_slice(&sum.to_le_bytes());
    let mut bitmap = vec![0_u8; blocks.div_ceil(8)];
    (0..blocks).filter(|block| is_used(*block)).for_each(|block| bitmap[block / 8] |= 1 << (block % 8));
    image.extend_from_slice(&bitmap);
    image.extend_from_slice(&crc(&bitmap).to_le_bytes());
    let all: Vec<_> = (0..blocks).filter(|block| is_used(*block)).map(block).collect();
    for group in all.chunks(if per == 0 { usize::MAX } else { per as usize }) {
        let bytes = group.concat();
        image.extend_from_slice(&bytes);
        if per > 0 {
            image.extend_from_slice(&crc(&bytes).to_le_bytes());
        }
    }
    image
}

fn version_1(blocks: usize) -> Vec<u8> {
    let mut image = b"partclone-imageBTRFS\0\0\0\0\0\0\0\0\0\x000001\0\0".to_vec();
    image.extend_from_slice(&(BLOCK as u32).to_le_bytes());
    let used = (0..blocks).filter(|block| is_used(*block)).count() as u64;
    for number in [(blocks * BLOCK) as u64, blocks as u64, used] {
        image.extend_from_slice(&number.to_le_bytes());
    }
    image.resize(4160, 0);
    image.extend((0..blocks).map(|block| u8::from(is_used(block))));
    image.extend_from_slice(b"BiTmAgIc");
    for number in (0..blocks).filter(|block| is_used(*block)) {
        image.extend_from_slice(&block(number));
        image.extend_from_slice(b"sum?");
    }
    image
}

fn expected(blocks: usize) -> Vec<u8> {
    (0..blocks).flat_map(|number| if is_used(number) { block(number) } else { vec![0; BLOCK] }).collect()
}

fn device(image: &[u8]) -> Result<PartcloneDevice, String> {
    let file = MemoryDevice::new(image.len() as u64);
    file.write_at(image, PhysicalAddress(0)).unwrap();
    PartcloneDevice::open(Arc::new(file)).map_err(|error| error.to_string())
}

/// Reads all of an image in order.
fn in_order(image: &[u8]) -> Result<Vec<u8>, String> {
    let mut reader = PartcloneReader::new(image, "image").map_err(|error| error.to_string())?;
    let mut bytes = vec![0; reader.layout().device_size() as usize];
    while let Some((places, blocks)) = reader.next_blocks().map_err(|error| error.to_string())? {
        for (place, block) in places.iter().zip(blocks.chunks_exact(BLOCK)) {
            bytes[*place as usize..*place as usize + BLOCK].copy_from_slice(block);
        }
    }
    Ok(bytes)
}

#[test]
fn both_versions_are_read_at_any_place_and_in_order() {
    const BLOCKS: usize = 9001;
    let expected = expected(BLOCKS);
    let images = [0, 1, 7, 64].map(|per| version_2(BLOCKS, per, b"BTRFS"));
    for image in images.iter().chain([&version_1(BLOCKS)]) {
        assert!(in_order(image).unwrap() == expected);
        let device = device(image).unwrap();
        assert_eq!(device.size() as usize, BLOCKS * BLOCK);
        for (start, length) in [(0, 1), (511, 2), (5000, 30_000), (9000 * BLOCK, BLOCK), (0, BLOCKS * BLOCK)]
        {
            let mut bytes = vec![1; length];
            device.read_at(&mut bytes, PhysicalAddress(start as u64)).unwrap();
            assert!(bytes == expected[start..start + length], "{start} {length}");
        }
        assert!(device.read_at(&mut [0; 2], PhysicalAddress((BLOCKS * BLOCK) as u64 - 1)).is_err());
        assert!(device.write_at(&[0], PhysicalAddress(0)).is_err());
    }
}

#[test]
fn cut_images_are_refused() {
    for image in [version_2(50, 4, b"BTRFS"), version_2(50, 0, b"BTRFS"), version_1(50)] {
        for length in (0..image.len() - 4).step_by(997).chain([image.len() - 5]) {
            assert!(in_order(&image[..length]).is_err(), "{length}");
            assert!(device(&image[..length]).is_err(), "{length}");
        }
    }
}

#[test]
fn damage_is_found() {
    let image = version_2(50, 4, b"BTRFS");
    for at in (0..image.len()).step_by(61) {
        let mut damaged = image.clone();
        damaged[at] ^= 0x10;
        assert!(in_order(&damaged).is_err(), "byte {at}");
        let read = device(&damaged).map(|device| {
            let mut bytes = vec![0; device.size() as usize];
            device.read_at(&mut bytes, PhysicalAddress(0)).is_err()
        });
        assert_ne!(read, Ok(false), "byte {at}");
    }
    assert!(in_order(&version_2(5, 0, b"EXTFS")).unwrap_err().contains("EXTFS"));
}

/// The header that partclone 0.3.23 wrote for a device of 256 MiB.
const REAL: [u8; 110] = [
    0x70, 0x61, 0x72, 0x74, 0x63, 0x6c, 0x6f, 0x6e, 0x65, 0x2d, 0x69, 0x6d, 0x61, 0x67, 0x65, 0, 0x30, 0x2e,
    0x33, 0x2e, 0x32, 0x33, 0, 0, 0, 0, 0, 0, 0, 0, 0x30, 0x30, 0x30, 0x32, 0xde, 0xc0, 0x42, 0x54, 0x52,
    0x46, 0x53, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0x64,
    0x01, 0, 0, 0, 0, 0, 0, 0xb1, 0x02, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0x12, 0, 0, 0, 0x02, 0, 0x40, 0,
    0x20, 0, 0x04, 0, 0x40, 0, 0, 0, 0x01, 0x01, 0xe7, 0xcc, 0xc5, 0x5e,
];

#[test]
fn a_header_of_partclone_itself_has_the_fields_in_their_places() {
    let made = version_2(16384, 64, b"BTRFS");
    assert_eq!(crc(&REAL[..106]).to_le_bytes(), REAL[106..]);
    for range in [0..16, 30..52, 60..68, 88..106] {
        assert_eq!(made[range.clone()], REAL[range.clone()], "{range:?}");
    }
    let layout = PartcloneLayout::read(&mut &[&REAL[..], &[0; 2048]].concat()[..], "real");
    // It gets as far as the bitmap, whose checksum is missing.
    assert!(layout.unwrap_err().to_string().contains("cut"));
}
