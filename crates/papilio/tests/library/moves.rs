//! Data that moves: a replacement of a device that a power loss interrupts, and extents of which a
//! file uses a part. In memory, so that no test needs the kernel.

use crate::in_memory::{check_all, close_clean, formatted_with, open, writable};
use papilio::{
    BalanceControl, BalanceFilter, BalanceOptions, DeviceId, Error, FileSystem, MkfsOptions, OpenOptions,
    RaidProfile, ReplaceOptions,
};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

const SIZE: u64 = 256 << 20;
const SECTOR: usize = 4096;

/// Returns copies of devices, which a test may change.
fn copies<'d>(devices: impl IntoIterator<Item = &'d Arc<MemoryDevice>>) -> Vec<Arc<dyn Device>> {
    devices.into_iter().map(|device| Arc::new(device.snapshot()) as Arc<dyn Device>).collect()
}

#[test]
fn a_replacement_under_way_needs_its_target() {
    let devices: [Arc<MemoryDevice>; 2] = std::array::from_fn(|_| Arc::new(MemoryDevice::new(SIZE)));
    let target = Arc::new(MemoryDevice::new(SIZE));
    let all: Vec<_> = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let made = MkfsOptions::new().metadata_profile(RaidProfile::Raid1).data_profile(RaidProfile::Raid1);
    papilio::mkfs_devices(&all, &made).unwrap();
    let fs = FileSystem::from_devices(all, &writable()).unwrap();
    fs.write("/file", vec![7; 20 << 20]).unwrap();
    fs.sync().unwrap();
    // The devices as a power loss leaves them, in the order of the slots, with the target.
    let mut left = None;
    let new = target.clone() as Arc<dyn Device>;
    let replaced = fs.replace_device(DeviceId(2), &new, ReplaceOptions::default(), |report| {
        if left.is_none() && report.bytes_done > 0 {
            fs.sync().unwrap();
            left = Some([&devices[0], &devices[1], &target].map(|device| Arc::new(device.snapshot())));
        }
        BalanceControl::Continue
    });
    replaced.unwrap();
    fs.close().unwrap();
    let [first, second, target] = left.expect("the replacement took several steps");

    let without = FileSystem::from_devices(copies([&first, &second]), &writable());
    let error = without.map(drop).unwrap_err();
    assert!(matches!(error, Error::ReadOnlyFileSystem { .. }), "{error}");
    assert!(error.to_string().contains("is being replaced"), "{error}");
    let reader = FileSystem::from_devices(copies([&first, &second]), &OpenOptions::new()).unwrap();
    assert!(reader.read("/file").unwrap() == vec![7; 20 << 20]);

    let devices = copies([&first, &second, &target]);
    let fs = FileSystem::from_devices(devices.clone(), &writable()).unwrap();
    fs.write("/more", "bytes").unwrap();
    fs.close().unwrap();
    let report = check_all(devices);
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn an_extent_moves_whose_start_another_one_took() {
    let device = formatted_with(SIZE, &MkfsOptions::new().node_size(SECTOR as u32));
    let fs = open(&device);
    let mut content = vec![1; 300 * SECTOR];
    fs.write("/file", &content).unwrap();
    fs.sync().unwrap();
    let address = |path: &str| fs.open_file(path).unwrap().fiemap(0).unwrap()[0].address.0;
    let first = address("/file");
    // Fillers, so that later extents lie in other block groups.
    let all = || fs.usage().unwrap().spaces.iter().map(|space| space.total).sum::<u64>();
    let (before, mut fillers) = (all(), 0);
    while all() == before {
        fs.write(format!("/filler{fillers}"), vec![2; 1 << 20]).unwrap();
        fs.sync().unwrap();
        fillers += 1;
    }
    // The new extents have a leaf's place between the file's start and the rest of the first.
    let file = fs.open_file("/file").unwrap();
    for number in 0..250 {
        let bytes = vec![number as u8; SECTOR];
        file.write_all_at(&bytes, (number * SECTOR) as u64).unwrap();
        content[number * SECTOR..][..SECTOR].copy_from_slice(&bytes);
        file.sync_all().unwrap();
    }
    drop(file);
    fs.sync().unwrap();
    let moved = BalanceFilter { vrange: Some(first..first + 1), ..BalanceFilter::default() };
    let kept = address("/file");
    let report = fs.balance(&BalanceOptions { data: Some(moved), ..BalanceOptions::default() }, |_| true);
    assert_eq!(report.unwrap().completed, 1);
    assert_eq!(address("/file"), kept, "it lies in another block group");
    let extents = fs.open_file("/file").unwrap().fiemap(0).unwrap();
    assert!(extents.last().unwrap().address.0.abs_diff(first) > 1 << 20, "it moved");
    assert!(fs.read("/file").unwrap() == content);
    close_clean(fs, &device);
}
