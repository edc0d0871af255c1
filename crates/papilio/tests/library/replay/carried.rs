//! A stored disk on which the kernel left a log: with it, replays are tested without kernel mounts.
//!
//! `PAPILIO_REPLAY_CARRY=1` makes the stored image anew, where kernel mounts are possible.

use super::power_cut::Machine;
use super::steps::At;
use crate::bridge::Papilio;
use crate::in_memory::{close_clean, open, open_read_only};
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, Manifest, Need, require};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The stored image.
const CARRIED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/fsync-log.img.zst");
/// Bytes of the image, unpacked.
const SIZE: u64 = 160 << 20;

/// Makes changes of every kind and fsyncs them.
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

/// Returns the disk, right after the last fsync of [`history`].
pub fn disk() -> Arc<MemoryDevice> {
    let file = std::fs::File::open(CARRIED).unwrap();
    let mut stream = zstd::stream::read::Decoder::new(file).unwrap();
    let device = Arc::new(MemoryDevice::new(SIZE));
    let mut piece = vec![0; 1 << 20];
    for place in (0..SIZE).step_by(piece.len()) {
        stream.read_exact(&mut piece).unwrap();
        if piece.iter().any(|&byte| byte != 0) {
            device.write_at(&piece, PhysicalAddress(place)).unwrap();
        }
    }
    device
}

/// Replays the log of a device and reads everything.
fn replayed(device: &Arc<MemoryDevice>) -> Manifest {
    close_clean(open(device), device);
    Manifest::read(&Papilio(open_read_only(device)), ManifestOptions::default()).unwrap()
}

#[test]
fn the_stored_log_is_replayed() {
    let seen = replayed(&disk());
    let entry = |path: &str| &seen.entries[Path::new(path)];
    assert_eq!(entry("f").metadata.size, 120_000);
    assert_eq!(entry("f").xattrs.keys().collect::<Vec<_>>(), ["user.a"]);
    assert_eq!(entry("copy").metadata.size, 65_536);
    assert_eq!(entry("d/n0").metadata.size, 300);
    assert_eq!(entry("d/n3 again").metadata.nlink, 2);
    assert_eq!(entry("d/new/x").metadata.size, 30_000);
    assert!(!seen.entries.contains_key(Path::new("d/n1")) && !seen.entries.contains_key(Path::new("d/n2")));
    // The directory, the 20 files left of 40, and four new entries.
    assert_eq!(seen.entries.keys().filter(|path| path.starts_with("d")).count(), 1 + 20 + 4);
}

#[test]
fn the_kernel_leaves_the_same_log_as_the_stored_one() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let machine = Machine::sized("default", SIZE);
    history(&machine);
    let cut = machine.cut("carried");
    assert!(cut.has_log());
    let device = Arc::new(MemoryDevice::from_image(&cut.images[0]).unwrap());
    if std::env::var_os("PAPILIO_REPLAY_CARRY").is_some() {
        let image = std::fs::File::open(&cut.images[0]).unwrap();
        zstd::stream::copy_encode(image, std::fs::File::create(CARRIED).unwrap(), 19).unwrap();
    }
    machine.stop();
    let options =
        CompareOptions { mtime: false, ctime: false, atime: false, btime: false, ..Default::default() };
    let differences = replayed(&device).diff(&replayed(&disk()), &options);
    assert!(differences.is_empty(), "{}", differences[0]);
}
