//! Mounts that follow the writer of a device in a store, which is another process.

use crate::common::{fail, succeed};
use papilio_oracle::{Need, Scratch, require};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(2);
/// For a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(4);

/// Waits until a condition holds, and returns how long that took.
fn within(what: &str, condition: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PERIOD + SLACK, "{what}: not within {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).map(|entries| entries.flatten().collect::<Vec<_>>());
    let mut names: Vec<String> = entries
        .unwrap_or_default()
        .into_iter()
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

fn follow(writer: &Path, reader: &Path) {
    let text = |name: &str| std::fs::read_to_string(reader.join(name)).unwrap_or_default();
    let mut slowest = Duration::ZERO;
    let mut saw = |what: &str, condition: &dyn Fn() -> bool| slowest = slowest.max(within(what, condition));
    // One that is not there yet, which the kernel remembers.
    assert!(!reader.join("file").exists());
    std::fs::write(writer.join("file"), "one").unwrap();
    sync(&writer.join("file"));
    saw("a new file", &|| text("file") == "one");
    // A file that a process has open, and whose pages the kernel has.
    let mut open = File::open(reader.join("file")).unwrap();
    let large = "two ".repeat(100_000);
    std::fs::write(writer.join("file"), &large).unwrap();
    sync(&writer.join("file"));
    saw("a file that has changed", &|| text("file") == large);
    let mut found = String::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_string(&mut found).unwrap();
    assert!(found == large, "an open file shows the later state");
    std::fs::create_dir(writer.join("folder")).unwrap();
    for number in 0..20 {
        std::fs::write(writer.join(format!("folder/{number}")), number.to_string()).unwrap();
    }
    sync(&writer.join("folder"));
    saw("a folder", &|| names(&reader.join("folder")).len() == 20);
    // Each state is one of the writer's: the files were renamed together with the marker.
    std::fs::write(writer.join("other"), "three").unwrap();
    std::fs::rename(writer.join("other"), writer.join("file")).unwrap();
    std::fs::remove_file(writer.join("folder/7")).unwrap();
    rustix_sync(writer);
    saw("a file that replaced another", &|| text("file") == "three");
    saw("a file that is gone", &|| !reader.join("folder/7").exists());
    assert_eq!(names(&reader.join("folder")).len(), 19);
    // The number of a deleted inode, for something of another kind.
    std::fs::write(writer.join("last"), "file").unwrap();
    rustix_sync(writer);
    saw("the last file", &|| text("last") == "file");
    std::fs::remove_file(writer.join("last")).unwrap();
    std::fs::create_dir(writer.join("last")).unwrap();
    rustix_sync(writer);
    saw("a folder of the same name", &|| reader.join("last").is_dir());
    println!("the slowest change was seen after {slowest:?}");
}

/// Commits, and flushes the device.
fn rustix_sync(path: &Path) {
    succeed(["filesystem", "sync", path.to_str().unwrap()]);
}

#[test]
fn a_mount_follows_the_writer_in_another_process() {
    if require(&[Need::Root, Need::Fuse]).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let at = |name: &str| scratch.path().join(name);
    let (writer, reader, key) = (at("writer"), at("reader"), at("key"));
    std::fs::create_dir(&writer).unwrap();
    std::fs::create_dir(&reader).unwrap();
    std::fs::write(&key, "a key").unwrap();
    let key = key.to_str().unwrap();
    let (writes, reads) = (writer.to_str().unwrap(), reader.to_str().unwrap());
    for name in ["plain", "encrypted"] {
        let store = format!("slatedb+file://{}", at(name).display());
        let encrypt: &[&str] = if name == "encrypted" { &["--encrypt"] } else { &[] };
        let make = [&["--key-file", key, "mkfs", "-q", "--size", "268435456"], encrypt, &[&store]].concat();
        succeed(make);
        succeed(["--key-file", key, "mount", &store, writes]);
        succeed(["--key-file", key, "mount", "-o", "ro,follow=2s", &store, reads]);
        let followed = std::panic::catch_unwind(|| follow(&writer, &reader));
        let refused = std::panic::catch_unwind(|| {
            fail(1, "the mount option follow requires ro", ["mount", "-o", "remount,rw", &store, reads]);
        });
        crate::common::unmount(reads.as_ref());
        crate::common::unmount(writes.as_ref());
        followed.unwrap();
        refused.unwrap();
    }
    let image = at("image");
    let image = image.to_str().unwrap();
    succeed(["mkfs", "-q", "--size", "268435456", image]);
    fail(1, "only devices at URLs with slatedb+", ["mount", "-o", "ro,follow=2s", image, reads]);
}
