//! Writing through the public API on a device in memory: what was written is read back, and the check is
//! clean after each commit.

use papilio::{CheckOptions, FileSystem, MkfsOptions, NewInode, NewKind, OpenOptions, RenameMode};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

fn made(size: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    papilio::mkfs_device(&(device.clone() as Arc<dyn Device>), &MkfsOptions::new()).expect("mkfs");
    device
}

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

#[test]
fn what_was_written_is_there_after_the_commit() {
    let device = made(512 << 20);
    assert_clean(&device);
    let fs = open(&device);
    fs.create_dir("/d").unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    let file = fs.create_file("/d/file").unwrap();
    let content: Vec<u8> = (0..3_000_001u32).map(|n| (n / 7) as u8).collect();
    file.write_at(&content, 0).unwrap();
    let small = fs.create_file("/d/small").unwrap();
    small.write_at(b"a few bytes", 0).unwrap();
    fs.symlink("d/small", "/link").unwrap();
    fs.create("/d/fifo", &NewInode::new(NewKind::Fifo, 0o600).owner(5, 6)).unwrap();
    fs.hard_link("/d/small", "/other").unwrap();
    assert_eq!(fs.read("/d/file").unwrap(), content);
    fs.sync().unwrap();
    assert_clean(&device);
    fs.rename("/d/file", "/moved", RenameMode::NoReplace).unwrap();
    fs.remove_file("/d/fifo").unwrap();
    drop((file, small));
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    assert_eq!(fs.read("/moved").unwrap(), content);
    assert_eq!(fs.read("/link").unwrap(), b"a few bytes");
    assert_eq!(fs.metadata("/other").unwrap().nlink(), 2);
    for number in 0..2000 {
        let file = fs.create_file(format!("/d/n{number}")).unwrap();
        file.write_at(format!("content {number}").repeat(number % 500).as_bytes(), 0).unwrap();
    }
    fs.sync().unwrap();
    assert_clean(&device);
    for number in (0..2000).step_by(3) {
        fs.remove_file(format!("/d/n{number}")).unwrap();
    }
    fs.remove_file("/moved").unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    fs.close().unwrap();
    if let Some(path) = std::env::var_os("PAPILIO_IMAGE") {
        device.write_image(path.as_ref()).unwrap();
    }
}

/// Not a test of correctness: what creating, listing and deleting many files costs.
#[test]
#[ignore = "a measurement"]
fn measure_many_files() {
    let count = 100_000;
    let device = made(4 << 30);
    let fs = open(&device);
    let directory = fs.create_dir("/d").unwrap();
    let start = std::time::Instant::now();
    for number in 0..count {
        directory
            .create(format!("file{number}").as_bytes(), &NewInode::new(NewKind::Regular, 0o644))
            .unwrap();
    }
    println!("create {:?}", start.elapsed());
    let start = std::time::Instant::now();
    fs.sync().unwrap();
    println!("sync {:?}", start.elapsed());
    let start = std::time::Instant::now();
    assert_eq!(fs.read_dir("/d").unwrap().count(), count);
    println!("list {:?}", start.elapsed());
    let start = std::time::Instant::now();
    for number in 0..count {
        directory.unlink(format!("file{number}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    println!("delete+sync {:?}", start.elapsed());
    if let Some(path) = std::env::var_os("PAPILIO_IMAGE") {
        drop(fs);
        device.write_image(path.as_ref()).unwrap();
    }
}
