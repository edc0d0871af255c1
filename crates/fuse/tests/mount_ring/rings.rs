//! The rings: that they serve, that requests end when the server dies, and that many requests can
//! wait.

use crate::server::{Mount, NEEDS, check, make_image};
use papilio_oracle::{Scratch, require};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Returns how often each of the server's threads for `/dev/fuse` has read from it.
fn reads_from_the_device(server: u32) -> Vec<u64> {
    let threads = fs::read_dir(format!("/proc/{server}/task")).unwrap();
    let readers = threads.map(|thread| thread.unwrap().path()).filter(|thread| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "papilio-fuse")
    });
    let reads = readers.map(|thread| {
        let counted = fs::read_to_string(thread.join("io")).unwrap();
        let line = counted.lines().find_map(|line| line.strip_prefix("syscr:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    });
    reads.collect()
}

/// Returns whether the requests of a mount come through the rings.
pub fn serves_rings(mount: &Mount) -> bool {
    for number in 0..200 {
        fs::create_dir(mount.path().join(format!("d{number}"))).unwrap();
    }
    // The kernel sends a request for each directory before the call returns, so there were 200 at
    // least.
    let mut reads = reads_from_the_device(mount.server());
    while reads.len() < 2 {
        // A thread may not have started yet.
        std::thread::yield_now();
        reads = reads_from_the_device(mount.server());
    }
    reads.iter().sum::<u64>() < 100
}

#[test]
fn requests_come_through_the_rings() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "");
    assert!(serves_rings(&mount));
    mount.unmount();
    check(&image);
}

#[test]
fn killing_the_server_ends_requests_in_flight() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 512 << 20);
    let mount = Mount::new(&scratch, &image, "");
    let point = mount.path().to_owned();
    let kept = vec![0x6b; 700_000];
    fs::write(point.join("kept"), &kept).unwrap();
    File::open(point.join("kept")).unwrap().sync_all().unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    let writers: Vec<_> = (0..8_u8)
        .map(|number| {
            let (path, begun) = (point.join(format!("f{number}")), begun.clone());
            std::thread::spawn(move || {
                // Write until a call fails because the server is gone.
                let mut begun = Some(begun);
                loop {
                    let round = || {
                        let mut file = File::create(&path)?;
                        file.write_all(&[number; 300_000])?;
                        file.sync_data()
                    };
                    match round() {
                        Ok(()) => begun.take().into_iter().for_each(|begun| begun.send(()).unwrap()),
                        Err(error) => return error.raw_os_error(),
                    }
                }
            })
        })
        .collect();
    drop(begun);
    assert_eq!(begins.iter().count(), 8);
    mount.kill_only();
    for writer in writers {
        let error = writer.join().unwrap();
        let ends = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::EIO].map(Some);
        assert!(ends.contains(&error), "{error:?}");
    }
    papilio_oracle::scratch::unmount(&point).unwrap();
    check(&image);
    let again = Mount::new(&scratch, &image, "");
    assert!(fs::read(again.path().join("kept")).unwrap() == kept);
    again.unmount();
}

/// Seeks to data in a file that has dirty pages in the kernel.
fn seek_in_dirty(path: &Path, round: u64) {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let at = (round + 1) << 20;
    file.write_all_at(&[7; 4096], at).unwrap();
    // SAFETY: a system call without pointers on an open file.
    let found = unsafe { libc::lseek(file.as_raw_fd(), (at - 4096) as i64, libc::SEEK_DATA) };
    assert_eq!(found, at as i64, "{}", path.display());
}

/// More requests than a queue has entries, each of which needs the kernel's writes answered first.
#[test]
fn requests_outnumbering_entries_can_wait_for_writeback() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 512 << 20);
    let mount = Mount::new(&scratch, &image, "");
    let root = mount.path();
    std::thread::scope(|scope| {
        for number in 0..40 {
            scope.spawn(move || {
                for round in 0..20 {
                    seek_in_dirty(&root.join(format!("f{number}")), round);
                }
            });
        }
    });
    mount.unmount();
    check(&image);
}

#[test]
fn slow_requests_do_not_block_others() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 512 << 20);
    let mount = Mount::new(&scratch, &image, "");
    let root = mount.path();
    // More requests than there are entries and workers.
    std::thread::scope(|scope| {
        for number in 0..32_u8 {
            scope.spawn(move || {
                let file = File::create(root.join(format!("f{number}"))).unwrap();
                for round in 0..10 {
                    file.write_all_at(&[number; 10_000], round * 10_000).unwrap();
                    file.sync_all().unwrap();
                    assert_eq!(
                        fs::metadata(root.join(format!("f{number}"))).unwrap().len(),
                        (round + 1) * 10_000
                    );
                }
            });
        }
    });
    mount.unmount();
    check(&image);
}
