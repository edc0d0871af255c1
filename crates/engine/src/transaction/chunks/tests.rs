//! Chunks on devices that exist in the bookkeeping only: the volume's are smaller than they say.

use super::*;
use crate::space::Reservation;
use crate::volume::testing::TestVolume;
use papilio_device::Device;
use papilio_format::Uuid;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DATA: BlockGroupFlags = BlockGroupFlags::DATA;
const METADATA: BlockGroupFlags = BlockGroupFlags::METADATA;

struct World {
    test: TestVolume,
    volume: Volume,
    space: Arc<Space>,
    chunks: Chunks,
}

/// A volume with two devices of these sizes, and metadata of a profile.
fn world(sizes: [u64; 2], metadata: BlockGroupFlags) -> World {
    let test = TestVolume::blank(RaidProfile::Raid1, 2);
    let volume = test.open(0, false).unwrap();
    let space = Arc::new(Space::new(&volume.geometry(), 2));
    let group = |mib: u64, flags| {
        let range = LogicalRange { start: LogicalAddress((1 << 40) + mib * MIB), length: MIB };
        let free = range.start.0..range.start.0 + range.length;
        let new = NewBlockGroup { range, flags, used: 0, row: 0 };
        space.add_block_group(&new, std::iter::once(free), &[]);
    };
    group(0, BlockGroupFlags::SYSTEM);
    group(1, METADATA | metadata);
    group(2, DATA);
    let device = |(devid, total_bytes)| DeviceSpace {
        devid: DeviceId(devid),
        uuid: Uuid::from_u128(0xd0_0000 + u128::from(devid)),
        total_bytes,
        used: Vec::new(),
    };
    let chunks = Chunks::new((1..).zip(sizes).map(device).collect(), None);
    World { test, volume, space, chunks }
}

impl World {
    fn allocate(&self, kind: SpaceKind) -> Result<PendingChunk> {
        self.chunks.allocate(&self.volume, &self.space, kind)?;
        Ok(self.chunks.state.lock().pending.last().expect("it waits for its items").clone())
    }

    /// Bytes that metadata could have besides its block groups, in MiB.
    fn for_metadata(&self) -> u64 {
        let mut reserved: Vec<Reservation> = Vec::new();
        let free = self.space.available(SpaceKind::Metadata);
        reserved.extend(self.space.reserve_metadata(free, true));
        while let Ok(more) = self.space.reserve_metadata(MIB, true) {
            reserved.push(more);
        }
        reserved.len() as u64 - 1
    }
}

fn is_full(result: Result<impl Sized>) -> bool {
    matches!(result.err(), Some(Error::NoSpace { .. }))
}

#[test]
fn a_new_chunk_takes_device_space_and_waits_for_its_items() {
    let world = world([GIB, 2 * GIB], BlockGroupFlags::RAID1);
    world.chunks.count_unallocated(&world.space);
    assert!(!world.chunks.has_pending());
    let before = world.space.available(SpaceKind::Data);
    let chunk = world.allocate(SpaceKind::Data).unwrap();
    // The larger device, and a tenth of both.
    let [stripe] = &chunk.plan.stripes[..] else { panic!("{chunk:?}") };
    assert_eq!((stripe.devid, stripe.offset), (DeviceId(2), PhysicalAddress(RESERVED_START)));
    assert!(world.volume.chunk_map().find(chunk.start).is_some());
    // The second superblock lies in it.
    assert_eq!(world.space.available(SpaceKind::Data) - before, chunk.plan.length - (64 << 10));
    assert!(world.chunks.has_pending() && world.chunks.is_pending(chunk.start));
    assert!(!world.chunks.is_pending(LogicalAddress(chunk.start.0 + 1)));
    assert_eq!(world.chunks.device_end(DeviceId(2)), Some(RESERVED_START + chunk.plan.stripe_bytes));
    assert_eq!(world.chunks.device_end(DeviceId(1)), None);
    assert_eq!(world.chunks.device_end(DeviceId(7)), None);
    let next = world.allocate(SpaceKind::Metadata).unwrap();
    assert_eq!(next.plan.stripes.len(), 2, "metadata has two copies");
    assert_eq!(next.start.0, chunk.start.0 + chunk.plan.length);
    assert_eq!(world.chunks.take_pending().len(), 2);
    assert!(!world.chunks.has_pending());
}

#[test]
fn a_full_system_group_gets_a_chunk_first() {
    let world = world([GIB, GIB], BlockGroupFlags::RAID1);
    let node = u64::from(world.volume.geometry().node_size);
    // 1 MiB has 64 nodes, of which 16 suffice.
    for _ in 0..MIB / node - SYSTEM_BLOCKS_MIN {
        world.space.allocate(SpaceKind::System, node, node).unwrap();
    }
    world.allocate(SpaceKind::Data).unwrap();
    assert_eq!(world.chunks.take_pending().len(), 1);
    world.space.allocate(SpaceKind::System, node, node).unwrap();
    world.allocate(SpaceKind::Data).unwrap();
    let flags: Vec<_> = world.chunks.take_pending().iter().map(|chunk| chunk.plan.flags).collect();
    assert_eq!(flags, [BlockGroupFlags::SYSTEM, DATA]);
    world.space.allocate(SpaceKind::System, node, node).unwrap();
    world.allocate(SpaceKind::System).unwrap();
    assert_eq!(world.chunks.take_pending().len(), 1, "a system chunk itself needs no other");
}

#[test]
fn half_of_two_devices_counts_for_metadata() {
    for (flags, copies) in [(BlockGroupFlags::empty(), 1), (BlockGroupFlags::DUP, 2)] {
        let world = world([256 * MIB, 256 * MIB], flags);
        world.chunks.count_unallocated(&world.space);
        let rest = 2 * (256 * MIB - UNUSABLE_REST) / MIB;
        assert_eq!(world.for_metadata(), rest / 2 / copies, "{flags:?}");
        world.chunks.forget_device(DeviceId(2), &world.space);
        assert_eq!(world.for_metadata(), rest / 2 / copies, "one device counts whole");
        let chunk = world.allocate(SpaceKind::Data).unwrap();
        assert_eq!(world.for_metadata(), (rest / 2 - chunk.plan.length / MIB) / copies);
        // Its place is free once the commit that removes it is on disk.
        world.chunks.removed([(DeviceId(1), chunk.plan.stripes[0].offset)]);
        let freed = world.chunks.take_freed();
        assert_eq!(freed.len(), 1);
        assert!(world.chunks.take_freed().is_empty());
        world.chunks.committed(Vec::new(), &world.space);
        assert_eq!(world.chunks.device_end(DeviceId(1)), Some(RESERVED_START + chunk.plan.length));
        world.chunks.committed(freed, &world.space);
        assert_eq!(world.for_metadata(), rest / 2 / copies);
        assert_eq!(world.chunks.device_end(DeviceId(1)), None);
    }
}

#[test]
fn only_the_extent_that_was_freed_goes() {
    let world = world([GIB, 64 * MIB], BlockGroupFlags::RAID1);
    let first = world.allocate(SpaceKind::Data).unwrap().plan;
    let second = world.allocate(SpaceKind::Data).unwrap().plan;
    let end = world.chunks.device_end(DeviceId(1)).unwrap();
    assert_eq!(end, second.stripes[0].offset.0 + second.stripe_bytes);
    world.chunks.committed(vec![(DeviceId(1), first.stripes[0].offset)], &world.space);
    assert_eq!(world.chunks.device_end(DeviceId(1)), Some(end));
    world.chunks.committed(vec![(DeviceId(2), second.stripes[0].offset)], &world.space);
    assert_eq!(world.chunks.device_end(DeviceId(1)), Some(end), "that was another device");
}

#[test]
fn data_leaves_the_space_that_metadata_was_promised() {
    let world = world([GIB, GIB], BlockGroupFlags::RAID1);
    world.chunks.count_unallocated(&world.space);
    let free = world.space.available(SpaceKind::Metadata);
    let rest = 2 * (GIB - UNUSABLE_REST);
    // Two copies of as much as one more chunk of data leaves.
    let chunk = world.allocate(SpaceKind::Data).unwrap().plan.length;
    let promised = free + (rest - 2 * chunk) / 2;
    world.space.set_unallocated(rest, 2);
    let reservation = world.space.reserve_metadata(promised, true).unwrap();
    world.allocate(SpaceKind::Data).unwrap();
    world.space.set_unallocated(rest, 2);
    let more = world.space.reserve_metadata(MIB, true).unwrap();
    assert!(is_full(world.allocate(SpaceKind::Data)));
    drop((more, reservation));
    world.allocate(SpaceKind::Data).unwrap();
}

#[test]
fn a_device_that_missed_writes_takes_only_chunks_that_need_it_not() {
    let world = world([GIB, 2 * GIB], BlockGroupFlags::RAID1);
    let device = world.test.devices[1].clone() as Arc<dyn Device>;
    world.volume.set_device(DeviceId(2), Some(&device), true);
    let data = world.allocate(SpaceKind::Data).unwrap().plan;
    let devices = |plan: &ChunkPlan| -> Vec<u64> {
        let mut devices: Vec<_> = plan.stripes.iter().map(|stripe| stripe.devid.0).collect();
        devices.sort_unstable();
        devices
    };
    assert_eq!(devices(&data), [1]);
    let metadata = world.allocate(SpaceKind::Metadata).unwrap().plan;
    assert_eq!(devices(&metadata), [1, 2]);
    let number = world.volume.devices().iter().position(|slot| slot.devid() == DeviceId(2)).unwrap();
    world.volume.set_healed(number);
    assert_eq!(devices(&world.allocate(SpaceKind::Data).unwrap().plan), [2]);
}

#[test]
fn sizes_of_devices_change() {
    let world = world([GIB, 64 * MIB], BlockGroupFlags::DUP);
    let chunk = world.allocate(SpaceKind::Data).unwrap().plan;
    let end = RESERVED_START + chunk.stripe_bytes;
    assert!(is_full(world.chunks.resize(DeviceId(1), end - 1, &world.space)));
    world.chunks.resize(DeviceId(1), end, &world.space).unwrap();
    assert!(world.chunks.resize(DeviceId(7), end, &world.space).is_err());
    assert!(world.chunks.confine(DeviceId(7), 0, &world.space).is_err());
    // A device without a byte for new chunks is none for their profile.
    world.chunks.resize(DeviceId(1), GIB, &world.space).unwrap();
    world.space.set_target(SpaceKind::Data, Some(BlockGroupFlags::RAID1));
    assert_eq!(world.allocate(SpaceKind::Data).unwrap().plan.stripes.len(), 2);
    assert_eq!(world.chunks.confine(DeviceId(2), 0, &world.space).unwrap(), 64 * MIB);
    assert!(is_full(world.allocate(SpaceKind::Data)));
    assert_eq!(world.chunks.confine(DeviceId(2), GIB, &world.space).unwrap(), 0);
    assert_eq!(world.allocate(SpaceKind::Data).unwrap().plan.stripes.len(), 2);
}

#[test]
fn a_confined_device_does_not_count_for_the_profile() {
    let world = world([GIB, GIB], BlockGroupFlags::RAID1);
    let range = LogicalRange { start: LogicalAddress(1 << 41), length: MIB };
    let new = NewBlockGroup { range, flags: METADATA | BlockGroupFlags::DUP, used: 0, row: 0 };
    world.space.add_block_group(&new, std::iter::once(1 << 41..(1 << 41) + MIB), &[]);
    let profile = |end| {
        world.chunks.confine(DeviceId(2), end, &world.space).unwrap();
        world.space.chunk_flags(SpaceKind::Metadata)
    };
    assert_eq!(profile(0), METADATA | BlockGroupFlags::DUP);
    assert_eq!(profile(GIB), METADATA | BlockGroupFlags::RAID1);
}

#[test]
fn unallocated_ranges_are_passed_one_by_one() {
    let world = world([100 * MIB, 64 * MIB], BlockGroupFlags::DUP);
    world.chunks.state.lock().devices[0].used =
        vec![(PhysicalAddress(10 * MIB), 10 * MIB), (PhysicalAddress(22 * MIB), 70 * MIB)];
    let passed = |from: u64, min: u64, max: u64| {
        let (mut found, mut at) = (Vec::new(), from);
        while let Some(end) = world
            .chunks
            .with_unallocated(DeviceId(1), at, min, max, |range| {
                found.push((range.start / MIB, range.end / MIB));
                Ok::<_, ()>(())
            })
            .unwrap()
        {
            at = end;
        }
        found
    };
    assert_eq!(passed(0, 1, u64::MAX), [(1, 10), (20, 22), (92, 100)]);
    assert_eq!(passed(0, 2 * MIB, u64::MAX), [(1, 10), (20, 22), (92, 100)]);
    assert_eq!(passed(0, 2 * MIB + 1, u64::MAX), [(1, 10), (92, 100)]);
    assert_eq!(passed(4 * MIB, 1, 4 * MIB), [(4, 8), (8, 10), (20, 22), (92, 96), (96, 100)]);
    assert!(passed(100 * MIB, 1, u64::MAX).is_empty());
    let unknown = world.chunks.with_unallocated(DeviceId(9), 0, 1, 1, |_| Err("busy"));
    assert_eq!(unknown, Ok(None));
    assert_eq!(world.chunks.with_unallocated(DeviceId(1), 0, 1, 1, |_| Err("busy")), Err("busy"));
}
