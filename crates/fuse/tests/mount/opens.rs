//! A mount with `opens=kernel`: the kernel opens and closes files without the server.

use crate::server::{Mount, NEEDS, check, make_image};
use papilio_oracle::{Need, Scratch, require, sys};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::Command;

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// A snapshot contains what was written before it, although the server never heard of the files
/// that are open.
#[test]
fn snapshot_contains_data_of_open_files() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "opens=kernel");
    let source = mount.path().join("source");
    sys::create_subvolume(&source).unwrap();
    fs::write(source.join("old"), vec![1; 300_000]).unwrap();
    // From here on the kernel asks at no open.
    let old = File::options().read(true).write(true).open(source.join("old")).unwrap();
    let mut new = File::create(source.join("new")).unwrap();
    for round in 1..=3 {
        old.write_all_at(&[round + 1; 5000], 100_000).unwrap();
        new.write_all(&[round; 7000]).unwrap();
        let snapshot = mount.path().join(format!("snapshot{round}"));
        sys::create_snapshot(&source, &snapshot, true).unwrap();
        let found = fs::read(snapshot.join("old")).unwrap();
        assert!(found[100_000..105_000] == [round + 1; 5000] && found[105_000..] == [1; 195_000]);
        assert_eq!(fs::read(snapshot.join("new")).unwrap().len(), 7000 * usize::from(round));
        // A read-only subvolume refuses data at the latest when the file is closed.
        let closed = fs::write(snapshot.join("old"), b"changed")
            .and_then(|()| File::open(snapshot.join("old"))?.sync_all());
        assert_eq!(errno(closed), Some(libc::EROFS));
        assert_eq!(fs::read(snapshot.join("old")).unwrap()[..7], [1; 7]);
    }
    // `SEEK_DATA` knows data that was not written back.
    new.set_len(0).unwrap();
    new.set_len(1 << 20).unwrap();
    new.write_all_at(&[9; 4096], 512 << 10).unwrap();
    let data = rustix::fs::seek(&new, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert_eq!(data, 512 << 10);
    drop((old, new));
    mount.unmount();
    check(&image);
}

/// More open files without names than files stay at hand in the server.
#[test]
fn unlinked_files_live_as_long_as_they_are_open() {
    const FILES: usize = 1500;
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "opens=kernel");
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let path = |number: usize| mount.path().join(format!("f{number}"));
    fs::write(path(0), "").unwrap();
    drop(File::open(path(0)).unwrap());
    let files: Vec<File> = (0..FILES)
        .map(|number| {
            let file = File::options().read(true).write(true).create(true).truncate(true).open(path(number));
            let mut file = file.unwrap();
            file.write_all(&number.to_ne_bytes()).unwrap();
            fs::remove_file(path(number)).unwrap();
            file
        })
        .collect();
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    for (number, file) in files.iter().enumerate() {
        file.write_all_at(&(number * 3).to_ne_bytes(), 8192).unwrap();
        if number % 10 == 0 {
            file.sync_all().unwrap();
        }
    }
    for (number, file) in files.iter().enumerate() {
        let (mut first, mut last) = ([0; 8], [0; 8]);
        file.read_exact_at(&mut first, 0).unwrap();
        file.read_exact_at(&mut last, 8192).unwrap();
        assert_eq!((first, last), (number.to_ne_bytes(), (number * 3).to_ne_bytes()));
        assert_eq!(file.metadata().unwrap().len(), 8200);
    }
    drop(files);
    mount.unmount();
    check(&image);
    let mounted = Mount::new(&scratch, &image, "opens=kernel,ro");
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
    mounted.unmount();
}

/// Inode flags forbid changes of data at the write, because they cannot at the open.
#[test]
fn inode_flags_are_enforced_at_writes() {
    let needs = [NEEDS, &[Need::Command("chattr")]].concat();
    let Some(_) = require(&needs) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    for options in ["opens=kernel", "opens=kernel,nowriteback_cache"] {
        let mount = Mount::new(&scratch, &image, options);
        let path = mount.path().join("f");
        let chattr = |flag: &str| {
            assert!(Command::new("chattr").arg(flag).arg(&path).status().unwrap().success(), "chattr {flag}");
        };
        fs::write(&path, vec![7; 10_000]).unwrap();
        // Data that was written before the flag is in the file.
        let mut early = File::options().append(true).open(&path).unwrap();
        early.write_all(b"early").unwrap();
        chattr("+i");
        drop(early);
        let refused = File::options().write(true).open(&path).and_then(|mut file| {
            file.write_all(b"late")?;
            file.sync_all()
        });
        assert_eq!(errno(refused), Some(libc::EPERM), "{options}");
        let read = |path| {
            let mut content = Vec::new();
            File::open(path).unwrap().read_to_end(&mut content).unwrap();
            content
        };
        // The kernel's cache may show the refused bytes until it drops them.
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        let expected = [vec![7; 10_000], b"early".to_vec()].concat();
        assert!(read(&path) == expected, "{options}");
        chattr("-i");
        chattr("+a");
        let mut appended = File::options().append(true).open(&path).unwrap();
        appended.write_all(b"more").unwrap();
        appended.sync_all().unwrap();
        let refused = File::options().write(true).open(&path).and_then(|file| {
            file.write_all_at(b"first", 0)?;
            file.sync_all()
        });
        assert_eq!(errno(refused), Some(libc::EPERM), "{options}");
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        assert!(read(&path) == [expected, b"more".to_vec()].concat(), "{options}");
        chattr("-a");
        fs::remove_file(&path).unwrap();
        drop(appended);
        mount.unmount();
        check(&image);
    }
}
