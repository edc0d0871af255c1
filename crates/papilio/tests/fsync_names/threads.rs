//! Several threads that change and fsync the same names.

use crate::case::{has_log, judge, new_file_system};
use papilio::{FileSystem, RenameMode};
use papilio_oracle::{Need, Scratch, require};
use std::sync::atomic::{AtomicBool, Ordering};

/// The others end also where who judges them fails: a scope waits for them before anybody hears of it.
struct EndsWithScope<'a>(&'a AtomicBool);

impl Drop for EndsWithScope<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads that unlink a name and threads that make and fsync it: whatever comes first, replay finds one file of
/// that name, as its fsync left it.
#[test]
fn a_name_is_unlinked_while_others_make_and_fsync_it() {
    if require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (device, fs) = new_file_system();
    fs.create_dir("/d").unwrap();
    fs.sync().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _others = EndsWithScope(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = fs.remove_file("/d/name");
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // It may be gone before it is open.
                    if let Ok(file) = fs.create_file("/d/name")
                        && file.write_at(b"content", 0).is_ok()
                    {
                        file.sync().unwrap();
                    }
                }
            });
        }
        for _ in 0..12 {
            std::thread::sleep(std::time::Duration::from_millis(40));
            let cut = device.snapshot();
            judge(&scratch, &cut, |seen| {
                if seen.there("/d/name") {
                    let content = std::fs::read(seen.0.join("d/name")).unwrap();
                    assert!(content == b"content" || content.is_empty(), "{content:?}");
                }
            })
            .unwrap();
        }
    });
    assert!(fs.failure().is_none());
}

/// Renames, links, unlinks and fsyncs of the same few names in the same few directories by several threads.
fn quarrel(fs: &FileSystem, seed: u64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::Relaxed) {
        let mut path = || format!("/{}/{}", ["d", "e", "d/x"][random.usize(..3)], random.u8(..5));
        let (one, other) = (path(), path());
        // Most of it is refused, as others were quicker.
        match random.u8(..9) {
            0 => drop(fs.create_file(&one).and_then(|file| file.write_at(one.as_bytes(), 0))),
            1 => drop(fs.rename(&one, &other, RenameMode::Replace)),
            2 => drop(fs.rename(&one, &other, RenameMode::Exchange)),
            3 => drop(fs.hard_link(&one, &other)),
            4 => drop(fs.remove_file(&one)),
            5 => drop(fs.create_dir("/d/x")),
            6 => drop(
                fs.rename("/d/x", "/e/x", RenameMode::Replace)
                    .and_then(|()| fs.rename("/e/x", "/d/x", RenameMode::Replace)),
            ),
            7 => drop(fs.inode_nofollow(&one).and_then(|inode| inode.sync())),
            _ => drop(fs.inode_nofollow(["/d", "/e", "/"][random.usize(..3)]).and_then(|inode| inode.sync())),
        }
    }
}

#[test]
fn threads_that_change_and_fsync_the_same_names() {
    if require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (device, fs) = new_file_system();
    for path in ["/d", "/e", "/d/x"] {
        fs.create_dir(path).unwrap();
    }
    fs.sync().unwrap();
    let (stop, mut logs) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let _others = EndsWithScope(&stop);
        for seed in 0..4 {
            let (fs, stop) = (&fs, &stop);
            scope.spawn(move || quarrel(fs, seed, stop));
        }
        for round in 0..16 {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let cut = device.snapshot();
            logs += u32::from(has_log(&cut));
            judge(&scratch, &cut, |_| {}).unwrap_or_else(|why| panic!("round {round}: {why}"));
            if round % 5 == 4 {
                fs.sync().unwrap();
            }
        }
    });
    assert!(fs.failure().is_none());
    assert!(logs > 0, "there are logs to be replayed");
}
