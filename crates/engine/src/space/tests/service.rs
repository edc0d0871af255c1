//! Block groups that go out of service, the profile of the next chunk, and bounds of free space.

use super::*;
use crate::space::free_space_items;
use papilio_format::{ItemType, Key};

const MIB: u64 = 1 << 20;
const DATA: BlockGroupFlags = BlockGroupFlags::DATA;
const METADATA: BlockGroupFlags = BlockGroupFlags::METADATA;

fn at(mib: u64) -> LogicalAddress {
    LogicalAddress(mib * MIB)
}

fn starts(space: &Space) -> Vec<u64> {
    space.empty_groups().iter().map(|group| group.range.start.0 / MIB).collect()
}

#[test]
fn a_group_that_moves_serves_nothing() {
    let space = space(false);
    add(&space, 0, MIB, DATA);
    add(&space, MIB, MIB, DATA);
    // Unallocated bytes of devices count for metadata only.
    space.set_unallocated(8 * MIB, 1);
    assert!(is_full(space.reserve_data(2 * MIB + 1)));
    let promise = space.reserve_data(MIB).unwrap();
    assert!(!space.begin_relocation(at(7)).unwrap(), "there is no such group");
    assert!(!space.is_relocating(at(0)) && !space.is_relocating(at(7)));
    assert!(space.begin_relocation(at(0)).unwrap());
    assert!(space.is_relocating(at(0)) && !space.is_relocating(at(1)));
    assert_eq!(space.available(SpaceKind::Data), MIB);
    assert!(is_full(space.begin_relocation(at(1))), "the reservation would no longer fit");
    assert!(!space.is_relocating(at(1)));
    space.end_relocation(at(0));
    assert!(!space.is_relocating(at(0)));
    assert_eq!(space.available(SpaceKind::Data), 2 * MIB);
    drop(promise);
    // Without a promise all of them may move, also a full one.
    let all = space.reserve_data(2 * MIB).unwrap();
    assert!(is_full(space.begin_relocation(at(0))));
    drop(all);
    let first = space.allocate(SpaceKind::Data, MIB, MIB).unwrap();
    assert!(space.begin_relocation(first.start).unwrap());
    assert!(space.begin_relocation(at(1 - first.start.0 / MIB)).unwrap());
    assert_eq!(space.available(SpaceKind::Data), 0);
}

#[test]
fn metadata_may_move_to_device_space() {
    let space = space(false);
    add(&space, 0, MIB, METADATA);
    let _promise = space.reserve_metadata(MIB, false).unwrap();
    assert!(is_full(space.begin_relocation(at(0))));
    space.set_unallocated(2 * MIB - 1, 2);
    assert!(is_full(space.begin_relocation(at(0))), "a chunk with two copies needs 2 MiB");
    space.set_unallocated(2 * MIB, 2);
    assert!(space.begin_relocation(at(0)).unwrap());
}

#[test]
fn the_last_group_of_its_flags_stays() {
    let space = space(false);
    for mib in 0..3 {
        add(&space, mib * MIB, MIB, DATA);
    }
    add(&space, 3 * MIB, MIB, METADATA);
    assert_eq!(starts(&space), [0, 1]);
    // One that moved away goes as soon as it is empty, and is none of those that stay.
    assert!(space.begin_relocation(at(0)).unwrap());
    assert_eq!(starts(&space), [0, 1]);
    assert!(space.begin_relocation(at(1)).unwrap());
    assert_eq!(starts(&space), [0, 1]);
    assert!(space.begin_relocation(at(3)).unwrap());
    assert_eq!(starts(&space), [0, 1, 3]);
}

#[test]
fn the_number_of_devices_decides_on_the_profile() {
    let space = space(false);
    add(&space, 0, MIB, METADATA | BlockGroupFlags::RAID1);
    add(&space, MIB, MIB, METADATA | BlockGroupFlags::DUP);
    assert_eq!(space.chunk_flags(SpaceKind::Metadata), METADATA | BlockGroupFlags::DUP);
    space.set_devices(2);
    assert_eq!(space.chunk_flags(SpaceKind::Metadata), METADATA | BlockGroupFlags::RAID1);
    space.set_devices(1);
    assert_eq!(space.chunk_flags(SpaceKind::Metadata), METADATA | BlockGroupFlags::DUP);
}

#[test]
fn a_target_replaces_the_profile() {
    let space = space(false);
    add(&space, 0, MIB, DATA);
    assert!(!space.converts());
    space.set_target(SpaceKind::Data, Some(BlockGroupFlags::DUP));
    assert!(space.converts());
    assert_eq!(space.chunk_flags(SpaceKind::Data), DATA | BlockGroupFlags::DUP);
    assert_eq!(space.available(SpaceKind::Data), 0, "the group of the old profile is out of service");
    space.set_target(SpaceKind::Data, None);
    assert!(!space.converts());
    assert_eq!(space.available(SpaceKind::Data), MIB);
}

#[test]
fn allocations_leave_what_is_promised() {
    let space = space(false);
    add(&space, 0, 4 * SECTOR, DATA);
    let promise = space.reserve_data(SECTOR + 1).unwrap();
    assert!(is_full(space.allocate_unpromised(SECTOR, 4 * SECTOR, 3 * SECTOR)));
    assert!(is_full(space.allocate_unpromised(3 * SECTOR, 4 * SECTOR, 1)));
    // Whole sectors of those that are left.
    let got = space.allocate_unpromised(SECTOR, 4 * SECTOR, SECTOR).unwrap();
    assert_eq!(got.length, 2 * SECTOR);
    assert!(is_full(space.allocate_unpromised(SECTOR, SECTOR, 1)));
    drop(promise);
    assert_eq!(space.allocate_unpromised(SECTOR, 4 * SECTOR, 1).unwrap().length, 2 * SECTOR);
}

#[test]
fn as_little_as_is_wanted_may_be_left() {
    let space = space(false);
    add(&space, 0, 4 * SECTOR, DATA);
    let _promise = space.reserve_data(SECTOR).unwrap();
    assert!(is_full(space.allocate_unpromised(SECTOR, SECTOR, 3 * SECTOR + 1)));
    assert!(space.allocate_unpromised(SECTOR, SECTOR, 3 * SECTOR).is_ok());
}

#[test]
fn writable_bytes_leave_their_metadata() {
    let space = |data: u64, metadata: u64, unallocated: u64| {
        let space = space(false);
        if data > 0 {
            add(&space, 0, data * MIB, DATA);
        }
        add(&space, 1 << 40, metadata * MIB, METADATA);
        space.set_unallocated(unallocated * MIB, 1);
        space
    };
    let need = |base: u64| MetadataNeed { base: base * MIB, data_per_metadata: 3 };
    let bytes = |space: &Space, base: u64| space.writable_bytes(&need(base), 1, 1);
    // Data space is the limit, then metadata space.
    assert_eq!(bytes(&space(10, 4, 0), 0), 10 * MIB);
    assert_eq!(bytes(&space(10, 2, 0), 0), 6 * MIB);
    assert_eq!(bytes(&space(10, 2, 0), 1), 3 * MIB);
    assert_eq!(bytes(&space(10, 2, 0), 3), 0, "the base does not fit");
    // Of 16 MiB of the devices an eighth is not counted on.
    assert_eq!(bytes(&space(10, 100, 16), 0), 24 * MIB);
    // The base takes 4 of 20 MiB; of 14 MiB that are counted on, three parts of four are data.
    assert_eq!(bytes(&space(0, 1, 20), 5), 14 * MIB / 4 * 3);
    // Promises count like a base.
    let promised = space(10, 2, 0);
    let _metadata = promised.reserve_metadata(MIB, false).unwrap();
    let _data = promised.reserve_data(8 * MIB).unwrap();
    assert_eq!(bytes(&promised, 0), 2 * MIB);
    promised.set_global_reserve(MIB);
    assert_eq!(bytes(&promised, 0), 0);
    // Two copies of data and of metadata.
    assert_eq!(space(0, 100, 16).writable_bytes(&need(0), 1, 2), 7 * MIB);
    assert_eq!(space(0, 100, 16).writable_bytes(&need(0), 2, 2), 14 * MIB);
    // Where metadata space is the limit, 14 MiB of the devices are shared. With three copies of
    // data and one of metadata, 9 MiB of data take as much as one of metadata.
    let of_spare = 3 * MIB;
    assert_eq!(space(20, 1, 16).writable_bytes(&need(0), 1, 1), of_spare + 14 * MIB / 4 * 3);
    assert_eq!(space(20, 1, 16).writable_bytes(&need(0), 1, 3), of_spare + 14 * MIB / 3 * 9 / 10);
    assert_eq!(space(20, 1, 16).writable_bytes(&need(0), 2, 1), of_spare + 28 * MIB / 2);
}

#[test]
fn mixed_groups_hold_data_and_its_metadata() {
    let space = space(true);
    add(&space, 0, 8 * MIB, DATA | METADATA);
    space.set_unallocated(16 * MIB, 1);
    let need = MetadataNeed { base: 2 * MIB, data_per_metadata: 4 };
    // The groups keep a part of themselves for inodes.
    let left = MIB / 8;
    assert_eq!(space.writable_bytes(&need, 1, 1), (20 * MIB - left) * 4 / 5);
    let _promise = space.reserve_data(4 * MIB).unwrap();
    space.set_global_reserve(MIB);
    assert_eq!(space.writable_bytes(&need, 1, 1), ((8 + 14 - 4 - 3) * MIB - left) * 4 / 5);
}

#[test]
fn the_only_empty_group_for_data_is_known() {
    let space = space(false);
    add(&space, 0, MIB, DATA);
    add(&space, 4 * MIB, MIB, METADATA);
    assert!(space.is_only_for_data(at(0)));
    assert!(!space.is_only_for_data(at(4)) && !space.is_only_for_data(at(9)));
    let used = space.allocate(SpaceKind::Data, SECTOR, SECTOR).unwrap();
    assert!(!space.is_only_for_data(at(0)), "it is in use");
    space.release(used);
    add(&space, MIB, MIB, DATA);
    assert!(!space.is_only_for_data(at(0)), "another one serves");
    assert!(space.begin_relocation(at(1)).unwrap());
    assert!(space.is_only_for_data(at(0)), "the other one moves");
}

#[test]
fn the_reserve_is_kept() {
    let space = space(false);
    add(&space, 0, MIB, METADATA);
    assert_eq!(space.global_reserve(), 0);
    space.set_global_reserve(3 * NODE);
    assert_eq!(space.global_reserve(), 3 * NODE);
}

#[test]
fn data_of_a_group_that_moves_is_not_overwritten() {
    let space = space(false);
    add(&space, 0, MIB, DATA);
    add(&space, MIB, MIB, DATA);
    assert!(space.is_writable(at(0)) && space.is_writable(LogicalAddress(2 * MIB - 1)));
    assert!(!space.is_writable(at(2)), "there is no such group");
    assert!(space.begin_relocation(at(1)).unwrap());
    assert!(space.is_writable(at(0)) && !space.is_writable(at(1)));
    space.end_relocation(at(1));
    assert!(space.is_writable(at(1)));
}

#[test]
fn items_of_free_space_lie_in_their_group() {
    let group = LogicalRange { start: at(4), length: MIB };
    let end = |start: u64, length: u64| {
        free_space_items::end_in(&Key::new(start, ItemType::FREE_SPACE_EXTENT, length), group).ok()
    };
    assert_eq!(end(4 * MIB, MIB), Some(5 * MIB));
    assert_eq!(end(5 * MIB - 4096, 4096), Some(5 * MIB));
    assert_eq!(end(4 * MIB, 0), None);
    assert_eq!(end(4 * MIB - 4096, 8192), None);
    assert_eq!(end(5 * MIB - 4096, 8192), None);
    assert_eq!(end(u64::MAX, 4096), None);
}

#[test]
fn the_last_bytes_can_be_had() {
    let space = space(false);
    add(&space, 0, MIB, DATA);
    let got = space.allocate_unpromised(4096, MIB, MIB).unwrap();
    assert_eq!((got.start, got.length), (at(0), MIB));
    assert!(is_full(space.allocate_unpromised(4096, 4096, 4096)));
}

#[test]
fn whole_rows_that_are_too_short_are_not_taken() {
    let (space, row) = (space(false), 128 << 10);
    let new = NewBlockGroup { range: range(0, 8 * row), flags: DATA, used: 6 * row + 4096, row };
    // One whole row, and most of the one before.
    space.add_block_group(&new, Some(4096..2 * row), &[]);
    let got = space.allocate(SpaceKind::Data, row + 4096, row + 8192).unwrap();
    assert!(got.length > row, "{got:?}");
}
