//! Rows of every profile beside the devices' bytes, with sectors that cannot be read.

use super::*;
use crate::volume::testing::{TestVolume, content};
use papilio_device::{FaultDevice, MemoryDevice};
use papilio_format::items::chunk::RaidProfile;
use std::collections::BTreeSet;

const SECTOR: usize = 4096;
const SECTORS: usize = STRIPE_LENGTH as usize / SECTOR;
/// The rows that are loaded.
const ROWS: Range<u64> = 1..4;
const PARITY: [(RaidProfile, usize); 4] =
    [(RaidProfile::Raid5, 3), (RaidProfile::Raid5, 4), (RaidProfile::Raid6, 4), (RaidProfile::Raid6, 6)];
const COPIES: [(RaidProfile, usize); 5] = [
    (RaidProfile::Single, 1),
    (RaidProfile::Dup, 2),
    (RaidProfile::Raid0, 3),
    (RaidProfile::Raid1c3, 3),
    (RaidProfile::Raid10, 4),
];

#[test]
fn runs_are_joined_over_short_gaps() {
    let flags = [1, 1, 0, 1, 0, 0, 0, 1, 2];
    assert_eq!(runs(&flags, WANTED, 0), [0..2, 3..4, 7..8]);
    assert_eq!(runs(&flags, WANTED, 1), [0..4, 7..8]);
    assert_eq!(runs(&flags, FAILED, 9), std::slice::from_ref(&(8..9)));
    assert_eq!(runs(&[], WANTED, 9), []);
}

/// A volume on devices that fail on demand.
struct World {
    test: TestVolume,
    faulty: Vec<Arc<FaultDevice>>,
    volume: Volume,
    chunk: Arc<Chunk>,
}

impl World {
    fn new(profile: RaidProfile, stripes: usize) -> Self {
        let test = TestVolume::new(profile, stripes);
        let (faulty, volume) = test.open_with_faults();
        let chunk = Arc::clone(volume.chunk_map().find(test.data_chunk.0).unwrap());
        Self { test, faulty, volume, chunk }
    }

    /// The logical address of a sector of a row.
    fn address(&self, row: u64, column: usize, sector: usize) -> LogicalAddress {
        self.chunk.address_of(&element(column, row, sector, 1))
    }

    /// Everything in the first row, the sectors 2 to 4 of its first column in the second, and none
    /// in the third.
    fn wanted(&self) -> Vec<(LogicalAddress, u64)> {
        let start = self.address(ROWS.start, 0, 0);
        let row_bytes = self.chunk.data_columns() as u64 * STRIPE_LENGTH;
        vec![(start, row_bytes), (self.address(ROWS.start + 1, 0, 2), 3 * SECTOR as u64)]
    }

    fn is_wanted(&self, row: u64, column: usize, sector: usize) -> bool {
        let second = self.chunk.profile().parity() > 0 || column == 0;
        row == ROWS.start || row == ROWS.start + 1 && second && (2..5).contains(&sector)
    }

    fn load(&self, without: Option<DeviceId>) -> LoadedRows<'_> {
        self.volume.load_rows(&self.chunk, ROWS, self.wanted().into_iter(), Vec::new(), without)
    }

    fn memory(&self, stripe: usize) -> &MemoryDevice {
        &self.test.devices[self.chunk.stripes()[stripe].devid.0 as usize - 1]
    }

    fn faulty(&self, stripe: usize) -> &FaultDevice {
        &self.faulty[self.chunk.stripes()[stripe].devid.0 as usize - 1]
    }

    /// The place of a sector on its device.
    fn physical(&self, stripe: usize, row: u64, sector: usize) -> PhysicalAddress {
        let start = self.chunk.stripes()[stripe].offset.0 + row * STRIPE_LENGTH;
        PhysicalAddress(start + (sector * SECTOR) as u64)
    }

    fn on_device(&self, stripe: usize, row: u64, sector: usize) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        self.memory(stripe).read_at(&mut bytes, self.physical(stripe, row, sector)).unwrap();
        bytes
    }

    /// Lets reads of a sector fail.
    fn fail(&self, stripe: usize, row: u64, sector: usize) {
        let start = self.physical(stripe, row, sector);
        self.faulty(stripe).fail_reads(start..PhysicalAddress(start.0 + SECTOR as u64));
    }

    /// Damages a sector on its device, and returns its bytes.
    fn damage(&self, stripe: usize, row: u64, sector: usize) -> Vec<u8> {
        let bytes = self.on_device(stripe, row, sector);
        self.memory(stripe).write_at(&[0xe1; SECTOR], self.physical(stripe, row, sector)).unwrap();
        bytes
    }

    /// The column that a stripe holds in a row: data first, then P and Q.
    fn column_of(&self, stripe: usize, row: u64) -> usize {
        let element = element(0, row, 0, 1);
        let columns = 0..self.chunk.stripes().len();
        columns.into_iter().find(|column| self.chunk.column_place(&element, *column).0 == stripe).unwrap()
    }
}

fn element(column: usize, row: u64, sector: usize, sectors: usize) -> Element {
    Element { column, row, within: (sector * SECTOR) as u64, length: sectors * SECTOR }
}

fn flags(rows: &LoadedRows<'_>, stripe: usize, row: u64, sector: usize) -> u8 {
    rows.stripes[stripe].flags[(row - ROWS.start) as usize * SECTORS + sector]
}

/// All sectors of the loaded rows: stripe, row, sector.
fn sectors(world: &World) -> impl Iterator<Item = (usize, u64, usize)> + use<> {
    let stripes = world.chunk.stripes().len();
    (0..stripes)
        .flat_map(|stripe| ROWS.flat_map(move |row| (0..SECTORS).map(move |sector| (stripe, row, sector))))
}

#[test]
fn wanted_sectors_of_all_copies_are_loaded() {
    for (profile, stripes) in COPIES {
        let world = World::new(profile, stripes);
        let rows = world.load(None);
        for row in ROWS {
            for column in 0..world.chunk.data_columns() {
                for sector in 0..SECTORS {
                    let places = rows.places(&element(column, row, sector, 1));
                    assert_eq!(places.len(), profile.copies());
                    let expected = content(world.address(row, column, sector), SECTOR);
                    let wanted = world.is_wanted(row, column, sector);
                    for place in places {
                        let devid = world.chunk.stripes()[place.stripe].devid;
                        assert_eq!(rows.devid(&place), devid);
                        assert_eq!(rows.slot(&place), Some(devid.0 as usize - 1));
                        assert!(!rows.has_failed(&place) && !rows.is_stale(&place));
                        assert_eq!(rows.has(&place, WANTED), wanted, "{profile}: {row} {column} {sector}");
                        assert!(!wanted || rows.bytes(&place) == expected);
                    }
                }
            }
        }
    }
}

#[test]
fn failing_sectors_are_told_apart_and_rebuilt() {
    for (profile, stripes) in PARITY {
        let world = World::new(profile, stripes);
        let data = world.chunk.data_columns();
        let mut random = fastrand::Rng::with_seed(stripes as u64);
        let mut failing = BTreeSet::new();
        for (stripe, row, sector) in sectors(&world) {
            if random.u8(..6) == 0 {
                failing.insert((stripe, row, sector));
                world.fail(stripe, row, sector);
            }
        }
        let rows = world.load(None);
        for (stripe, row, sector) in sectors(&world) {
            let found = flags(&rows, stripe, row, sector);
            let wanted = world.is_wanted(row, 0, sector);
            assert_eq!(found & WANTED != 0, wanted, "{profile}: {stripe} {row} {sector}");
            if wanted {
                assert_eq!(found & FAILED != 0, failing.contains(&(stripe, row, sector)));
            }
        }
        let (mut rebuilt, mut lost) = (0, 0);
        for row in ROWS {
            for sector in (0..SECTORS).filter(|sector| world.is_wanted(row, 0, *sector)) {
                let bad = (0..stripes).filter(|stripe| failing.contains(&(*stripe, row, sector))).count();
                for column in 0..data {
                    let element = element(column, row, sector, 1);
                    let place = rows.column(&element, column);
                    let expected = content(world.address(row, column, sector), SECTOR);
                    if !rows.has_failed(&place) {
                        assert!(rows.bytes(&place) == expected);
                        continue;
                    }
                    let mut bytes = vec![0; SECTOR];
                    let result = rows.rebuild(&element, 1, false, &mut bytes);
                    assert_eq!(result.is_ok(), bad <= profile.parity(), "{profile}: {bad} failed");
                    assert!(result.is_err() || bytes == expected);
                    (rebuilt, lost) =
                        (rebuilt + u32::from(result.is_ok()), lost + u32::from(result.is_err()));
                }
            }
        }
        assert!(rebuilt > 0 && (lost > 0 || profile.parity() == 2), "{profile}: {rebuilt} {lost}");
    }
}

#[test]
fn mended_sectors_are_written_to_their_places() {
    for (profile, stripes) in PARITY {
        let world = World::new(profile, stripes);
        let row = ROWS.start;
        let element = element(0, row, 3, 1);
        let stripe = world.chunk.column_place(&element, 0).0;
        let expected = world.damage(stripe, row, 3);
        world.damage(stripe, row, 4);
        let mut rows = world.load(None);
        let place = rows.column(&element, 0);
        rows.set_bad(&place);
        assert!(rows.has(&place, BAD) && !rows.has_failed(&place));
        let mut bytes = vec![0; SECTOR];
        rows.rebuild(&element, 1, false, &mut bytes).unwrap();
        assert!(bytes == expected);
        rows.mend(&place, &bytes);
        assert_eq!(flags(&rows, stripe, row, 3), WANTED | MENDED);
        // Mended twice is mended.
        rows.mend(&place, &bytes);
        assert_eq!(flags(&rows, stripe, row, 3), WANTED | MENDED);
        assert!(rows.write_mended().is_empty());
        assert_eq!(flags(&rows, stripe, row, 3), WANTED);
        assert!(world.on_device(stripe, row, 3) == expected);
        assert!(world.on_device(stripe, row, 4) == [0xe1; SECTOR], "only what was mended is written");
        // The second row, and a device that refuses.
        let second = Element { row: row + 1, within: 2 * SECTOR as u64, length: 2 * SECTOR, ..element };
        let place = rows.column(&second, 0);
        let place = rows.part(&place, SECTOR, SECTOR);
        let physical = world.physical(place.stripe, row + 1, 3);
        let expected = rows.bytes(&place).to_vec();
        rows.mend(&place, &[9; SECTOR]);
        rows.write_mended();
        assert!(world.on_device(place.stripe, row + 1, 3) == [9; SECTOR]);
        rows.mend(&place, &expected);
        world.faulty(place.stripe).fail_writes(physical..PhysicalAddress(physical.0 + 1));
        let failed = rows.write_mended();
        let [FailedWrite { slot, sectors: 1, .. }] = &failed[..] else { panic!("{failed:?}") };
        assert_eq!(Some(*slot), rows.slot(&place));
        assert!(rows.write_mended().is_empty(), "a failed write is not tried again");
    }
}

#[test]
fn parity_is_computed_where_all_data_is_good() {
    for (profile, stripes) in PARITY {
        let world = World::new(profile, stripes);
        let (data, row) = (world.chunk.data_columns(), ROWS.start);
        // A sector that cannot be read, one with wrong bytes, and one of the parity.
        let unreadable = world.chunk.column_place(&element(0, row, 0, 1), 0).0;
        world.fail(unreadable, row, 5);
        let parity = world.chunk.column_place(&element(0, row, 0, 1), data).0;
        world.fail(parity, row, 9);
        let mut rows = world.load(None);
        let wrong = rows.column(&element(0, row, 12, 2), data - 1);
        rows.set_bad(&wrong);
        let mut good = Vec::new();
        rows.for_each_good_run(|rows, columns| {
            assert_eq!(columns.len(), stripes);
            let sums = rows.parity_of(&columns[..data], profile.parity() == 2);
            assert_eq!(sums.len(), profile.parity());
            for (sum, place) in sums.iter().zip(&columns[data..]) {
                assert!(rows.has_failed(place) || rows.bytes(place) == &sum[..]);
            }
            let at = columns[0].offset / SECTOR;
            good.push((at / SECTORS, at % SECTORS, columns[0].length / SECTOR));
        });
        assert_eq!(good, [(0, 0, 5), (0, 6, 6), (0, 14, 2), (1, 2, 3)], "{profile}");
    }
}

#[test]
fn known_sectors_of_a_device_are_copied() {
    for (profile, stripes) in PARITY {
        let world = World::new(profile, stripes);
        world.fail(1, ROWS.start, 7);
        world.fail(1, ROWS.start, 8);
        let devid = world.chunk.stripes()[1].devid;
        let target = MemoryDevice::new(world.memory(1).size());
        let mut rows = world.load(None);
        assert_eq!(rows.copy_to(devid, &target).unwrap(), 2);
        let column = world.column_of(1, ROWS.start);
        let place = rows.column(&element(0, ROWS.start, 7, 1), column);
        rows.mend(&place, &[5; SECTOR]);
        assert_eq!(rows.copy_to(devid, &target).unwrap(), 1);
        for (_, row, sector) in sectors(&world).filter(|(stripe, ..)| *stripe == 1) {
            let mut bytes = vec![0; SECTOR];
            target.read_at(&mut bytes, world.physical(1, row, sector)).unwrap();
            let expected = match (row, sector) {
                (row, 7) if row == ROWS.start => vec![5; SECTOR],
                (row, 8) if row == ROWS.start => vec![0; SECTOR],
                _ if world.is_wanted(row, 0, sector) => world.on_device(1, row, sector),
                _ => vec![0; SECTOR],
            };
            assert!(bytes == expected, "{profile}: {row} {sector}");
        }
        let refuses = FaultDevice::new(Arc::new(target));
        refuses.fail_all();
        assert!(rows.copy_to(devid, &refuses).is_err());
    }
}

#[test]
fn unused_sectors_of_a_device_that_is_left_out_are_read_or_rebuilt() {
    for (profile, stripes) in PARITY {
        let world = World::new(profile, stripes);
        let stripe = stripes - 1;
        let devid = world.chunk.stripes()[stripe].devid;
        let mut rows = world.load(Some(devid));
        for (stripe, row, sector) in sectors(&world) {
            let left_out = world.chunk.stripes()[stripe].devid == devid;
            assert_eq!(flags(&rows, stripe, row, sector) & FAILED != 0, left_out);
        }
        // The unused sectors differ on the device from what parity says.
        let is_used = |address: LogicalAddress| (address.0 / SECTOR as u64).is_multiple_of(3);
        for row in ROWS {
            let column = world.column_of(stripe, row);
            for sector in 0..SECTORS {
                if column < world.chunk.data_columns() && !is_used(world.address(row, column, sector)) {
                    world.damage(stripe, row, sector);
                }
            }
        }
        // One of them cannot be read.
        world.fail(stripe, ROWS.start, 1);
        rows.read_unused(devid, is_used);
        let mut counts = [0; 2];
        for row in ROWS {
            let column = world.column_of(stripe, row);
            for sector in 0..SECTORS {
                let is_data = column < world.chunk.data_columns();
                let unused = is_data && !is_used(world.address(row, column, sector));
                let read = unused && world.is_wanted(row, 0, sector) && (row, sector) != (ROWS.start, 1);
                let found = flags(&rows, stripe, row, sector);
                assert_eq!(found & FAILED == 0, read, "{profile}: {row} {sector}");
                counts[usize::from(read)] += 1;
                if read {
                    let place = rows.column(&element(0, row, sector, 1), column);
                    assert!(rows.bytes(&place) == [0xe1; SECTOR]);
                }
            }
        }
        assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
        rows.rebuild_unused(devid);
        for row in ROWS {
            let column = world.column_of(stripe, row);
            for sector in 0..SECTORS {
                let failed = flags(&rows, stripe, row, sector) & FAILED != 0;
                let wanted = world.is_wanted(row, 0, sector);
                let is_data = column < world.chunk.data_columns();
                assert_eq!(failed, !(wanted && is_data), "{profile}: {row} {sector}");
                if !failed && flags(&rows, stripe, row, sector) & MENDED != 0 {
                    let place = rows.column(&element(0, row, sector, 1), column);
                    assert!(rows.bytes(&place) == content(world.address(row, column, sector), SECTOR));
                }
            }
        }
    }
}

#[test]
fn buffers_are_used_again() {
    let world = World::new(RaidProfile::Raid6, 4);
    let buffers = world.load(None).into_buffers();
    assert_eq!(buffers.len(), 4);
    let length = (ROWS.end - ROWS.start) * STRIPE_LENGTH;
    let places: BTreeSet<_> = buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    assert!(buffers.iter().all(|buffer| buffer.len() as u64 == length));
    let rows = world.volume.load_rows(&world.chunk, ROWS, world.wanted().into_iter(), buffers, None);
    assert!(rows.stripes.iter().all(|stripe| places.contains(&stripe.bytes.as_ptr())));
    let buffers = rows.into_buffers();
    // Those of another size are not.
    let fewer = world.volume.load_rows(&world.chunk, 0..1, std::iter::empty(), buffers, None);
    assert!(fewer.stripes.iter().all(|stripe| stripe.bytes.len() as u64 == STRIPE_LENGTH));
}

#[test]
fn columns_of_a_device_that_missed_writes_are_the_last_resort() {
    for (profile, stripes) in [(RaidProfile::Raid5, 3), (RaidProfile::Raid6, 4)] {
        let world = World::new(profile, stripes);
        let late = world.chunk.stripes()[0].devid;
        world.volume.set_device(late, Some(&(world.faulty[late.0 as usize - 1].clone() as _)), true);
        for row in ROWS {
            // Only a rebuild tells wrong bytes of the late device from right ones.
            let sector = 2;
            if profile.parity() == 2 {
                world.damage(0, row, sector);
            }
            world.fail(1, row, sector);
        }
        let rows = world.load(None);
        assert!(std::ptr::eq(&**rows.devices(), &*world.volume.devices()));
        for row in ROWS.take(2) {
            let column = world.column_of(1, row);
            if column >= world.chunk.data_columns() {
                continue;
            }
            let element = element(column, row, 2, 1);
            let places: Vec<_> = (0..stripes).map(|column| rows.column(&element, column)).collect();
            assert_eq!(places.iter().filter(|place| rows.is_stale(place)).count(), 1);
            let expected = content(world.address(row, column, 2), SECTOR);
            let mut bytes = vec![0; SECTOR];
            let result = rows.rebuild(&element, 1, false, &mut bytes);
            assert_eq!(result.is_ok(), profile.parity() == 2, "{profile}: {result:?}");
            assert!(result.is_err() || bytes == expected, "{profile}");
            rows.rebuild(&element, 1, true, &mut bytes).unwrap();
            assert!(bytes == expected, "{profile}: the late device's bytes are right, or not used");
        }
    }
}
