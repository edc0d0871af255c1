//! Fuzzes superblocks: raw bytes, and a valid superblock with bytes overwritten and the checksum
//! repaired. An accepted superblock must encode to the bytes that it was parsed from, and its
//! accessors must keep their promises.
#![no_main]

use libfuzzer_sys::{arbitrary, arbitrary::Arbitrary, fuzz_target};
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, Stripe};
use papilio_format::key::{ItemType, Key};
use papilio_format::superblock::{
    MAGIC, RawSuperblock, SUPERBLOCK_SIZE, SYSTEM_CHUNK_ARRAY_SIZE, superblock_offset,
};
use papilio_format::{ChecksumType, DeviceId, LogicalAddress, PhysicalAddress, Superblock};
use papilio_fuzz::{FSID, GENERATION, Patches, repair};
use std::sync::LazyLock;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    mirror: u8,
    checksum_type: u8,
    patches: Patches,
    /// Parsed as a superblock without changes.
    raw: &'a [u8],
}

/// A valid superblock for each mirror and checksum type.
static VALID: LazyLock<[[Vec<u8>; 4]; 3]> = LazyLock::new(|| {
    std::array::from_fn(|mirror| {
        std::array::from_fn(|kind| valid_superblock(superblock_offset(mirror), ChecksumType::ALL[kind]))
    })
});

fuzz_target!(|input: Input| {
    let offset = superblock_offset(usize::from(input.mirror % 3));
    check_superblock(input.raw, offset);
    let (mirror, checksum_type) = (usize::from(input.mirror % 3), usize::from(input.checksum_type % 4));
    let mut bytes = VALID[mirror][checksum_type].clone();
    input.patches.apply(&mut bytes);
    if let Ok(superblock) = Superblock::parse_unverified(&bytes) {
        repair(superblock.checksum_type(), &mut bytes);
    }
    check_superblock(&bytes, offset);
    if input.patches.is_empty() {
        Superblock::parse(&bytes, offset).expect("the unchanged superblock is valid");
    }
});

fn check_superblock(bytes: &[u8], offset: PhysicalAddress) {
    let Ok(superblock) = Superblock::parse(bytes, offset) else { return };
    let encoded = superblock.to_bytes(offset);
    assert_eq!(encoded[CHECKSUM_SIZE..], bytes[CHECKSUM_SIZE..SUPERBLOCK_SIZE]);
    let again = Superblock::parse(&encoded, offset).expect("an encoded superblock parses");
    assert_eq!(again.geometry(), superblock.geometry());
    let geometry = superblock.geometry();
    assert!(geometry.sector_size.is_power_of_two() && geometry.node_size.is_power_of_two());
    assert!(geometry.sector_size >= 4096 && geometry.node_size <= 65536);
    assert!(geometry.node_size >= geometry.sector_size);
    assert!(superblock.label().len() <= 256);
    let chunks = superblock.system_chunks().expect("an accepted superblock has valid system chunks");
    assert!(!chunks.is_empty() && chunks.len() < SYSTEM_CHUNK_ARRAY_SIZE / Key::SIZE);
    papilio_fuzz::format_nowhere(&superblock);
}

fn valid_superblock(offset: PhysicalAddress, checksum_type: ChecksumType) -> Vec<u8> {
    let mut raw = RawSuperblock::parse(&[0; SUPERBLOCK_SIZE]).expect("any bytes parse as a raw superblock");
    raw.fsid = FSID;
    raw.bytenr = offset;
    raw.magic = MAGIC;
    raw.generation = GENERATION;
    raw.root = LogicalAddress(0x1d0_0000);
    raw.chunk_root = LogicalAddress(0x150_0000);
    raw.chunk_root_generation = GENERATION;
    raw.total_bytes = 1 << 30;
    raw.bytes_used = 1 << 20;
    raw.root_dir_objectid = 6;
    raw.num_devices = 1;
    raw.sector_size = 4096;
    raw.node_size = 16384;
    raw.leaf_size = 16384;
    raw.stripe_size = 4096;
    raw.csum_type = checksum_type as u16;
    raw.dev_item.devid = DeviceId(1);
    raw.dev_item.fsid = FSID;
    raw.dev_item.uuid = FSID;
    let stripe = Stripe { devid: DeviceId(1), offset: PhysicalAddress(0x150_0000), device_uuid: FSID };
    let chunk = ChunkItem {
        length: 8 << 20,
        owner: 2,
        stripe_length: 65536,
        flags: BlockGroupFlags::SYSTEM,
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: 1,
        stripes: vec![stripe],
    };
    let mut array = Key::new(256, ItemType::CHUNK_ITEM, 0x150_0000).to_bytes().to_vec();
    array.extend(chunk.to_bytes());
    raw.sys_chunk_array[..array.len()].copy_from_slice(&array);
    raw.sys_chunk_array_size = array.len() as u32;
    let mut bytes = raw.to_bytes().to_vec();
    repair(checksum_type, &mut bytes);
    bytes
}
