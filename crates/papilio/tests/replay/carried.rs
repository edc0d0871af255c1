//! A disk that the kernel left with a log, carried along, so that replays are tested where nobody may mount.
//!
//! `PAPILIO_REPLAY_CARRY=1` makes it anew where the kernel can be asked.

use crate::bridge::Papilio;
use crate::power_cut::Machine;
use crate::steps::At;
use papilio::{CheckOptions, FileSystem, OpenOptions};
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, Manifest, Need, require};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Where the image is carried, from this crate's folder.
const CARRIED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/fsync-log.img.zst");
/// Its bytes.
const SIZE: u64 = 160 << 20;

/// What the log says a bit of everything of.
fn history(machine: &Machine) {
    let at = At(machine.root().to_owned());
    at.mkdir("d");
    for number in 0..40 {
        at.write(&format!("d/n{number}"), 0, &vec![number; usize::from(number) * 300]);
    }
    at.write("f", 0, &[7; 200_000]);
    at.set_xattr("f", "user.before", b"before");
    machine.commit();
    at.write("f", 50_000, &[8; 100_000]);
    at.truncate("f", 120_000);
    at.punch("f", 8192, 8192);
    at.clone_range("f", 0, 65_536, "copy", 0);
    at.set_xattr("f", "user.a", b"a");
    at.remove_xattr("f", "user.before");
    for name in ["f", "copy"] {
        at.fsync(name);
    }
    for number in (0..40).step_by(2) {
        at.remove(&format!("d/n{number}"));
    }
    at.rename("d/n1", "d/n0");
    at.link("d/n3", "d/n3 again");
    at.mkdir("d/new");
    at.write("d/new/x", 0, &[9; 30_000]);
    at.symlink("../f", "d/link");
    at.fsync("d");
    at.fsync("d/new/x");
}

/// The disk, right after the last fsync of that history.
pub fn disk() -> MemoryDevice {
    let file = std::fs::File::open(CARRIED).unwrap();
    let mut stream = zstd::stream::read::Decoder::new(file).unwrap();
    let device = MemoryDevice::new(SIZE);
    let mut piece = vec![0; 1 << 20];
    for place in (0..SIZE).step_by(piece.len()) {
        stream.read_exact(&mut piece).unwrap();
        if piece.iter().any(|&byte| byte != 0) {
            device.write_at(&piece, PhysicalAddress(place)).unwrap();
        }
    }
    device
}

fn replayed(device: MemoryDevice) -> Manifest {
    let device: Arc<dyn Device> = Arc::new(device);
    let options = OpenOptions::new().write(true).commit_interval(None);
    FileSystem::from_devices(vec![Arc::clone(&device)], &options).unwrap().close().unwrap();
    let fs = FileSystem::from_devices(vec![device], &OpenOptions::new()).unwrap();
    let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean(), "{}", report.findings[0]);
    Manifest::read(&Papilio(fs), ManifestOptions::default()).unwrap()
}

#[test]
fn the_carried_log_is_replayed() {
    let seen = replayed(disk());
    let entry = |path: &str| &seen.entries[Path::new(path)];
    assert_eq!(entry("f").metadata.size, 120_000);
    assert_eq!(entry("f").xattrs.keys().collect::<Vec<_>>(), ["user.a"]);
    assert_eq!(entry("copy").metadata.size, 65_536);
    assert_eq!(entry("d/n0").metadata.size, 300);
    assert_eq!(entry("d/n3 again").metadata.nlink, 2);
    assert_eq!(entry("d/new/x").metadata.size, 30_000);
    assert!(!seen.entries.contains_key(Path::new("d/n1")) && !seen.entries.contains_key(Path::new("d/n2")));
    // The directory, what is left of 40 files, and four new entries.
    assert_eq!(seen.entries.keys().filter(|path| path.starts_with("d")).count(), 1 + 20 + 4);
}

#[test]
fn the_carried_disk_is_what_the_kernel_leaves() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let machine = Machine::sized("default", SIZE);
    history(&machine);
    let cut = machine.cut("carried");
    assert!(cut.has_log());
    let device = MemoryDevice::from_image(&cut.images[0]).unwrap();
    if std::env::var_os("PAPILIO_REPLAY_CARRY").is_some() {
        let image = std::fs::File::open(&cut.images[0]).unwrap();
        zstd::stream::copy_encode(image, std::fs::File::create(CARRIED).unwrap(), 19).unwrap();
    }
    machine.stop();
    let options =
        CompareOptions { mtime: false, ctime: false, atime: false, btime: false, ..Default::default() };
    let differences = replayed(device).diff(&replayed(disk()), &options);
    assert!(differences.is_empty(), "{}", differences[0]);
}
