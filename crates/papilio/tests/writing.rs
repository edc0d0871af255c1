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

#[test]
fn many_threads_write_while_commits_go_on() {
    let device = made(1 << 30);
    let fs = FileSystem::from_devices(
        vec![device.clone() as Arc<dyn Device>],
        // Small, so that changes meet commits for lack of memory too.
        &OpenOptions::new().write(true).commit_interval(None).dirty_bytes(2 << 20),
    )
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let fs = fs.clone();
            scope.spawn(move || {
                let directory = fs.create_dir(format!("/t{thread}")).unwrap();
                for number in 0..300u64 {
                    let name = format!("f{number}");
                    let file = directory
                        .create(name.as_bytes(), &NewInode::new(NewKind::Regular, 0o644))
                        .unwrap()
                        .open();
                    let file = file.unwrap();
                    let length = (number * 977 % 60_000) as usize;
                    let content = vec![(number + thread) as u8; length];
                    file.write_at(&content, number % 5000).unwrap();
                    let mut back = vec![0; length];
                    assert_eq!(file.read_at(&mut back, number % 5000).unwrap(), length);
                    assert!(back == content);
                    if number % 3 == 0 {
                        directory.unlink(name.as_bytes()).unwrap();
                        // Still there for who has it open.
                        assert_eq!(file.read_at(&mut back, number % 5000).unwrap(), length);
                    }
                    if number % 50 == 49 {
                        fs.sync().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs.failure(), None);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_full_file_system_says_so_and_can_be_emptied() {
    let device = made(128 << 20);
    let fs = open(&device);
    let chunk = vec![7; 1 << 20];
    let mut written = 0;
    let error = loop {
        let file = fs.create_file(format!("/f{written}")).unwrap();
        match file.write_at(&chunk, 0) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), papilio::ErrorKind::NoSpace, "{error}");
    assert!(written > 20, "{written} MiB");
    let mut small = 0;
    let error = loop {
        match fs.create_file(format!("/s{small}")).and_then(|file| file.write_at(&[1; 1000], 0)) {
            Ok(()) => small += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), papilio::ErrorKind::NoSpace, "{error}");
    assert_eq!(fs.failure(), None);
    fs.sync().unwrap();
    assert_clean(&device);
    for number in 0..=written {
        fs.remove_file(format!("/f{number}")).unwrap();
    }
    for number in 0..small {
        fs.remove_file(format!("/s{number}")).unwrap();
    }
    assert_eq!(fs.failure(), None);
    fs.sync().unwrap();
    fs.create_file("/again").unwrap().write_at(&chunk, 0).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
}
