//! Subvolumes and snapshots through the public API: made, changed on both sides, moved, deleted and
//! cleaned up; the check is clean after each commit, also where a crash cut the cleaning short; and the
//! kernel sees the same, and goes on with it.

#[path = "../kernel/bridge.rs"]
mod bridge;
mod cleaning;
mod kernel;
mod model;
mod rules;

use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

fn made(size: u64, options: &MkfsOptions) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    papilio::mkfs_device(&(device.clone() as Arc<dyn Device>), options).expect("mkfs");
    device
}

/// Opened without anything in the background.
fn open(device: &Arc<MemoryDevice>) -> FileSystem {
    let options = OpenOptions::new().write(true).commit_interval(None);
    FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], &options).expect("open")
}

fn assert_clean(device: &Arc<MemoryDevice>) {
    let report = papilio::check_devices(
        vec![device.clone() as Arc<dyn Device>],
        &OpenOptions::new(),
        &CheckOptions::new().data_csum(true),
    )
    .expect("check");
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// What a crash now would leave, open nowhere.
fn crashed(device: &Arc<MemoryDevice>) -> Arc<MemoryDevice> {
    Arc::new(device.snapshot())
}

/// Files enough that the tree has several levels.
fn fill(fs: &FileSystem, directory: &str, files: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..files {
        let file = fs.create_file(format!("{directory}/file{number}")).unwrap();
        let length = if number % 20 == 0 { random.usize(4096..40_000) } else { random.usize(0..300) };
        let content: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
        file.write_at(&content, 0).unwrap();
    }
}
