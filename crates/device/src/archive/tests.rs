//! The mapping of chunks backwards, for every profile.

use super::map::ArchiveMap;
use super::place::{Place, StripeTable, add_column};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, STRIPE_LENGTH, Stripe};
use papilio_format::items::device::DeviceItem;
use papilio_format::{DeviceId, Generation, LogicalAddress, PhysicalAddress, Uuid};
use std::collections::BTreeMap;

const START: u64 = 1 << 30;
const ROWS: u64 = 6;

fn item(devid: u64) -> DeviceItem {
    DeviceItem {
        devid: DeviceId(devid),
        total_bytes: 1 << 30,
        bytes_used: 0,
        io_align: 4096,
        io_width: 4096,
        sector_size: 4096,
        device_type: 0,
        generation: Generation(0),
        start_offset: 0,
        dev_group: 0,
        seek_speed: 0,
        bandwidth: 0,
        uuid: Uuid::nil(),
        fsid: Uuid::nil(),
    }
}

/// Returns a map with one chunk, whose stripe `n` starts at `n` MiB of device `n`, from 1 on.
fn map(flags: BlockGroupFlags, stripes: u64, columns: u64) -> ArchiveMap {
    let stripe = |number: u64| Stripe {
        devid: DeviceId(number),
        offset: PhysicalAddress(number << 20),
        device_uuid: Uuid::nil(),
    };
    let chunk = ChunkItem {
        length: columns * ROWS * STRIPE_LENGTH,
        owner: 2,
        stripe_length: STRIPE_LENGTH,
        flags: BlockGroupFlags::DATA | flags,
        io_align: 4096,
        io_width: 4096,
        sector_size: 4096,
        sub_stripes: 2,
        stripes: (1..=stripes).map(stripe).collect(),
    };
    let devices = (1..=stripes).map(item).collect();
    ArchiveMap::without_superblock(devices, vec![(LogicalAddress(START), chunk)])
}

/// Returns what each element of each row holds, by stripe: the number of a data element, or P, or
/// Q.
fn table(map: &ArchiveMap, stripes: usize) -> Vec<Vec<String>> {
    let row = |row: u64| {
        let element = |device: usize| {
            let offset = ((device as u64 + 1) << 20) + row * STRIPE_LENGTH + 5;
            let (place, length) = StripeTable::new(map, device).find(map, offset, 1 << 20);
            match place {
                Place::Logical(address) => ((address - START - 5) / STRIPE_LENGTH).to_string(),
                Place::Parity { first, columns, q } => {
                    assert_eq!((first - START - 5) / STRIPE_LENGTH, row * columns as u64);
                    assert_eq!(length, STRIPE_LENGTH - 5);
                    if q { "Q" } else { "P" }.to_owned()
                }
                Place::Free => "free".to_owned(),
            }
        };
        (0..stripes).map(element).collect()
    };
    (0..ROWS).map(row).collect()
}

#[test]
fn every_profile_is_found_backwards() {
    let shown = |flags, stripes: u64, columns, rows: usize| {
        let map = map(flags, stripes, columns);
        table(&map, stripes as usize)[..rows].iter().map(|row| row.join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(shown(BlockGroupFlags::empty(), 1, 1, 3), ["0", "1", "2"]);
    assert_eq!(shown(BlockGroupFlags::RAID1, 2, 1, 2), ["0 0", "1 1"]);
    assert_eq!(shown(BlockGroupFlags::RAID0, 3, 3, 2), ["0 1 2", "3 4 5"]);
    assert_eq!(shown(BlockGroupFlags::RAID10, 4, 2, 2), ["0 0 1 1", "2 2 3 3"]);
    assert_eq!(shown(BlockGroupFlags::RAID5, 3, 2, 4), ["0 1 P", "P 2 3", "5 P 4", "6 7 P"]);
    assert_eq!(shown(BlockGroupFlags::RAID6, 4, 2, 3), ["0 1 P Q", "Q 2 3 P", "P Q 4 5"]);
}

#[test]
fn what_no_stripe_has_is_free() {
    let map = map(BlockGroupFlags::RAID1, 2, 1);
    let stripes = StripeTable::new(&map, 0);
    assert_eq!(stripes.find(&map, 0, 5), (Place::Free, 5));
    assert_eq!(stripes.find(&map, (1 << 20) - 3, 100), (Place::Free, 3));
    let end = (1 << 20) + ROWS * STRIPE_LENGTH;
    assert_eq!(stripes.find(&map, end - 1, 100), (Place::Logical(START + ROWS * STRIPE_LENGTH - 1), 1));
    assert_eq!(stripes.find(&map, end, 100), (Place::Free, 100));
}

#[test]
fn parity_is_that_of_raid6() {
    // D0 + D1 + D2, and D0 + 2 D1 + 4 D2 in the field with the polynomial 0x11d.
    let columns = [0x11_u8, 0x80, 0xc3];
    let sums: BTreeMap<bool, u8> = [false, true]
        .map(|q| {
            let mut sum = [0];
            columns.iter().rev().for_each(|column| add_column(&mut sum, &[*column], q));
            (q, sum[0])
        })
        .into();
    assert_eq!(sums[&false], 0x11 ^ 0x80 ^ 0xc3);
    let double = |byte: u8| (byte << 1) ^ if byte & 0x80 == 0 { 0 } else { 0x1d };
    assert_eq!(sums[&true], 0x11 ^ double(0x80) ^ double(double(0xc3)));
}
