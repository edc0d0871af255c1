//! Files that threads open and close while others name them and take their names away: who has a file open last is
//! another one each time.

use papilio::{CheckOptions, FileSystem, MkfsOptions, NewInode, NewKind, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const TIMES: usize = 3000;

fn made() -> (Arc<dyn Device>, FileSystem) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options).unwrap();
    (device, fs)
}

fn close_and_check(device: Arc<dyn Device>, fs: FileSystem) {
    fs.close().unwrap();
    let report =
        papilio::check_devices(vec![device], &OpenOptions::new(), &CheckOptions::new().data_csum(true))
            .unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn a_file_is_linked_while_others_open_and_close_it() {
    let (device, fs) = made();
    fs.create_file("/file").unwrap().write_at(b"content", 0).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opening: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        drop(fs.open_file("/file")?);
                    }
                    Ok::<(), papilio::Error>(())
                })
            })
            .collect();
        let linking = scope.spawn(|| {
            for _ in 0..TIMES {
                fs.hard_link("/file", "/link")?;
                fs.remove_file("/link")?;
            }
            Ok::<(), papilio::Error>(())
        });
        let linked = linking.join();
        over.store(true, Ordering::Relaxed);
        opening.into_iter().for_each(|one| one.join().unwrap().unwrap());
        linked.unwrap().unwrap();
    });
    assert_eq!(fs.open_file("/file").unwrap().read_all().unwrap(), b"content");
    close_and_check(device, fs);
}

/// What is made without a name gets its first one while it is closed, or while another gives it one too and takes
/// that away again: it is there with its content where it has a name, and gone where it has none.
#[test]
fn a_file_without_a_name_is_named_while_it_is_closed() {
    let (device, fs) = made();
    let root = fs.inode("/").unwrap();
    let (mut named, mut gone) = (0, 0);
    for turn in 0..TIMES {
        let file = root.create_unnamed(&NewInode::new(NewKind::Regular, 0o600)).unwrap();
        file.write_at(b"content", 0).unwrap();
        let inode = file.inode().clone();
        let name = format!("name {turn}");
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| root.link(&inode, name.as_bytes()));
            let second = scope.spawn(|| {
                let linked = root.link(&inode, b"other");
                if linked.is_ok() {
                    root.unlink(b"other").unwrap();
                }
                linked
            });
            // About when it is named, or a little later.
            (0..turn % 64).for_each(|_| std::thread::yield_now());
            drop(file);
            (first.join().unwrap(), second.join().unwrap())
        });
        match (&first, fs.open_file(&name)) {
            (Ok(()), Ok(file)) => {
                named += 1;
                assert_eq!(file.read_all().unwrap(), b"content");
                drop(file);
                root.unlink(name.as_bytes()).unwrap();
            }
            (Err(_), Err(_)) => gone += 1,
            (linked, found) => panic!("turn {turn}: {linked:?}, {second:?}, {:?}", found.err()),
        }
        // Whatever came first, nothing of it is left.
        let left = fs.inode_at(inode.tree(), inode.number());
        assert!(left.is_err(), "turn {turn}: {first:?}, {second:?}");
    }
    assert!(named > 0 && gone > 0, "{named} were named, {gone} were not");
    close_and_check(device, fs);
}
