//! A log in a file system that is opened for reading: replayed in memory, and nothing is written.

use super::carried;
use crate::bridge::Papilio;
use crate::in_memory::{crashed, open, open_last_commit, open_read_only, open_with, try_open, writable};
use papilio::OpenOptions;
use papilio_device::{Device, MemoryDevice, PhysicalAddress};

use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, Manifest};
use std::sync::Arc;

fn content(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
    bytes
}

fn seen(fs: papilio::FileSystem) -> Manifest {
    Manifest::read(&Papilio(fs), ManifestOptions::default()).unwrap()
}

/// The kernel wrote the disk and its log; opening a copy for writing replays it as the kernel does.
#[test]
fn a_log_of_the_kernel_is_seen_and_nothing_is_written() {
    let device = carried::disk();
    let before = content(&device);
    let fs = open_read_only(&device);
    assert!(!fs.has_log());
    assert!(try_open(&device, &OpenOptions::new()).is_ok());
    let replayed = open(&crashed(&device));
    // The replays stamp times of their own.
    let compared = CompareOptions { mtime: false, ctime: false, atime: false, ..CompareOptions::SAME_IMAGE };
    let found = seen(replayed).diff(&seen(fs.clone()), &compared);
    assert!(found.is_empty(), "{}", found[0]);
    assert_eq!(fs.read("/copy").unwrap().len(), 65_536);
    drop(fs);
    let last = open_last_commit(&device);
    assert!(last.has_log() && last.inode("/copy").is_err());
    assert!(content(&device) == before, "nothing was written");
}

/// A device that missed commits may not be written. A replay in memory allocates nothing there.
#[test]
fn a_log_is_replayed_where_a_device_is_stale() {
    let own: Vec<_> = (0..2).map(|_| Arc::new(MemoryDevice::new(256 << 20))).collect();
    let devices: Vec<Arc<dyn Device>> = own.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let (single, raid1) = (papilio::RaidProfile::Single, papilio::RaidProfile::Raid1);
    let options = papilio::MkfsOptions::new().data_profile(single).metadata_profile(raid1);
    papilio::mkfs_devices(&devices, &options).unwrap();
    let fs = papilio::FileSystem::from_devices(devices.clone(), &writable()).unwrap();
    // Data chunks on both devices.
    for name in ["/a", "/b", "/c"] {
        fs.write(name, vec![1; 40 << 20]).unwrap();
    }
    fs.sync().unwrap();
    let stale = crashed(&own[1]);
    for name in ["/d", "/e", "/f"] {
        fs.create_file(name).unwrap();
        fs.sync().unwrap();
    }
    let file = fs.create_file("/fsynced").unwrap();
    file.write_all_at(b"small", 0).unwrap();
    file.sync_all().unwrap();
    let left: Vec<Arc<dyn Device>> = vec![crashed(&own[0]), stale];
    let refused = papilio::FileSystem::from_devices(left.clone(), &writable()).unwrap_err();
    assert!(refused.to_string().contains("out of date"), "{refused}");
    let seen = papilio::FileSystem::from_devices(left, &OpenOptions::new()).unwrap();
    assert!(seen.older_states().is_empty());
    assert_eq!(seen.read("/fsynced").unwrap(), b"small");
}

/// Files fsynced by Papilio are there after a crash, seen without writing.
#[test]
fn fsynced_files_are_seen_after_a_crash() {
    let device = carried::disk();
    let fs = crate::in_memory::open_with(&device, &writable());
    let file = fs.create_file("/fsynced").unwrap();
    file.write_all_at(&[7; 300_000], 0).unwrap();
    file.sync_all().unwrap();
    let cut: Arc<MemoryDevice> = crashed(&device);
    let before = content(&cut);
    assert!(open_last_commit(&cut).has_log());
    let seen = open_read_only(&cut);
    assert_eq!(seen.read("/fsynced").unwrap(), vec![7; 300_000]);
    assert!(seen.create_file("/new").is_err(), "it is open for reading");
    assert!(content(&cut) == before);
}

/// The memory of a replay is limited for each device, and a writer needs none.
#[test]
fn a_replay_stays_within_its_memory() {
    let device = carried::disk();
    let before = content(&device);
    let small = OpenOptions::new().replay_bytes(32 << 10);
    let refused = try_open(&device, &small).unwrap_err();
    let papilio::Error::Unreplayed { older, .. } = &refused else { panic!("{refused}") };
    assert!(older.iter().any(|file| file.path == b"copy" && file.part.name() == "missing"), "{refused}");
    assert!(refused.to_string().contains("more than 32768 bytes"), "{refused}");
    let fs = open_with(&device, &small.clone().allow_older(true));
    let [state] = fs.older_states() else { panic!("{:?}", fs.older_states()) };
    assert_eq!((state.cause.name(), fs.older_files(state).len()), ("log-unusable", older.len()));
    drop(fs);
    assert!(try_open(&device, &OpenOptions::new().replay_bytes(4 << 20)).is_ok());
    assert!(content(&device) == before);
    let fs = try_open(&device, &small.write(true)).unwrap();
    assert_eq!(fs.read("/copy").unwrap().len(), 65_536);
}
