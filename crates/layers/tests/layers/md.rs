//! Arrays of md in memory: every level and layout, with members missing, stale or of others.

use crate::common::{DATA_OFFSET, Shape, members, sign, superblock};
use papilio_device::{Access, Device, PhysicalAddress};
use papilio_layers::LayerError;
use papilio_layers::md::{Assembled, MdDevice, MdSuperblock, assemble};
use std::sync::Arc;

fn read(devices: &[Arc<dyn Device>]) -> Result<Assembled, LayerError> {
    let found = devices.iter().map(|device| (Arc::clone(device), MdSuperblock::read(&**device).unwrap()));
    assemble(found.collect())
}

fn open(devices: &[Arc<dyn Device>]) -> MdDevice {
    MdDevice::new(read(devices).unwrap(), "array".to_owned())
}

/// All levels and layouts, with the members that may be missing, and a digest of where the kernel
/// puts each chunk.
fn shapes() -> Vec<(Shape, usize)> {
    let shape = |level, layout, members, chunk| Shape { level, layout, members, chunk, data: 768 << 10 };
    let mut all = vec![
        (shape(-1, 0, 3, 0), 0),
        (shape(0, 1, 3, 16 << 10), 0),
        (shape(0, 2, 3, 12 << 10), 0),
        (shape(1, 0, 3, 0), 2),
        (shape(4, 0, 4, 16 << 10), 1),
        (shape(10, 0x102, 4, 16 << 10), 1),
        (shape(10, 0x102, 3, 16 << 10), 1),
        (shape(10, 0x103, 5, 16 << 10), 2),
        (shape(10, 0x201, 3, 16 << 10), 1),
        (shape(10, 0x301, 4, 16 << 10), 2),
        (shape(10, 0x1_0201, 3, 16 << 10), 1),
        (shape(10, 0x1_0201, 4, 16 << 10), 1),
        (shape(10, 0x2_0201, 4, 16 << 10), 1),
        (shape(10, 0x4_0201, 5, 16 << 10), 1),
    ];
    all.extend((0..=5).map(|layout| (shape(5, layout, 4, 16 << 10), 1)));
    all.extend(
        [0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20].map(|layout| (shape(6, layout, 5, 16 << 10), 2)),
    );
    all
}

#[test]
fn every_layout_keeps_data_with_members_missing() {
    let mut random = fastrand::Rng::with_seed(1);
    for (shape, may_miss) in shapes() {
        let devices = members(&shape);
        let size = {
            let array = open(&devices);
            let size = array.size();
            let mut content = vec![0; size as usize];
            random.fill(&mut content);
            array.write_at(&content, PhysicalAddress(0)).unwrap();
            // Small writes across the borders of chunks.
            for _ in 0..50 {
                let length = random.usize(1..40_000);
                let at = random.usize(..content.len() - length);
                random.fill(&mut content[at..at + length]);
                array.write_at(&content[at..at + length], PhysicalAddress(at as u64)).unwrap();
            }
            array.flush().unwrap();
            let mut found = vec![0; content.len()];
            array.read_at(&mut found, PhysicalAddress(0)).unwrap();
            assert!(found == content, "{shape:?}");
            drop(array);
            for missing in pairs(devices.len(), may_miss) {
                let left: Vec<_> = (0..devices.len())
                    .filter(|at| !missing.contains(at))
                    .map(|at| Arc::clone(&devices[at]))
                    .collect();
                let array = match read(&left) {
                    Ok(array) => MdDevice::new(array, "degraded".to_owned()),
                    // Two neighbours hold both copies of some chunks.
                    Err(error) if shape.level == 10 => {
                        assert!(missing.len() > 1 || may_miss == 0, "{shape:?} {missing:?}: {error}");
                        continue;
                    }
                    Err(error) => panic!("{shape:?} {missing:?}: {error}"),
                };
                array.read_at(&mut found, PhysicalAddress(0)).unwrap();
                assert!(found == content, "{shape:?} without {missing:?}");
                assert_eq!(array.access(), Access::ReadOnly);
                assert!(array.write_at(&[0; 512], PhysicalAddress(0)).is_err());
            }
            size
        };
        assert!(size > 0, "{shape:?}");
        if may_miss < devices.len() - 1 {
            let left = &devices[may_miss + 1..];
            let too_few = read(left).map(drop);
            if shape.level != 10 {
                assert!(matches!(too_few, Err(LayerError::MembersMissing { .. })), "{shape:?}: {too_few:?}");
            }
        }
    }
}

/// All choices of at most `most` of `count`, but not of none.
fn pairs(count: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    for first in 0..count {
        if most > 0 {
            all.push(vec![first]);
        }
        for second in first + 1..count {
            if most > 1 {
                all.push(vec![first, second]);
            }
        }
    }
    all
}

fn raid5() -> Shape {
    Shape { level: 5, layout: 2, members: 3, chunk: 16 << 10, data: 256 << 10 }
}

#[test]
fn writing_marks_the_array_as_active_and_then_clean() {
    let devices = members(&raid5());
    let array = open(&devices);
    assert!(MdSuperblock::read(&*devices[0]).unwrap().is_clean);
    array.write_at(&[1; 4096], PhysicalAddress(0)).unwrap();
    let active = MdSuperblock::read(&*devices[1]).unwrap();
    assert!(!active.is_clean && active.events == 11);
    // A crash leaves it so: it can then only be read.
    let other = read(&devices).unwrap();
    assert!(other.read_only.unwrap().contains("dirty"));
    drop(array);
    let clean = MdSuperblock::read(&*devices[2]).unwrap();
    assert!(clean.is_clean && clean.events == 12);
    assert!(read(&devices).unwrap().read_only.is_none());
}

#[test]
fn stale_members_and_members_of_others_are_left_out() {
    let devices = members(&raid5());
    let write = |at: usize, bytes: &[u8]| devices[at].write_at(bytes, PhysicalAddress(4096)).unwrap();
    write(1, &superblock(&raid5(), 1, 3));
    let array = read(&devices).unwrap();
    assert_eq!((array.missing.as_slice(), array.left_out.len()), (&[1][..], 1));
    assert!(array.left_out[0].reason.contains("event count is 3"), "{:?}", array.left_out);
    assert!(array.read_only.unwrap().contains("degraded"));
    // One event less is a crash between two superblocks.
    write(1, &superblock(&raid5(), 1, 9));
    assert!(read(&devices).unwrap().left_out.is_empty());
    // Two with one place.
    write(1, &superblock(&raid5(), 2, 10));
    assert!(matches!(read(&devices), Err(LayerError::Twins { .. })));
    // Another shape.
    write(1, &superblock(&Shape { chunk: 32 << 10, ..raid5() }, 1, 10));
    assert!(read(&devices).unwrap().left_out[0].reason.contains("another shape"));
    // The newest member says that another one failed.
    let mut bytes = superblock(&raid5(), 0, 10);
    bytes[258..260].copy_from_slice(&0xfffe_u16.to_le_bytes());
    sign(&mut bytes);
    write(0, &bytes);
    write(1, &superblock(&raid5(), 1, 9));
    write(2, &superblock(&raid5(), 2, 9));
    assert!(read(&devices).unwrap().left_out[0].reason.contains("failed"));
}

#[test]
fn unusual_arrays_are_refused_by_name() {
    let devices = members(&raid5());
    for (at, value, name) in [
        (8, 4_u32, "a reshape that"),
        (8, 512, "journal"),
        (8, 1 << 20, "unknown features"),
        (72, 7, "level 7"),
        (76, 9, "layout 9"),
        (88, 0, "chunks of 0"),
    ] {
        for device in &devices {
            let number = MdSuperblock::read(&**device).map_or(0, |found| found.number);
            let mut bytes = superblock(&raid5(), number, 20);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            sign(&mut bytes);
            device.write_at(&bytes, PhysicalAddress(4096)).unwrap();
        }
        let error = read(&devices).map(drop).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    // A checksum that is wrong is no superblock.
    let mut bytes = superblock(&raid5(), 0, 1);
    bytes[100] ^= 1;
    devices[0].write_at(&bytes, PhysicalAddress(4096)).unwrap();
    assert!(MdSuperblock::read(&*devices[0]).is_none());
    let _ = DATA_OFFSET;
}
